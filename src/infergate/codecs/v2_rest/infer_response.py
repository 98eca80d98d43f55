"""Writes and reads inference responses. A response is JSON, optionally followed by binary data.

If any element of a BYTES tensor in JSON is not UTF-8, all elements are written as base64, and the
tensor has the parameter ``content_type: base64`` (as in rest-proxy and MLServer). If a backend's
tensor has this parameter, its BYTES are decoded and the parameter is removed. The Content-Type
header of a backend is ignored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from infergate.codecs.base import ParsedRequest
from infergate.codecs.encodings import (
    decode_body,
    encode_body,
    is_unencoded,
    preferred_encoding,
)
from infergate.codecs.json_tensors.json_data import RESPONSE_RULES
from infergate.codecs.json_tensors.json_document import (
    parse_backend_json,
    read_members,
    read_string,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE, backend_error, reported_error
from infergate.codecs.v2_rest.infer_request import JSON_FORMAT, ResponseFormat
from infergate.codecs.v2_rest.json_heads import JsonHeadCache
from infergate.codecs.v2_rest.tensors import (
    BINARY_DATA_SIZE,
    BINARY_TYPE,
    JSON_LENGTH_HEADER,
    BinaryDataReader,
    MessageBody,
    TensorReader,
    encode_json,
    read_parameters,
    read_tensors,
    split_body,
    write_json_tensor,
    write_parameters,
    write_tensor,
)
from infergate.core.errors import GatewayError, Kind, backend_garbage, bad_request
from infergate.core.inflation import MAX_RATIO
from infergate.core.json_size import json_size_bounds
from infergate.core.limits import Limits, check_loop_cost
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import HttpResponse, total_size

_FIELDS: Final = ("model_name", "model_version", "id", "parameters", "outputs")

# ---- writing ----------------------------------------------------------------------------------


def write_response(
    response: InferResponse,
    parsed: ParsedRequest,
    spelling: tuple[bytes, bytes, bytes],
    compress_min: int,
) -> HttpResponse:
    """Write ``response`` in the format in ``parsed.response_options``. The default is JSON."""
    options = parsed.response_options
    response_format = options if isinstance(options, ResponseFormat) else JSON_FORMAT
    binary_by_output = response_format.binary_by_output
    head: dict[str, Any] = {}
    if response.id:
        head["id"] = response.id
    head["model_name"] = response.model
    if response.version:
        head["model_version"] = response.version
    if response.parameters and (parameters := write_parameters(response.parameters, "response")):
        head["parameters"] = parameters
    outputs: list[dict[str, Any]] = []
    binary_data: list[Buffer] = []
    for tensor in response.outputs:
        if tensor.shared_memory is not None:
            outputs.append(_write_region_output(tensor))
        elif binary_by_output.get(tensor.name, response_format.binary_by_default):
            outputs.append(write_tensor(tensor, {BINARY_DATA_SIZE: len(tensor.data)}))
            binary_data.append(tensor.data)
        else:
            outputs.append(write_json_tensor(tensor, spelling))
    head["outputs"] = outputs
    text = encode_json(head)
    if not binary_data:
        headers = {"content-type": JSON_TYPE}
    else:
        headers = {"content-type": BINARY_TYPE, JSON_LENGTH_HEADER: str(len(text))}
    body = [text, *binary_data]
    if not response_format.accept_encoding:
        return HttpResponse(200, headers, body)
    return ok_response(headers, body, response_format.accept_encoding, compress_min)


def response_text_bytes(response: InferResponse, parsed: ParsedRequest) -> int:
    """Return the number of tensor bytes that ``write_response`` writes as JSON or may compress."""
    options = parsed.response_options
    response_format = options if isinstance(options, ResponseFormat) else JSON_FORMAT
    accept, binary_by_output = response_format.accept_encoding, response_format.binary_by_output
    is_compressed = bool(accept and preferred_encoding(accept))
    text_bytes = 0
    for tensor in response.outputs:
        if is_compressed or not binary_by_output.get(
            tensor.name, response_format.binary_by_default
        ):
            text_bytes += len(tensor.data)
    return text_bytes


def _write_region_output(tensor: Tensor) -> dict[str, Any]:
    """Describe an output in shared memory without parameters, as Triton does. If an output has
    parameters, perf_analyzer expects ``binary_data_size`` among them."""
    return {"name": tensor.name, "datatype": tensor.datatype.v2_name, "shape": tensor.shape}


def response_size(response: InferResponse, parsed: ParsedRequest) -> tuple[int, int]:
    """Return the minimum size of the body, and the maximum memory in bytes that writing the body
    takes, including the uncompressed body."""
    options = parsed.response_options
    response_format = options if isinstance(options, ResponseFormat) else JSON_FORMAT
    accept = response_format.accept_encoding
    is_compressed = bool(accept and preferred_encoding(accept))
    min_bytes, max_bytes = json_size_bounds(
        t for t in response.outputs if not response_format.is_binary(t.name)
    )
    if is_compressed:
        return 0, 2 * max_bytes + sum(
            len(t.data) for t in response.outputs if response_format.is_binary(t.name)
        )
    return min_bytes, max_bytes


def ok_response(
    headers: dict[str, str], body: list[Buffer], accept_encoding: str, compress_min: int
) -> HttpResponse:
    """Return a response with status 200. It is compressed if the client accepts compression and the
    body has at least ``compress_min`` bytes."""
    if accept_encoding and total_size(body) >= compress_min:
        encoding = preferred_encoding(accept_encoding)
        if encoding:
            headers = {**headers, "content-encoding": encoding, "vary": "accept-encoding"}
            body = encode_body(body, encoding)
    return HttpResponse(200, headers, body)


# ---- reading ----------------------------------------------------------------------------------


def read_response_body(wire: HttpResponse, limits: Limits) -> Buffer:
    """Return the decoded body of a response with status 200. Raises the backend's error for any
    other status, BACKEND_GARBAGE if the body cannot be decoded, and NeedsOffloadError if a helper
    process must inflate the body."""
    if not is_unencoded(wire.headers):
        check_loop_cost(limits, MAX_RATIO * total_size(wire.body), limits.json_inline)
    try:
        body = decode_body(wire.headers, wire.body, limits)
    except GatewayError as error:
        raise unusable_response(error) from None
    if wire.status != 200:
        raise backend_error(wire.status, wire.headers, bytes(body))
    return body


def unusable_response(error: GatewayError) -> GatewayError:
    """Return the error for a response that cannot be used because of ``error``."""
    return backend_garbage(f"invalid response from the backend: {error.public}")


class ResponseHeadCache(JsonHeadCache[InferResponse]):
    """A cache of the heads of binary responses."""

    __slots__ = ()

    def read(self, body: MessageBody, operation: InferRequest, limits: Limits) -> InferResponse:
        """Read ``body`` with the same result and errors as the full check."""
        if operation.outputs and any(output.shared_memory for output in operation.outputs):
            return _read_message(body, operation, limits)[0]
        split, head = self.find(body, limits)
        if head is None or split is None or body.binary is None:
            response, names_model, binary_count = _read_message(body, operation, limits)
            if names_model:
                rest = replace(response, id="", outputs=())
                self.store(split, rest, response.id, response.outputs, binary_count, limits)
            return response
        response = head.fields
        return InferResponse(
            response.model,
            response.version,
            head.id if split.id is None else split.id,
            response.parameters,
            head.read(body.binary),
        )


def read_response(
    wire: HttpResponse,
    operation: InferRequest,
    limits: Limits,
    heads: ResponseHeadCache | None = None,
) -> InferResponse:
    """Parse the response to ``operation``. Raises the backend's error, BACKEND_GARBAGE and
    NeedsOffloadError."""
    body = read_response_body(wire, limits)
    try:
        message = split_body(wire.headers, body, limits)
        if heads is None:
            response, _, _ = _read_message(message, operation, limits)
        else:
            response = heads.read(message, operation, limits)
    except GatewayError as error:
        if error.kind is Kind.BACKEND_ERROR:
            raise
        raise unusable_response(error) from None
    if operation.outputs:
        _check_outputs(operation, response)
    return response


def _read_message(
    message: MessageBody, operation: InferRequest, limits: Limits
) -> tuple[InferResponse, bool, int]:
    """Return the response, whether its JSON contains the model's name, and the number of outputs
    that are binary data."""
    fields = read_members(parse_backend_json(message.json, limits), "the body", (*_FIELDS, "error"))
    if "outputs" not in fields:
        if "error" in fields:  # Triton and Seldon report some errors with status 200
            raise reported_error(fields["error"], "sent with HTTP status 200")
        raise bad_request("outputs is missing")
    # Triton sends no length header if every binary output is empty.
    binary_data = BinaryDataReader(memoryview(b"") if message.binary is None else message.binary)
    regions = {output.name: output.shared_memory for output in operation.outputs}
    reader = TensorReader(RESPONSE_RULES, binary_data, limits, regions)
    outputs = read_tensors(fields["outputs"], "outputs", reader)
    binary_data.check_consumed()
    response = InferResponse(
        read_string(fields.get("model_name", operation.model), "model_name"),
        read_string(fields.get("model_version", ""), "model_version"),
        read_string(fields.get("id", ""), "id"),
        read_parameters(fields, "", reader),
        outputs,
    )
    return response, "model_name" in fields, binary_data.count


def _check_outputs(operation: InferRequest, response: InferResponse) -> None:
    output_names = {tensor.name for tensor in response.outputs}
    for output in operation.outputs:
        if output.name not in output_names:
            raise backend_garbage(f"the backend's response has no output '{output.name}'")

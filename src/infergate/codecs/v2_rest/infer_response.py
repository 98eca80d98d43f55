"""The inference response, as JSON with or without binary data after it.

*Rule 1.* Each output is written in its requested format. BYTES that are not UTF-8 are written to
JSON as base64, the whole tensor, marked by the parameter ``content_type: base64`` (as rest-proxy
and MLServer do). BYTES that a backend marked this way in JSON are decoded and lose the mark.
*Rule 2.* A backend's response is judged by its body; its content type is ignored.
"""

from __future__ import annotations

import math
from typing import Any, Final

from infergate.codecs.base import Parsed
from infergate.codecs.v2_rest.document import Node, members, read_tolerantly, string
from infergate.codecs.v2_rest.elements import (
    ANSWER,
    BASE64,
    write_base64,
    write_numbers,
    write_strings,
)
from infergate.codecs.v2_rest.encodings import accepted, decoded, encoded, is_plain
from infergate.codecs.v2_rest.errors import JSON_TYPE, LONGEST, backend_error
from infergate.codecs.v2_rest.infer_request import Wanted
from infergate.codecs.v2_rest.tensors import (
    BINARY_SIZE,
    BINARY_TYPE,
    HEADER,
    Blobs,
    Side,
    Source,
    dump,
    read_parameters,
    read_tensor,
    read_tensors,
    split,
    write_parameters,
    write_tensor,
)
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, Origin, bad_request, garbage
from infergate.core.inflation import RATIO
from infergate.core.json_size import json_size
from infergate.core.limits import Limits, check_loop
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor
from infergate.core.wire import HttpResponse, size

_FIELDS: Final = ("model_name", "model_version", "id", "parameters", "outputs")
_PLAIN: Final = Wanted({}, otherwise=False, accept_encoding="")

# ---- write ------------------------------------------------------------------------------------


def write_response(
    answer: InferResponse, parsed: Parsed, spelling: tuple[bytes, bytes, bytes], compress_min: int
) -> HttpResponse:
    """Write ``response`` in the format in ``parsed.response_options``, by default as JSON."""
    response_format = parsed.reply if isinstance(parsed.reply, Wanted) else _PLAIN
    head: dict[str, Any] = {}
    if answer.id:
        head["id"] = answer.id
    head["model_name"] = answer.model
    if answer.version:
        head["model_version"] = answer.version
    if answer.parameters and (parameters := write_parameters(answer.parameters, "response")):
        head["parameters"] = parameters
    outputs: list[dict[str, Any]] = []
    binary_data: list[Buffer] = []
    for tensor in answer.outputs:
        if tensor.place is not None:
            outputs.append(_placed(tensor))
        elif response_format.is_binary(tensor.name):
            outputs.append(write_tensor(tensor, {BINARY_SIZE: len(tensor.data)}))
            binary_data.append(tensor.data)
        else:
            outputs.append(_in_json(tensor, spelling))
    head["outputs"] = outputs
    text = dump(head)
    if not binary_data:
        return compressed(
            {"content-type": JSON_TYPE}, [text], response_format.accept_encoding, compress_min
        )
    headers = {"content-type": BINARY_TYPE, HEADER: str(len(text))}
    return compressed(headers, [text, *binary_data], response_format.accept_encoding, compress_min)


def text_size(answer: InferResponse, parsed: Parsed) -> int:
    """Return the bytes of the tensors that ``write_response`` writes as JSON, or compresses."""
    response_format = parsed.reply if isinstance(parsed.reply, Wanted) else _PLAIN
    is_compressed = bool(
        response_format.accept_encoding and accepted(response_format.accept_encoding)
    )
    text_bytes = 0
    for tensor in answer.outputs:
        if is_compressed or not response_format.is_binary(tensor.name):
            text_bytes += len(tensor.data)
    return text_bytes


def _placed(tensor: Tensor) -> dict[str, Any]:
    """Return the object of an output in shared memory, without parameters. Triton writes none, and
    perf_analyzer looks for ``binary_data_size`` in any that are present."""
    return {"name": tensor.name, "datatype": tensor.datatype.spelling, "shape": tensor.shape}


def written_size(answer: InferResponse, parsed: Parsed) -> tuple[int, int]:
    """Return bounds on the bytes that ``write_response`` writes: the minimum, which is 0 if they
    are compressed, and the maximum, including the uncompressed bytes."""
    response_format = parsed.reply if isinstance(parsed.reply, Wanted) else _PLAIN
    is_compressed = bool(
        response_format.accept_encoding and accepted(response_format.accept_encoding)
    )
    min_bytes, max_bytes = json_size(
        t for t in answer.outputs if not response_format.is_binary(t.name)
    )
    if is_compressed:
        return 0, 2 * max_bytes + sum(
            len(t.data) for t in answer.outputs if response_format.is_binary(t.name)
        )
    return min_bytes, max_bytes


def _in_json(tensor: Tensor, spelling: tuple[bytes, bytes, bytes]) -> dict[str, Any]:
    if tensor.datatype is not Datatype.BYTES:
        members = write_tensor(tensor, NO_PARAMETERS)
        members["data"] = write_numbers(tensor, spelling)
    elif (texts := write_strings(tensor)) is not None:
        members = write_tensor(tensor, NO_PARAMETERS)
        members["data"] = texts
    else:
        members = write_tensor(tensor, BASE64)
        members["data"] = write_base64(tensor)
    return members


def compressed(
    headers: dict[str, str], body: list[Buffer], accept_encoding: str, compress_min: int
) -> HttpResponse:
    """Return a response with status 200, compressed with the client's preferred encoding if it has
    at least ``compress_min`` bytes."""
    if accept_encoding and size(body) >= compress_min:
        encoding = accepted(accept_encoding)
        if encoding:
            headers = {**headers, "content-encoding": encoding, "vary": "accept-encoding"}
            body = encoded(body, encoding)
    return HttpResponse(200, headers, body)


# ---- read -------------------------------------------------------------------------------------


def answer_body(wire: HttpResponse, limits: Limits) -> Buffer:
    """Return the body of a 200 with its content encoding undone. Raises the backend's error for any
    other status, and NeedsOffloadError on the event loop."""
    if not is_plain(wire.headers):
        check_loop(limits, RATIO * size(wire.body), limits.json_inline)
    try:
        body = decoded(wire.headers, wire.body, limits)
    except GatewayError as error:
        raise blamed(error) from None
    if wire.status != 200:
        raise backend_error(wire.status, wire.headers, bytes(body))
    return body


def blamed(error: GatewayError) -> GatewayError:
    """Return an error found while reading the backend's response as the backend's error."""
    return garbage(f"invalid response from the backend: {error.public}")


def read_response(wire: HttpResponse, operation: InferRequest, limits: Limits) -> InferResponse:
    """Parse the response to ``operation``. Raises the backend's error, or BACKEND_GARBAGE."""
    body = answer_body(wire, limits)
    try:
        message = split(wire.headers, body, limits)
        fields = members(read_tolerantly(message.json, limits), "the body", (*_FIELDS, "error"))
        if "outputs" not in fields:
            # Triton and Seldon report some errors with status 200
            raise _told_error(fields) if "error" in fields else bad_request("outputs is missing")
        # Triton sends no length header if every binary output is empty
        binary_data = Blobs(memoryview(b"") if message.binary is None else message.binary)
        regions = {output.name: output.place for output in operation.outputs}
        reader = Source(_SIDE, binary_data, limits, regions)
        outputs = read_tensors(
            fields["outputs"], "outputs", lambda node, path: read_tensor(node, path, reader), limits
        )
        binary_data.finish()
        response = InferResponse(
            string(fields.get("model_name", operation.model), "model_name"),
            string(fields.get("model_version", ""), "model_version"),
            string(fields.get("id", ""), "id"),
            read_parameters(fields, "", reader),
            outputs,
        )
    except GatewayError as error:
        if error.kind is Kind.BACKEND_ERROR:
            raise
        raise blamed(error) from None
    _check_outputs(operation, response)
    return response


def _told_error(top: dict[str, Node]) -> GatewayError:
    """Return the error of a response with status 200, whose kind is therefore unknown."""
    error = top["error"]
    message = (
        error
        if isinstance(error, str) and error
        else "the backend returned an error without a message"
    )
    return GatewayError(
        Kind.BACKEND_ERROR, message[:LONGEST], origin=Origin.BACKEND, detail="under HTTP 200"
    )


def _check_outputs(operation: InferRequest, answer: InferResponse) -> None:
    output_names = {tensor.name for tensor in answer.outputs}
    for output in operation.outputs:
        if output.name not in output_names:
            raise garbage(f"the backend's response lacks output '{output.name}'")


def _any_case(spelt: str) -> Datatype | None:
    return BY_NAME.get(spelt.upper())


def _empty(name: str, shape: tuple[int, ...], parameters: Parameters) -> Buffer:
    del parameters
    if math.prod(shape) != 0:
        raise bad_request(f"tensor '{name}' has no data")
    return b""


_SIDE: Final = Side(ANSWER, _any_case, _empty)

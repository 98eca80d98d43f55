"""Converts the JSON of Predict requests and responses to and from canonical inferences.

A request has ``instances`` (row format) or ``inputs`` (column format). The response to
``instances`` has ``predictions``, and the response to ``inputs`` has ``outputs``. The JSON has no
datatypes and often no names, so the model's metadata supplies them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import orjson

from infergate.codecs.base import ParsedRequest
from infergate.codecs.encodings import CONTENT_ENCODING, decode_body, is_unencoded
from infergate.codecs.json_tensors.json_document import STRING, check_json_size, json_kind
from infergate.codecs.json_tensors.row_document import JsonValue, parse_document
from infergate.codecs.json_tensors.row_reader import RowReader, input_types
from infergate.codecs.json_tensors.row_writer import write_columns, write_rows
from infergate.codecs.tfs.model_spec import DEFAULT_SIGNATURE, SIGNATURE, RequestedModel
from infergate.core.errors import GatewayError, Kind, as_backend_error, bad_request
from infergate.core.limits import KIB, Limits, check_loop_cost
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.records import record
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import join_parts

INSTANCES: Final = "instances"
INPUTS: Final = "inputs"
_PREDICTIONS: Final = "predictions"
_OUTPUTS: Final = "outputs"
_REQUEST_MEMBERS: Final = (SIGNATURE, INSTANCES, INPUTS)
_SEARCHED_BYTES: Final = 64 * KIB
"""Number of bytes at the beginning and at the end of a body that are searched for a signature. Only
the beginning of a compressed body is searched."""
_SIGNATURE_MEMBER: Final = re.compile(
    rb'"signature_name"[ \t\r\n]*+:[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")', re.DOTALL
)


@record
class PredictFormat:
    """The model that a request names, and whether the response has rows."""

    requested: RequestedModel
    has_rows: bool = False


# ---- requests from clients


def find_signature(headers: Mapping[str, str], body: Sequence[Buffer]) -> str:
    """Return the signature that the beginning or the end of a body seems to name, or an empty
    string. ``check_signature`` compares the result with the parsed body."""
    view = memoryview(join_parts(body))
    parts = [bytes(view[:_SEARCHED_BYTES]), bytes(view[-_SEARCHED_BYTES:])]
    if not is_unencoded(headers):
        try:
            parts = [zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(view, _SEARCHED_BYTES)]
        except zlib.error:
            return ""
    for part in parts:
        if member := _SIGNATURE_MEMBER.search(part):
            try:
                return str(json.loads(member[1]))
            except ValueError:
                return ""
    return ""


def read_request(  # noqa: PLR0913, PLR0917 - the message, its model, and the metadata
    headers: Mapping[str, str],
    body: Sequence[Buffer],
    requested: RequestedModel,
    maps_signatures: bool,  # noqa: FBT001 - pickled
    limits: Limits,
    metadata: ModelMetadata,
) -> ParsedRequest:
    """Parse a request for the model with ``metadata``. Raises client errors and NeedsOffloadError.

    If the options map signatures of the model (``maps_signatures``), the body must name the
    signature of ``requested``, because the access check used that signature.
    """
    text = decoded_json(headers, body, limits)
    members = parse_document(text, _REQUEST_MEMBERS, limits)
    signature = read_signature(members)
    if maps_signatures:
        check_signature(signature, requested)
    else:
        requested = replace(
            requested, spec=replace(requested.spec, signature=signature), signature=signature
        )
    inputs = _signature_tensors(metadata, requested.signature)[0]
    if not inputs:
        raise GatewayError(
            Kind.UNSUPPORTED,
            f"the metadata of model '{metadata.name}' has no inputs; declare them under 'models' "
            "in the gateway's configuration",
        )
    if INSTANCES in members and INPUTS in members:
        raise bad_request(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    reader = RowReader(input_types(inputs), limits)
    if INSTANCES in members:
        tensors = reader.read_instances(members[INSTANCES])
    elif INPUTS in members:
        tensors = reader.read_inputs(members[INPUTS])
    else:
        raise bad_request("Missing 'inputs' or 'instances' key")
    request = InferRequest(
        requested.model,
        requested.version,
        parameters=requested.parameters,
        inputs=_with_declared_dimensions(tensors, inputs),
    )
    return ParsedRequest(request, PredictFormat(requested, INSTANCES in members))


def read_signature(members: Mapping[str, JsonValue]) -> str:
    """Return the signature that a body names, or an empty string. Raises BAD_REQUEST."""
    if SIGNATURE not in members:
        return ""
    signature = members[SIGNATURE].node
    if type(signature) is not str:
        raise bad_request(
            f"not formatted correctly. '{SIGNATURE}' key must be a string value, not "
            f"{json_kind(signature)}"
        )
    return signature


def check_signature(signature: str, requested: RequestedModel) -> None:
    """Raise BAD_REQUEST if ``signature`` is not the signature that ``find_signature`` found. The
    options may map the two signatures to different models, so the access check may have covered
    another model."""
    if signature != requested.spec.signature:
        raise bad_request(
            f"'{SIGNATURE}' must be in the first or last {_SEARCHED_BYTES // KIB} KiB of the "
            "body, without escapes, and only once"
        )


def without_signature(body: bytes) -> bytes:
    """Remove the signature from ``body``, a valid JSON object that passed ``check_signature``."""
    depth = position = 0
    for member in _SIGNATURE_MEMBER.finditer(body):
        outside = STRING.sub(b"", body[position : member.start()])
        depth += sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))
        position = member.end()
        if depth == 1:  # not a member of an example
            before, after = body[: member.start()], body[position:].lstrip()
            if after.startswith(b","):
                return before + after[1:]
            return before.rstrip().removesuffix(b",") + after
    return body


def decoded_json(headers: Mapping[str, str], body: Sequence[Buffer], limits: Limits) -> bytes:
    """Return a body without its content encoding. Raises BAD_REQUEST, UNSUPPORTED_ENCODING and
    TOO_LARGE."""
    data = decode_body(headers, body, limits) if CONTENT_ENCODING in headers else join_parts(body)
    check_json_size(len(data), limits.json)
    return data if isinstance(data, bytes) else bytes(data)


def _signature_tensors(
    metadata: ModelMetadata, signature: str
) -> tuple[tuple[TensorMetadata, ...], tuple[TensorMetadata, ...]]:
    """Return the inputs and outputs of a signature. Raises BAD_REQUEST."""
    if signature in ("", DEFAULT_SIGNATURE):
        return metadata.inputs, metadata.outputs
    for candidate in metadata.signatures:
        if candidate.name == signature:
            return candidate.inputs, candidate.outputs
    raise bad_request(f'Serving signature name: "{signature[:200]}" not found in signature def')


def _with_declared_dimensions(
    tensors: Sequence[Tensor], declared: Sequence[TensorMetadata]
) -> tuple[Tensor, ...]:
    """Return ``tensors`` with complete shapes. Nested lists cannot express the dimensions after a
    dimension of 0, so the metadata supplies these dimensions if it declares them."""
    shapes = {tensor.name: tensor.shape for tensor in declared}
    return tuple(_complete_shape(tensor, shapes[tensor.name]) for tensor in tensors)


def _complete_shape(tensor: Tensor, declared: tuple[int, ...]) -> Tensor:
    rest = declared[len(tensor.shape) :]
    if tensor.shape[-1:] != (0,) or not rest or min(rest) < 0:
        return tensor
    return replace(tensor, shape=(*tensor.shape, *rest))


def response_body(response: InferResponse, response_format: PredictFormat) -> list[Buffer]:
    """Return the body of a response. Raises TOO_LARGE and, in row format, BAD_REQUEST like
    ``row_writer.check_rows``."""
    if response_format.has_rows:
        return [b'{"predictions": ', write_rows(response.outputs), b"}"]
    return [b'{"outputs": ', write_columns(response.outputs), b"}"]


# ---- requests to servers


def check_outputs(request: InferRequest, metadata: ModelMetadata, signature: str) -> None:
    """Raise BAD_REQUEST if ``signature`` is unknown or lacks an output of ``request``."""
    if not request.outputs:
        return
    names = [tensor.name for tensor in _signature_tensors(metadata, signature)[1]]
    for output in request.outputs:
        if output.name not in names:
            raise bad_request(
                f"output tensor alias not found in signature: {output.name[:200]} "
                f"Outputs expected to be in the set {{{','.join(names)[:1000]}}}."
            )


def request_body(request: InferRequest, signature: str) -> list[Buffer]:
    """Return the body of a request in column format, which also supports inputs of different batch
    sizes. Raises TOO_LARGE, and UNSUPPORTED for a shape that JSON cannot express."""
    for tensor in request.inputs:
        if 0 in tensor.shape[:-1]:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"tensor '{tensor.name}': JSON cannot express shape {list(tensor.shape)}",
            )
    member = b"" if not signature else b'"signature_name": %b, ' % orjson.dumps(signature)
    columns = write_columns(request.inputs, is_named=True)
    return [b'{%b"inputs": ' % member, columns, b"}"]


def read_response(
    body: bytes, request: InferRequest, metadata: ModelMetadata, signature: str, limits: Limits
) -> InferResponse:
    """Parse a server's response. Raises BACKEND_GARBAGE, TOO_LARGE, NeedsOffloadError, and
    BAD_REQUEST like ``check_outputs``."""
    check_loop_cost(limits, len(body), limits.json_inline)
    check_outputs(request, metadata, signature)
    try:
        text = decoded_json({}, [body], limits)
        members = parse_document(text, (_OUTPUTS, _PREDICTIONS), limits)
        declared = _signature_tensors(metadata, signature)[1]
        reader = RowReader(input_types(declared), limits)
        if _OUTPUTS in members:
            tensors = reader.read_inputs(members[_OUTPUTS], _OUTPUTS)
        elif _PREDICTIONS in members:
            tensors = reader.read_instances(members[_PREDICTIONS], _PREDICTIONS)
        else:
            raise bad_request("it has neither 'outputs' nor 'predictions'")
    except GatewayError as error:
        raise as_backend_error(error) from None
    outputs = _with_declared_dimensions(tensors, declared)
    if request.outputs:  # the API cannot select outputs
        by_name = {tensor.name: tensor for tensor in outputs}
        outputs = tuple(by_name[item.name] for item in request.outputs)
    return InferResponse(request.model, request.version, outputs=outputs)

"""Reads and writes inference requests. A request is JSON with data, JSON followed by binary data,
or raw binary data.

*Rule 1.* ``binary_data`` of an output overrides ``binary_data_output`` of the request. Without
these parameters, an output is JSON. (If a request lists outputs, Triton ignores
``binary_data_output``, contrary to the extension's specification.)

*Rule 2.* A length header of 0 marks a raw request, which has no JSON (``raw_request``).

*Rule 3.* ``stream: true`` in the request's parameters requests a stream of responses and is not
sent to servers. With any other value, ``stream`` is a parameter of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile
from infergate.codecs.encodings import CONTENT_ENCODING, decode_body
from infergate.codecs.json_tensors.json_data import NON_FINITE_SPELLINGS, REQUEST_RULES
from infergate.codecs.json_tensors.json_document import (
    Node,
    abbreviated,
    check_text_length,
    parse_json,
    read_items,
    read_string,
)
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.json_heads import JsonHeadCache
from infergate.codecs.v2_rest.paths import model_path
from infergate.codecs.v2_rest.raw_request import read_only_input
from infergate.codecs.v2_rest.small_json_reader import RequestFields, read_small
from infergate.codecs.v2_rest.tensors import (
    BINARY_DATA,
    BINARY_DATA_OUTPUT,
    BINARY_DATA_SIZE,
    BINARY_TYPE,
    JSON_LENGTH_HEADER,
    BinaryDataReader,
    MessageBody,
    TensorReader,
    encode_json,
    parse_json_length,
    pop_flag,
    read_parameters,
    read_tensor_name,
    read_tensors,
    split_at,
    write_json_tensor,
    write_parameters,
    write_tensor,
)
from infergate.codecs.v2_rest.wire_features import WireFeature
from infergate.core.classification import class_count
from infergate.core.errors import bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput
from infergate.core.records import record
from infergate.core.region_ref import parse_region_ref, region_parameters
from infergate.core.sequences import sequence_id
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters
from infergate.core.wire import HttpRequest

STREAM_PARAMETER: Final = "stream"
_FIELDS: Final = ("id", "parameters", "inputs", "outputs")
_NO_FEATURES: Final[frozenset[WireFeature]] = frozenset()


@record
class ResponseFormat:
    """The requested format of a response: which outputs are binary data, and the encodings that the
    client accepts."""

    binary_by_output: Mapping[str, bool]
    binary_by_default: bool
    accept_encoding: str

    def is_binary(self, output: str) -> bool:
        """Return whether ``output`` is requested as binary data (Rule 1)."""
        return self.binary_by_output.get(output, self.binary_by_default)


JSON_FORMAT: Final = ResponseFormat({}, binary_by_default=False, accept_encoding="")
"""The default format of a response: JSON without compression."""

# ---- reading ----------------------------------------------------------------------------------


class RequestHeadCache(JsonHeadCache[tuple[RequestFields, frozenset[WireFeature]]]):
    """A cache of the heads of binary requests, with the features of each request."""

    __slots__ = ()

    def read(
        self, body: MessageBody, limits: Limits
    ) -> tuple[RequestFields, frozenset[WireFeature]]:
        """Read ``body``, with a cached head if there is one. The cache changes neither the result
        nor the errors."""
        split, head = self.find(body, limits)
        if head is None or split is None or body.binary is None:
            fields, features, binary_count = _read_fields(body, limits)
            if WireFeature.SHARED_MEMORY not in features:
                rest = fields._replace(id="", inputs=())
                self.store(split, (rest, features), fields.id, fields.inputs, binary_count, limits)
            return fields, features
        fields, features = head.fields
        request_id = head.id if split.id is None else split.id
        return RequestFields(
            request_id,
            fields.parameters,
            head.read(body.binary),
            fields.outputs,
            fields.binary_by_output,
            fields.binary_by_default,
        ), features


def read_request(
    wire: HttpRequest,
    model: str,
    version: str,
    limits: Limits,
    heads: RequestHeadCache | None = None,
) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
    """Parse an inference request for ``model``. Raises client errors and NeedsOffloadError."""
    parts = wire.body
    if len(parts) == 1 and CONTENT_ENCODING not in wire.headers and len(parts[0]) <= limits.body:
        body = parts[0]
    else:
        body = decode_body(wire.headers, parts, limits)
    return read_body(wire, body, model, version, limits, heads)[0]


def read_body(  # noqa: PLR0913, PLR0917 - the message and its path
    wire: HttpRequest,
    body: Buffer,
    model: str,
    version: str,
    limits: Limits,
    heads: RequestHeadCache | None = None,
) -> tuple[
    ParsedRequest | PartialInferRequest[ParsedRequest], ResponseFormat, frozenset[WireFeature]
]:
    """Parse the inference request ``wire`` with the decoded ``body``. Also return the requested
    format of the response, and the features of the message."""
    headers = wire.headers
    accept = headers.get("accept-encoding", "")
    header = headers.get(JSON_LENGTH_HEADER)
    json_length = None if header is None else parse_json_length(header)
    if json_length == 0:
        response_format = ResponseFormat({}, binary_by_default=True, accept_encoding=accept)
        complete = partial(_complete_raw, model, version, body, response_format)
        return PartialInferRequest(model, version, complete), response_format, _NO_FEATURES
    if not body:
        raise bad_request("the body is empty")
    features = _NO_FEATURES
    fields = read_small(body, limits) if json_length is None else None
    if fields is None:
        message = split_at(json_length, body, limits)
        if heads is None:
            fields, features, _ = _read_fields(message, limits)
        else:
            fields, features = heads.read(message, limits)
    parameters = fields.parameters
    wants_stream = False
    if parameters:
        wants_stream = parameters.get(STREAM_PARAMETER) is True
        if wants_stream:
            parameters = {k: value for k, value in parameters.items() if k != STREAM_PARAMETER}
            features |= {WireFeature.STREAM}
        sequence_id(parameters)  # raises BAD_REQUEST
    request = InferRequest(model, version, fields.id, parameters, fields.inputs, fields.outputs)
    if accept or fields.binary_by_output or fields.binary_by_default:
        response_format = ResponseFormat(
            fields.binary_by_output, fields.binary_by_default or False, accept
        )
    else:
        response_format = JSON_FORMAT
    return ParsedRequest(request, response_format, wants_stream), response_format, features


def _read_fields(
    body: MessageBody, limits: Limits
) -> tuple[RequestFields, frozenset[WireFeature], int]:
    """Return the fields in the JSON of a request, the features of the message, and the number of
    inputs that are binary data."""
    reader = TensorReader(REQUEST_RULES, BinaryDataReader(body.binary), limits)
    members = reader.read_members(parse_json(body.json, limits), "the body", _FIELDS)
    if "inputs" not in members:
        raise bad_request("inputs is missing")
    inputs = read_tensors(members["inputs"], "inputs", reader)
    reader.binary_data.check_consumed()
    parameters = read_parameters(members, "", reader)
    binary_by_default, parameters = pop_flag(parameters, BINARY_DATA_OUTPUT, "parameters")
    outputs: dict[str, RequestedOutput] = {}
    binary_by_output: dict[str, bool] = {}
    for index, item in enumerate(read_items(members.get("outputs", []), "outputs", limits.tensors)):
        output, binary = _read_output(item, f"outputs[{index}]", reader)
        if output.name in outputs:
            raise bad_request(f"outputs has '{abbreviated(output.name)}' twice")
        outputs[output.name] = output
        if binary is not None:
            binary_by_output[output.name] = binary
    if outputs and binary_by_default is not None:
        reader.features.add(WireFeature.BINARY_OUTPUT_CONFLICT)
    request_id = read_string(members.get("id", ""), "id")
    check_text_length(len(request_id), "id")
    fields = RequestFields(
        request_id, parameters, inputs, tuple(outputs.values()), binary_by_output, binary_by_default
    )
    return fields, frozenset(reader.features), reader.binary_data.count


def _complete_raw(
    model: str, version: str, data: Buffer, response_format: ResponseFormat, metadata: ModelMetadata
) -> ParsedRequest:
    return ParsedRequest(
        InferRequest(model, version, inputs=(read_only_input(data, metadata),)), response_format
    )


def _read_output(
    node: Node, path: str, reader: TensorReader
) -> tuple[RequestedOutput, bool | None]:
    members = reader.read_members(node, path, ("name", "parameters"))
    parameters = read_parameters(members, path, reader)
    region, parameters = parse_region_ref(parameters, path)
    if region is not None:
        reader.features.add(WireFeature.SHARED_MEMORY)
    binary, parameters = pop_flag(parameters, BINARY_DATA, f"{path}.parameters")
    output = RequestedOutput(read_tensor_name(members, path), parameters, region)
    if class_count(output) is not None:
        reader.features.add(WireFeature.CLASSIFICATION)
    return output, binary


# ---- writing ----------------------------------------------------------------------------------


def write_request(operation: InferRequest, profile: Profile) -> HttpRequest:
    """Write the request with binary data, or as JSON if a server with ``profile`` accepts no binary
    data."""
    head: dict[str, Any] = {}
    if operation.id:
        head["id"] = operation.id
    parameters = write_parameters(operation.parameters, "request")
    wants_all_binary = profile.supports_binary and not operation.outputs
    if wants_all_binary:
        parameters[BINARY_DATA_OUTPUT] = True
    if parameters:
        head["parameters"] = parameters
    spelling = (
        _NUMPY_SPELLINGS if profile.supports_content_type else NON_FINITE_SPELLINGS["literal"]
    )
    parts: list[Buffer] = []
    inputs: list[dict[str, Any]] = []
    for tensor in operation.inputs:
        if tensor.shared_memory is not None:
            inputs.append(write_tensor(tensor, NO_PARAMETERS))
        elif profile.supports_binary:
            inputs.append(write_tensor(tensor, {BINARY_DATA_SIZE: len(tensor.data)}))
            parts.append(tensor.data)
        else:
            inputs.append(
                write_json_tensor(tensor, spelling, allows_base64=profile.supports_content_type)
            )
    head["inputs"] = inputs
    if operation.outputs:
        wire_parameters = {BINARY_DATA: True} if profile.supports_binary else {}
        head["outputs"] = [_write_output(output, wire_parameters) for output in operation.outputs]
    text = encode_json(head)
    headers = {"content-type": BINARY_TYPE if profile.supports_binary else JSON_TYPE}
    if profile.supports_binary:
        headers[JSON_LENGTH_HEADER] = str(len(text))
    return HttpRequest(
        "POST", infer_path(operation.model, operation.version, profile), "", headers, [text, *parts]
    )


def infer_path(model: str, version: str, profile: Profile) -> str:
    """Return the path of inferences of ``model`` on a server with ``profile``."""
    return model_path(model, version if profile.accepts_versions else "", "/infer")


def _write_output(output: RequestedOutput, wire_parameters: Parameters) -> dict[str, Any]:
    members: dict[str, Any] = {"name": output.name}
    if output.shared_memory is not None:
        wire_parameters = region_parameters(output.shared_memory)
    parameters = {**write_parameters(output.parameters, output.name), **wire_parameters}
    if parameters:
        members["parameters"] = parameters
    return members


_NUMPY_SPELLINGS: Final = (b"null", b'"Infinity"', b'"-Infinity"')
"""The spellings of NaN, infinity and negative infinity for MLServer, which parses them with numpy
and rejects unquoted words."""

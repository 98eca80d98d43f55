"""The inference request: JSON with data, JSON followed by binary data, or raw binary data.

*Rule 1.* ``binary_data`` of an output overrides ``binary_data_output`` of the request, which
overrides the default, JSON. (Triton ignores ``binary_data_output`` if outputs are listed; the
extension's specification does not.)
*Rule 2.* A length header of 0 marks a raw request: it has no JSON, and the body is the data of the
model's only input. The model's metadata completes it (``raw_request``).
*Rule 3.* A tensor in shared memory has no data in the message, whatever format is requested.
*Rule 4.* An invalid ``classification`` is rejected here, because Triton reports it as an internal
error (500).
*Rule 5.* ``stream: true`` in the request's parameters selects the format of the response, like
``binary_data_output``, and is not sent to servers. Any other value is a parameter of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from infergate.codecs.base import Parsed, Profile, Unfinished
from infergate.codecs.v2_rest.document import (
    Node,
    check_length,
    items,
    kind,
    read,
    shown,
    string,
)
from infergate.codecs.v2_rest.elements import (
    BASE64,
    NON_FINITE,
    REQUEST,
    write_base64,
    write_numbers,
    write_strings,
)
from infergate.codecs.v2_rest.encodings import decoded
from infergate.codecs.v2_rest.errors import JSON_TYPE
from infergate.codecs.v2_rest.forms import Form
from infergate.codecs.v2_rest.paths import model_path
from infergate.codecs.v2_rest.raw import only_input
from infergate.codecs.v2_rest.small import Told, read_small
from infergate.codecs.v2_rest.tensors import (
    BINARY,
    BINARY_OUTPUT,
    BINARY_SIZE,
    BINARY_TYPE,
    HEADER,
    Blobs,
    Body,
    Side,
    Source,
    dump,
    json_length,
    read_parameters,
    read_tensor,
    read_tensors,
    required_name,
    split,
    write_parameters,
    write_tensor,
)
from infergate.core.classification import class_count
from infergate.core.datatypes import BY_NAME, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput
from infergate.core.places import read_place, write_place
from infergate.core.sequences import SequenceId, sequence_id
from infergate.core.tensor import NO_PARAMETERS, Buffer, Parameters, Tensor
from infergate.core.wire import HttpRequest

STREAM: Final = "stream"
_FIELDS: Final = ("id", "parameters", "inputs", "outputs")


@dataclass(slots=True)
class Wanted:
    """The response format that a client requested. ``binary_by_output`` holds the choice for single
    outputs, ``binary_by_default`` that for all others; ``accept_encoding`` is the header."""

    named: Mapping[str, bool]
    otherwise: bool
    accept_encoding: str

    def is_binary(self, output: str) -> bool:
        """Whether ``output`` is wanted as binary data (Rule 1)."""
        return self.named.get(output, self.otherwise)


# ---- read -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """A request, its response format, its id, and the features of its message."""

    parsed: Parsed | Unfinished[Parsed]
    wanted: Wanted
    id: str = ""
    forms: frozenset[Form] = frozenset()
    outputs: tuple[RequestedOutput, ...] = ()
    """The requested outputs, if any tensor is in shared memory."""
    sequence: SequenceId | None = None


def read_request(
    wire: HttpRequest, model: str, version: str, limits: Limits
) -> Parsed | Unfinished[Parsed]:
    """Parse an inference of ``model``. Raises the client's errors."""
    return read_body(wire, decoded(wire.headers, wire.body, limits), model, version, limits).parsed


def read_body(wire: HttpRequest, body: Buffer, model: str, version: str, limits: Limits) -> Read:
    """Parse an inference whose body's content encoding is undone."""
    accept = wire.headers.get("accept-encoding", "")
    header = wire.headers.get(HEADER)
    if header is not None and json_length(header) == 0:
        response_format = Wanted({}, otherwise=True, accept_encoding=accept)
        complete = partial(_finish_raw, model, version, body, response_format)
        return Read(Unfinished(model, version, complete), response_format)
    if not body:
        raise bad_request("the body is empty")
    features: frozenset[Form] = frozenset()
    fields = read_small(body, limits) if header is None else None
    if fields is None:
        fields, features = _read_long(split(wire.headers, body, limits), limits)
    parameters = fields.parameters
    wants_stream = parameters.get(STREAM) is True
    if wants_stream:
        parameters = {name: value for name, value in parameters.items() if name != STREAM}
        features |= {Form.STREAM}
    request = InferRequest(model, version, fields.id, parameters, fields.inputs, fields.outputs)
    response_format = Wanted(fields.binary, fields.otherwise or False, accept)
    shared_memory_outputs = request.outputs if features and Form.SHARED in features else ()
    sequence = sequence_id(parameters)
    return Read(
        Parsed(request, response_format, wants_stream),
        response_format,
        fields.id,
        features,
        shared_memory_outputs,
        sequence,
    )


def _read_long(cut: Body, limits: Limits) -> tuple[Told, frozenset[Form]]:
    """Read the JSON of any request, and the features of its message."""
    reader = Source(_SIDE, Blobs(cut.binary), limits)
    members = reader.members(read(cut.json, limits), "the body", _FIELDS)
    if "inputs" not in members:
        raise bad_request("inputs is missing")
    inputs = read_tensors(
        members["inputs"], "inputs", lambda node, path: read_tensor(node, path, reader), limits
    )
    reader.blobs.finish()
    parameters = read_parameters(members, "", reader)
    binary_by_default, parameters = _flag(parameters, BINARY_OUTPUT, "parameters")
    outputs: dict[str, RequestedOutput] = {}
    binary_by_output: dict[str, bool] = {}
    for index, item in enumerate(items(members.get("outputs", []), "outputs", limits.tensors)):
        output, binary = _read_output(item, f"outputs[{index}]", reader)
        if output.name in outputs:
            raise bad_request(f"outputs has '{shown(output.name)}' twice")
        outputs[output.name] = output
        if binary is not None:
            binary_by_output[output.name] = binary
    if outputs and binary_by_default is not None:
        reader.forms.add(Form.TWO_PLACES)
    identity = string(members.get("id", ""), "id")
    check_length(len(identity), "id")
    fields = Told(
        identity, parameters, inputs, tuple(outputs.values()), binary_by_output, binary_by_default
    )
    return fields, frozenset(reader.forms)


def _finish_raw(
    model: str, version: str, data: Buffer, wanted: Wanted, metadata: ModelMetadata
) -> Parsed:
    """Complete a raw request (Rule 2)."""
    return Parsed(InferRequest(model, version, inputs=(only_input(data, metadata),)), wanted)


def _known_datatype(spelt: str) -> Datatype | None:
    return BY_NAME.get(spelt)


def _no_data(name: str, shape: tuple[int, ...], parameters: Parameters) -> Buffer:
    del shape, parameters
    raise bad_request(f"tensor '{shown(name)}' has neither data nor {BINARY_SIZE}")


_SIDE: Final = Side(REQUEST, _known_datatype, _no_data)


def _read_output(node: Node, path: str, source: Source) -> tuple[RequestedOutput, bool | None]:
    members = source.members(node, path, ("name", "parameters"))
    parameters = read_parameters(members, path, source)
    region, parameters = read_place(parameters, path)
    if region is not None:
        source.forms.add(Form.SHARED)
    binary, parameters = _flag(parameters, BINARY, f"{path}.parameters")
    output = RequestedOutput(required_name(members, path), parameters, region)
    if class_count(output) is not None:
        source.forms.add(Form.CLASSES)
    return output, binary


def _flag(parameters: Parameters, key: str, path: str) -> tuple[bool | None, Parameters]:
    """Return the boolean ``key`` (None if absent) and the other parameters."""
    if key not in parameters:
        return None, parameters
    value = parameters[key]
    if not isinstance(value, bool):
        raise bad_request(f"{path}.{key} must be a boolean, not {kind(value)}")
    return value, {name: parameter for name, parameter in parameters.items() if name != key}


# ---- write ------------------------------------------------------------------------------------


def write_request(operation: InferRequest, profile: Profile) -> HttpRequest:
    """Write the request for a server of ``profile``: binary if the server accepts that, else
    JSON."""
    head: dict[str, Any] = {}
    if operation.id:
        head["id"] = operation.id
    parameters = write_parameters(operation.parameters, "request")
    wants_all_binary = profile.binary and not operation.outputs
    if wants_all_binary:
        parameters[BINARY_OUTPUT] = True
    if parameters:
        head["parameters"] = parameters
    parts: list[Buffer] = []
    inputs: list[dict[str, Any]] = []
    for tensor in operation.inputs:
        if tensor.place is not None:
            inputs.append(write_tensor(tensor, NO_PARAMETERS))
        elif profile.binary:
            inputs.append(write_tensor(tensor, {BINARY_SIZE: len(tensor.data)}))
            parts.append(tensor.data)
        else:
            inputs.append(_in_json(tensor, profile))
    head["inputs"] = inputs
    if operation.outputs:
        wire_parameters = {BINARY: True} if profile.binary else {}
        head["outputs"] = [_write_output(output, wire_parameters) for output in operation.outputs]
    text = dump(head)
    headers = {"content-type": BINARY_TYPE if profile.binary else JSON_TYPE}
    if profile.binary:
        headers[HEADER] = str(len(text))
    return HttpRequest(
        "POST", infer_path(operation.model, operation.version, profile), "", headers, [text, *parts]
    )


def infer_path(model: str, version: str, profile: Profile) -> str:
    """Return the path of inferences of ``model`` on a server of ``profile``."""
    return model_path(model, version if profile.versions else "", "/infer")


def _write_output(output: RequestedOutput, extra: Parameters) -> dict[str, Any]:
    members: dict[str, Any] = {"name": output.name}
    if output.place is not None:
        extra = write_place(output.place)
    parameters = {**write_parameters(output.parameters, output.name), **extra}
    if parameters:
        members["parameters"] = parameters
    return members


def _in_json(tensor: Tensor, profile: Profile) -> dict[str, Any]:
    """Return the object of ``tensor`` with its data, for a server that accepts no binary data."""
    if tensor.datatype is not Datatype.BYTES:
        spelling = _NUMPY_WORDS if profile.content_types else NON_FINITE["literal"]
        return write_tensor(tensor, NO_PARAMETERS) | {"data": write_numbers(tensor, spelling)}
    texts = write_strings(tensor)
    if texts is not None:
        return write_tensor(tensor, NO_PARAMETERS) | {"data": texts}
    if profile.content_types:
        return write_tensor(tensor, BASE64) | {"data": write_base64(tensor)}
    raise GatewayError(
        Kind.UNSUPPORTED,
        f"tensor '{tensor.name}': BYTES that are not UTF-8 cannot be expressed in JSON, and this "
        "server accepts no binary data",
    )


_NUMPY_WORDS: Final = (b"null", b'"Infinity"', b'"-Infinity"')
"""NaN, Infinity and -Infinity for MLServer, which rejects bare words; numpy parses these values."""

"""The inference request: JSON with data in it, JSON followed by binary data, or raw binary data.

*Rule 1.* ``binary_data`` of an output wins over ``binary_data_output`` of the request, which wins
over JSON. (Triton ignores the latter where outputs are listed; the extension's text does not.)
*Rule 2.* A length header of 0 is a raw request: no JSON, the body is the model's only input. The
model's metadata makes it whole (``raw``).
*Rule 3.* A tensor in shared memory has no data, in whatever form it is wanted.
*Rule 4.* A wrong ``classification`` is refused here: Triton calls it its own error (500).
*Rule 5.* ``stream: true`` among the request's parameters tells the form of the answer, like
``binary_data_output``: no server is told. Any other value is the model's own.
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
    """How a client wants its answer. ``named`` tells of single outputs whether they are to be
    binary, ``otherwise`` of the rest; ``accept_encoding`` is the header."""

    named: Mapping[str, bool]
    otherwise: bool
    accept_encoding: str

    def is_binary(self, output: str) -> bool:
        """Rule 1."""
        return self.named.get(output, self.otherwise)


# ---- read -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """A request, how its answer is wanted, its id, and the forms it was told in."""

    parsed: Parsed | Unfinished[Parsed]
    wanted: Wanted
    id: str = ""
    forms: frozenset[Form] = frozenset()
    outputs: tuple[RequestedOutput, ...] = ()
    """Those that it asks for, if a tensor is in shared memory."""
    sequence: SequenceId | None = None


def read_request(
    wire: HttpRequest, model: str, version: str, limits: Limits
) -> Parsed | Unfinished[Parsed]:
    """The inference of ``model`` that ``wire`` asks for. Raises what the client did wrong."""
    return read_body(wire, decoded(wire.headers, wire.body, limits), model, version, limits).parsed


def read_body(wire: HttpRequest, body: Buffer, model: str, version: str, limits: Limits) -> Read:
    """:func:`read_request` with the body's encoding undone."""
    accept = wire.headers.get("accept-encoding", "")
    told = wire.headers.get(HEADER)
    if told is not None and json_length(told) == 0:
        wanted = Wanted({}, otherwise=True, accept_encoding=accept)
        finish = partial(_finish_raw, model, version, body, wanted)
        return Read(Unfinished(model, version, finish), wanted)
    if not body:
        raise bad_request("the body is empty")
    forms: frozenset[Form] = frozenset()
    found = read_small(body, limits) if told is None else None
    if found is None:
        found, forms = _read_long(split(wire.headers, body, limits), limits)
    parameters = found.parameters
    streamed = parameters.get(STREAM) is True
    if streamed:
        parameters = {name: held for name, held in parameters.items() if name != STREAM}
        forms |= {Form.STREAM}
    request = InferRequest(model, version, found.id, parameters, found.inputs, found.outputs)
    wanted = Wanted(found.binary, found.otherwise or False, accept)
    placed = request.outputs if forms and Form.SHARED in forms else ()
    sequence = sequence_id(parameters)
    return Read(Parsed(request, wanted, streamed), wanted, found.id, forms, placed, sequence)


def _read_long(cut: Body, limits: Limits) -> tuple[Told, frozenset[Form]]:
    """What the JSON of ``cut`` tells, and the forms it is told in."""
    source = Source(_SIDE, Blobs(cut.binary), limits)
    top = source.members(read(cut.json, limits), "the body", _FIELDS)
    if "inputs" not in top:
        raise bad_request("inputs is missing")
    inputs = read_tensors(
        top["inputs"], "inputs", lambda node, path: read_tensor(node, path, source), limits
    )
    source.blobs.finish()
    parameters = read_parameters(top, "", source)
    otherwise, parameters = _flag(parameters, BINARY_OUTPUT, "parameters")
    outputs: dict[str, RequestedOutput] = {}
    named: dict[str, bool] = {}
    for index, item in enumerate(items(top.get("outputs", []), "outputs", limits.tensors)):
        output, binary = _read_output(item, f"outputs[{index}]", source)
        if output.name in outputs:
            raise bad_request(f"outputs has '{shown(output.name)}' twice")
        outputs[output.name] = output
        if binary is not None:
            named[output.name] = binary
    if outputs and otherwise is not None:
        source.forms.add(Form.TWO_PLACES)
    identity = string(top.get("id", ""), "id")
    check_length(len(identity), "id")
    told = Told(identity, parameters, inputs, tuple(outputs.values()), named, otherwise)
    return told, frozenset(source.forms)


def _finish_raw(
    model: str, version: str, data: Buffer, wanted: Wanted, metadata: ModelMetadata
) -> Parsed:
    """Rule 2."""
    return Parsed(InferRequest(model, version, inputs=(only_input(data, metadata),)), wanted)


def _known_datatype(spelt: str) -> Datatype | None:
    return BY_NAME.get(spelt)


def _no_data(name: str, shape: tuple[int, ...], parameters: Parameters) -> Buffer:
    del shape, parameters
    raise bad_request(f"tensor '{shown(name)}' has neither data nor {BINARY_SIZE}")


_SIDE: Final = Side(REQUEST, _known_datatype, _no_data)


def _read_output(node: Node, path: str, source: Source) -> tuple[RequestedOutput, bool | None]:
    told = source.members(node, path, ("name", "parameters"))
    parameters = read_parameters(told, path, source)
    place, parameters = read_place(parameters, path)
    if place is not None:
        source.forms.add(Form.SHARED)
    binary, parameters = _flag(parameters, BINARY, f"{path}.parameters")
    output = RequestedOutput(required_name(told, path), parameters, place)
    if class_count(output) is not None:
        source.forms.add(Form.CLASSES)
    return output, binary


def _flag(parameters: Parameters, key: str, path: str) -> tuple[bool | None, Parameters]:
    """The boolean ``key``, and the parameters less it. None: not given."""
    if key not in parameters:
        return None, parameters
    value = parameters[key]
    if not isinstance(value, bool):
        raise bad_request(f"{path}.{key} must be a boolean, not {kind(value)}")
    return value, {name: held for name, held in parameters.items() if name != key}


# ---- write ------------------------------------------------------------------------------------


def write_request(operation: InferRequest, profile: Profile) -> HttpRequest:
    """The request for a server of ``profile``: binary where it takes that, else JSON."""
    head: dict[str, Any] = {}
    if operation.id:
        head["id"] = operation.id
    parameters = write_parameters(operation.parameters, "request")
    binary_output = profile.binary and not operation.outputs
    if binary_output:
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
        extra = {BINARY: True} if profile.binary else {}
        head["outputs"] = [_write_output(output, extra) for output in operation.outputs]
    text = dump(head)
    headers = {"content-type": BINARY_TYPE if profile.binary else JSON_TYPE}
    if profile.binary:
        headers[HEADER] = str(len(text))
    return HttpRequest(
        "POST", infer_path(operation.model, operation.version, profile), "", headers, [text, *parts]
    )


def infer_path(model: str, version: str, profile: Profile) -> str:
    """Where a server of ``profile`` takes inferences of ``model``."""
    return model_path(model, version if profile.versions else "", "/infer")


def _write_output(output: RequestedOutput, extra: Parameters) -> dict[str, Any]:
    told: dict[str, Any] = {"name": output.name}
    if output.place is not None:
        extra = write_place(output.place)
    parameters = {**write_parameters(output.parameters, output.name), **extra}
    if parameters:
        told["parameters"] = parameters
    return told


def _in_json(tensor: Tensor, profile: Profile) -> dict[str, Any]:
    """The object of ``tensor`` with its data, for a server that takes no binary data."""
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
        f"tensor '{tensor.name}': BYTES that are not UTF-8 cannot be told in JSON, and this "
        "server takes no binary data",
    )


_NUMPY_WORDS: Final = (b"null", b'"Infinity"', b'"-Infinity"')
"""NaN, Infinity and -Infinity for MLServer, which refuses bare words: numpy reads these."""

"""Rules for what an inference loses on the way through each protocol.

Everything else arrives unchanged. Each rule names the row of docs/fidelity-*.md that documents it,
by the row's first cell, and has an example that it changes or refuses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from infergate.core.datatypes import FLOATS, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, RequestedOutput
from infergate.core.tensor import Parameters, Tensor, pack_bytes, unpack_bytes

JSON, BINARY = "v2-rest json", "v2-rest binary"
RAW, TYPED = "v2-grpc raw", "v2-grpc typed"
GRAPHPIPE = "graphpipe"
OLD_HTTP, OLD_GRPC = "trtis-http", "trtis-grpc"
NAMES = (JSON, BINARY, RAW, TYPED, GRAPHPIPE, OLD_HTTP, OLD_GRPC)
REST, GRPC, OLD = (JSON, BINARY), (RAW, TYPED), (OLD_HTTP, OLD_GRPC)

Message = TypeVar("Message", InferRequest, InferResponse)
Asks = Callable[[InferRequest, ModelMetadata], InferRequest]
Tells = Callable[[InferResponse, InferRequest, ModelMetadata], InferResponse]


def _request_unchanged(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    return request


def _response_unchanged(
    response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    del request, model
    return response


@dataclass(frozen=True)
class Rule:
    """``asks`` maps a request to the one that arrives, ``tells`` a response. Either raises
    GatewayError with the expected kind if the codec refuses it. ``row`` is a file and a row."""

    what: str
    forms: Sequence[str]
    row: tuple[str, str]
    example: InferRequest | InferResponse
    asks: Asks = _request_unchanged
    tells: Tells = _response_unchanged


class Refused(Exception):  # noqa: N818 - it is what is expected
    """The kinds of the error: codecs check several mistakes in different orders."""

    def __init__(self, kinds: frozenset[Kind]) -> None:
        super().__init__(kinds)
        self.kinds = kinds


def _through(form: str, message: Message, apply: Callable[[Rule, Message], Message]) -> Message:
    kinds: set[Kind] = set()
    for rule in RULES:
        if form in rule.forms:
            try:
                message = apply(rule, message)
            except GatewayError as error:
                kinds.add(error.kind)
    if kinds:
        raise Refused(frozenset(kinds))
    return message


def request_after(form: str, request: InferRequest, model: ModelMetadata) -> InferRequest:
    """Return what is left of ``request`` after a trip over ``form``, or raise Refused."""
    return _through(form, request, lambda rule, each: rule.asks(each, model))


def response_after(
    form: str, response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    """Return what is left of the response to ``request``, or raise Refused."""
    return _through(form, response, lambda rule, each: rule.tells(each, request, model))


# ---- of all parameters, of all tensors -------------------------------------------------------


def _parameters(message: Message, change: Callable[[Parameters], Parameters]) -> Message:
    """Remove parameters of the message and of its tensors."""
    outputs = tuple(replace(each, parameters=change(each.parameters)) for each in message.outputs)
    changed = replace(message, parameters=change(message.parameters), outputs=outputs)
    if isinstance(changed, InferResponse):
        return changed
    inputs = tuple(replace(each, parameters=change(each.parameters)) for each in changed.inputs)
    return replace(changed, inputs=inputs)


def _both(change: Callable[[Parameters], Parameters]) -> dict[str, Any]:
    return {
        "asks": lambda request, _: _parameters(request, change),
        "tells": lambda response, _, __: _parameters(response, change),
    }


def _tensors(change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {
        "asks": lambda request, _: replace(request, inputs=tuple(map(change, request.inputs))),
        "tells": lambda response, _, __: replace(
            response, outputs=tuple(map(change, response.outputs))
        ),
    }


def _refused(kind: Kind) -> GatewayError:
    return GatewayError(kind, kind.value)


# ---- V2 REST ---------------------------------------------------------------------------------


def _finite(parameters: Parameters) -> Parameters:
    if any(isinstance(value, float) and not math.isfinite(value) for value in parameters.values()):
        raise _refused(Kind.UNSUPPORTED)
    return parameters


_OF_FORM = ("binary_data", "binary_data_size", "binary_data_output")


def _without_form(parameters: Parameters) -> Parameters:
    return {name: value for name, value in parameters.items() if name not in _OF_FORM}


def _no_dots(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    if {request.model, request.version} & {".", ".."}:
        raise _refused(Kind.UNSUPPORTED)
    return request


_NAN = {
    Datatype.FP16: 0x7E00,
    Datatype.BF16: 0x7FC0,
    Datatype.FP32: 0x7FC0_0000,
    Datatype.FP64: 0x7FF8_0000_0000_0000,
}


def _one_nan(tensor: Tensor) -> Tensor:
    if tensor.datatype not in FLOATS:
        return tensor
    bits = np.frombuffer(tensor.data, f"<u{tensor.datatype.itemsize}").copy()
    bits[np.isnan(tensor.numpy().ravel())] = _NAN[tensor.datatype]
    return replace(tensor, data=bits.tobytes())


def _is_text(tensor: Tensor) -> bool:
    try:
        for element in unpack_bytes(tensor.data):
            element.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text_only(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    if not all(t.datatype is not Datatype.BYTES or _is_text(t) for t in request.inputs):
        raise _refused(Kind.UNSUPPORTED)
    return request


# ---- V2 gRPC ---------------------------------------------------------------------------------


def _without_null(parameters: Parameters) -> Parameters:
    return {name: value for name, value in parameters.items() if value is not None}


def _as_text(parameters: Parameters) -> Parameters:
    return {
        name: json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else value
        for name, value in parameters.items()
    }


# ---- GraphPipe -------------------------------------------------------------------------------


def _no_names(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    return replace(request, model="m", version="", id="")


def _names_of(
    response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    del model
    return replace(response, model=request.model, version=request.version, id=request.id)


def _json_config(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    numbers = [v for v in request.parameters.values() if isinstance(v, float)]
    if not all(map(math.isfinite, numbers)):
        raise _refused(Kind.BAD_REQUEST)
    return request


def _bare_tensors(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    return replace(
        request,
        inputs=tuple(replace(each, parameters={}) for each in request.inputs),
        outputs=tuple(replace(each, parameters={}) for each in request.outputs),
    )


def _bare_answer(
    response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    del request, model
    outputs = tuple(replace(each, parameters={}) for each in response.outputs)
    return replace(response, parameters={}, outputs=outputs)


def _without_datatypes(lacking: frozenset[Datatype]) -> dict[str, Any]:
    def check(tensor: Tensor) -> Tensor:
        if tensor.datatype in lacking:
            raise _refused(Kind.UNSUPPORTED)
        return tensor

    return _tensors(check)


def _by_metadata(request: InferRequest, model: ModelMetadata) -> InferRequest:
    known = [metadata.name for metadata in model.outputs]
    if request.outputs:
        outputs = sorted(request.outputs, key=lambda output: known.index(output.name))
    elif {metadata.name for metadata in model.inputs}.isdisjoint(known):
        outputs = list(map(RequestedOutput, known))
    else:
        outputs = []
    return replace(request, outputs=tuple(outputs))


def _outputs_as_requested(
    response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    wanted = [output.name for output in request.outputs] or [
        declared.name for declared in model.outputs
    ]
    given = {tensor.name: tensor for tensor in response.outputs}
    return replace(response, outputs=tuple(given[name] for name in wanted))


# ---- the legacy API --------------------------------------------------------------------------


def _all_outputs(request: InferRequest, model: ModelMetadata) -> InferRequest:
    if request.outputs:
        return request
    return replace(
        request, outputs=tuple(RequestedOutput(declared.name) for declared in model.outputs)
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _numbered(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    number = int(request.id) if _digits(request.id) else 0
    return replace(request, id=str(number) if 0 < number < 2**64 else "")


def _version_number(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    if not request.version:
        return request
    if not _digits(request.version):
        raise _refused(Kind.BAD_REQUEST)
    return replace(request, version=str(int(request.version)))


def _response_version(
    response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    del request, model
    number = int(response.version) if _digits(response.version) else 0
    return replace(response, version=str(number) if number else "")


def _own_parameters(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    kept = {n: request.parameters.get(n) for n in ("sequence_id", "priority", "timeout")}
    numbers = {name: int(value) for name, value in kept.items() if value is not None}
    flags = {n: True for n in ("sequence_start", "sequence_end") if request.parameters.get(n)}
    return replace(request, parameters={**{n: v for n, v in numbers.items() if v}, **flags})


def _known_datatypes(request: InferRequest, model: ModelMetadata) -> InferRequest:
    wanted = {output.name for output in request.outputs}
    given = {tensor.name for tensor in request.inputs}
    used = [declared for declared in model.inputs if declared.name in given]
    used += [declared for declared in model.outputs if not wanted or declared.name in wanted]
    if any(declared.datatype == "BF16" for declared in used):
        raise _refused(Kind.UNSUPPORTED)
    return request


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~-")


def _in_a_path(request: InferRequest, model: ModelMetadata) -> InferRequest:
    del model
    if "/" in request.model:
        raise _refused(Kind.NOT_FOUND)
    if not _PLAIN.issuperset(request.model) or request.model in (".", ".."):
        raise _refused(Kind.UNSUPPORTED)
    return request


def _name_and_id_of(
    response: InferResponse, request: InferRequest, model: ModelMetadata
) -> InferResponse:
    del model
    return replace(response, model=request.model, id=request.id)


# ---- the table -------------------------------------------------------------------------------

_X = Tensor("X", Datatype.UINT8, (1,), b"\x07")
_Y = Tensor("Y", Datatype.UINT8, (1,), b"\x07")
_Z = Tensor("Z", Datatype.UINT8, (1,), b"\x08")
_V2, _PIPE, _TRT = "fidelity-v2.md", "fidelity-graphpipe.md", "fidelity-trtis.md"


def request_of(*inputs: Tensor, **fields: Any) -> InferRequest:
    return InferRequest("m", **{"inputs": inputs or (_X,), **fields})


def response_of(*outputs: Tensor, **fields: Any) -> InferResponse:
    return InferResponse(**{"model": "m", "outputs": outputs or (_Y,), **fields})


def _of(datatype: Datatype, data: bytes) -> Tensor:
    return Tensor("X", datatype, (1,), data)


RULES: tuple[Rule, ...] = (
    Rule(
        "no model or version is called '.'",
        REST,
        (_V2, "Names in paths"),
        request_of(version=".."),
        asks=_no_dots,
    ),
    Rule(
        "parameters that tell a form tell nothing any more",
        REST,
        (_V2, "`binary_data`, `binary_data_size`, `binary_data_output` as parameters"),
        request_of(parameters={"binary_data_size": 4}),
        **_both(_without_form),
    ),
    Rule(
        "infinity is no parameter",
        REST,
        (_V2, "Parameters that are NaN or Infinity"),
        request_of(parameters={"p": math.inf}),
        **_both(_finite),
    ),
    Rule(
        "strings have to be text",
        [JSON],
        (_V2, "BYTES that are not UTF-8, in JSON requests"),
        request_of(_of(Datatype.BYTES, pack_bytes([b"\xff"]))),
        asks=_text_only,
    ),
    Rule(
        "NaN is one word",
        [JSON],
        (_V2, "Sign and payload of NaN in JSON"),
        request_of(_of(Datatype.FP32, b"\x01\x00\x80\xff")),
        **_tensors(_one_nan),
    ),
    Rule(
        "null is no parameter",
        GRPC,
        (_V2, "Lists, objects and null, from REST to gRPC"),
        request_of(parameters={"p": None}),
        **_both(_without_null),
    ),
    Rule(
        "lists and objects are text",
        GRPC,
        (_V2, "Lists, objects and null, from REST to gRPC"),
        request_of(parameters={"p": [1, {"a": None}]}),
        **_both(_as_text),
    ),
    Rule(
        "datatypes that GraphPipe lacks",
        [GRAPHPIPE],
        (_PIPE, "BOOL and BF16"),
        request_of(_of(Datatype.BOOL, b"\1")),
        **_without_datatypes(frozenset({Datatype.BOOL, Datatype.BF16})),
    ),
    Rule(
        "a listener's model, no version, no id",
        [GRAPHPIPE],
        (_PIPE, "Ids, versions and model names"),
        request_of(id="1", version="3"),
        asks=_no_names,
    ),
    Rule(
        "what was asked for is what is answered",
        [GRAPHPIPE],
        (_PIPE, "Ids, versions and model names"),
        response_of(model="other", version="3", id="1"),
        tells=_names_of,
    ),
    Rule(
        "parameters are JSON",
        [GRAPHPIPE],
        (_PIPE, "Parameters towards GraphPipe servers"),
        request_of(parameters={"p": math.inf}),
        asks=_json_config,
    ),
    Rule(
        "tensors have no parameters",
        [GRAPHPIPE],
        (_PIPE, "Parameters of tensors and of responses"),
        request_of(replace(_X, parameters={"p": 1})),
        asks=_bare_tensors,
    ),
    Rule(
        "answers have no parameters",
        [GRAPHPIPE],
        (_PIPE, "Parameters of tensors and of responses"),
        response_of(parameters={"p": 1}),
        tells=_bare_answer,
    ),
    Rule(
        "outputs are asked for in the metadata's order, all where none were",
        [GRAPHPIPE],
        (_PIPE, "Order of requested outputs"),
        request_of(outputs=(RequestedOutput("Z"), RequestedOutput("Y"))),
        asks=_by_metadata,
    ),
    Rule(
        "outputs are told as they were asked for",
        [GRAPHPIPE],
        (_PIPE, "Order of outputs, repeated outputs"),
        response_of(_Z, _Y),
        tells=_outputs_as_requested,
    ),
    Rule(
        "names that no path can hold",
        [OLD_HTTP],
        (_TRT, "Names in paths"),
        replace(request_of(), model="a b"),
        asks=_in_a_path,
    ),
    Rule(
        "versions are numbers",
        OLD,
        (_TRT, "Versions"),
        request_of(version="v2"),
        asks=_version_number,
    ),
    Rule(
        "datatypes that the legacy API lacks",
        OLD,
        (_TRT, "BF16 and datatypes without a legacy name"),
        request_of(_of(Datatype.BF16, b"\0\0")),
        asks=_known_datatypes,
    ),
    Rule("ids are numbers", OLD, (_TRT, "Ids"), request_of(id="a-1"), asks=_numbered),
    Rule(
        "parameters that the header has a field for",
        OLD,
        (_TRT, "Other parameters of requests and tensors"),
        request_of(parameters={"p": 1}),
        asks=_own_parameters,
    ),
    Rule(
        "tensors of the legacy API have no parameters",
        OLD,
        (_TRT, "Other parameters of requests and tensors"),
        request_of(replace(_X, parameters={"p": 1})),
        asks=_bare_tensors,
    ),
    Rule(
        "all outputs where none were asked for",
        OLD,
        (_TRT, "Outputs"),
        request_of(),
        asks=_all_outputs,
    ),
    Rule(
        "answers of the legacy API have no parameters",
        OLD,
        (_TRT, "Other parameters of requests and tensors"),
        response_of(parameters={"p": 1}),
        tells=_bare_answer,
    ),
    Rule(
        "outputs are given in the order asked",
        OLD,
        (_TRT, "Order of outputs"),
        response_of(_Z, _Y),
        tells=_outputs_as_requested,
    ),
    Rule(
        "the id and the model are the request's",
        OLD,
        (_TRT, "Ids"),
        response_of(model="other", id="2"),
        tells=_name_and_id_of,
    ),
    Rule(
        "versions that are no numbers are not told",
        OLD,
        (_TRT, "A model whose server reports no version"),
        response_of(version="v2"),
        tells=_response_version,
    ),
)

"""The messages of ModelStreamInfer, in Triton's form and in MLServer's.

*Strategy.* Triton wraps each answer in a ModelStreamInferResponse: ``error_message`` (1) or
``infer_response`` (2). MLServer and Seldon give the ModelInferResponse itself. That always has an
id (3) or outputs (5), and the wrapping has no field above 2: so the two are told apart, whatever
the server is called.

*Rule 1.* A parameter tells of each answer in Triton's form whether it is the last of its request.
It is true of the one answer of a model that gives one. Decoupled models know only afterwards: a
request that sets another parameter gets an empty answer then.
*Rule 2.* ``error_message`` is a text without a code: what kind of error it is, its words tell
(``wording``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from infergate.codecs.base import Parsed
from infergate.codecs.protos.scan import (
    DELIMITED,
    UNDECODABLE,
    Malformed,
    fields,
    prefix,
    strings,
)
from infergate.codecs.v2_grpc import infer_response, wording
from infergate.codecs.v2_grpc.descriptions import MOST_FIELDS, most_fields
from infergate.codecs.v2_grpc.messages import ModelInferResponse, ModelStreamInferResponse
from infergate.core.errors import GatewayError, Origin, garbage
from infergate.core.limits import MIB, Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, joined, size

_FINAL: Final = "triton_final_response"
_WANTS_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_WANTS_STATUS: Final = "triton_grpc_error"
"""Metadata."""
_MAX_TEXT: Final = MIB
"""Bytes of a server's error message, and of the model and the id that an error repeats."""
# ModelStreamInferResponse
_ERROR: Final = 1
_ANSWER: Final = 2
# ModelInferRequest
_MODEL: Final = 1
_ID: Final = 3


@dataclass(frozen=True, slots=True)
class _Reply:
    """``empty_final``: the client waits for an answer that is told to be the last."""

    empty_final: bool


_NO_EMPTY_FINAL: Final = _Reply(empty_final=False)

# ---- towards clients


def parsed(request: InferRequest) -> Parsed:
    """``request`` without the parameter that is for the stream's server, which is the gateway.
    Clients set it outside streams too, where nothing follows from it, and Triton refuses it over
    REST."""
    if _WANTS_EMPTY_FINAL not in request.parameters:
        return Parsed(request, _NO_EMPTY_FINAL)
    parameters = dict(request.parameters)
    wanted = parameters.pop(_WANTS_EMPTY_FINAL)
    return Parsed(replace(request, parameters=parameters), _Reply(empty_final=wanted is True))


def marked(answer: InferResponse) -> InferResponse:
    """``answer`` telling whether it is the last (Rule 1)."""
    return replace(answer, parameters={**answer.parameters, _FINAL: answer.last})


def wrapped(answer: RpcResponse) -> RpcResponse:
    """A ModelInferResponse as a ModelStreamInferResponse."""
    return RpcResponse((prefix(_ANSWER, size(answer.message)), *answer.message))


def build_end(asked: Parsed) -> RpcResponse | None:
    """See ``Streaming.build_stream_end``."""
    request = asked.operation
    if not asked.reply.empty_final or not isinstance(request, InferRequest):
        return None
    return _bare(request.model, request.id)


def wants_status(wire: RpcRequest) -> bool:
    """Whether the client wants errors as a status."""
    return wire.metadata.get(_WANTS_STATUS) == "true"


def build_error(error: GatewayError, wire: RpcRequest) -> RpcResponse:
    """``error`` and as much of ``wire`` as can be read: its model and id."""
    try:
        told = strings(joined(wire.message), frozenset({_MODEL, _ID}), MOST_FIELDS, _MAX_TEXT)
    except Malformed:
        told = {}
    text = error.public.encode("utf-8", "replace").decode()
    return _bare(told.get(_MODEL, ""), told.get(_ID, ""), text)


def _bare(model: str, number: str, error: str = "") -> RpcResponse:
    """An answer without outputs, the last."""
    answer = ModelInferResponse(model_name=model, id=number)
    answer.parameters[_FINAL].bool_param = True
    message = ModelStreamInferResponse(error_message=error, infer_response=answer)
    return RpcResponse((message.SerializeToString(deterministic=True),))


# ---- towards backends


def read_response(message: Buffer, limits: Limits, asked: InferRequest) -> InferResponse | None:
    """The answer to ``asked`` in a backend's ``message`` of either form; None for Triton's last one
    that is empty.

    Raises the backend's error, or BACKEND_GARBAGE.
    """
    try:
        inner = _unwrapped(message, limits, asked)
    except Malformed as error:
        raise garbage("the backend's ModelStreamInferResponse cannot be read", str(error)) from None
    answer = infer_response.read_response((inner,), limits, asked)
    if _FINAL not in answer.parameters:
        return answer
    parameters = dict(answer.parameters)
    last = parameters.pop(_FINAL) is True
    if last and not answer.outputs:
        return None
    return replace(answer, parameters=parameters, last=last)


def _unwrapped(message: Buffer, limits: Limits, asked: InferRequest) -> Buffer:
    """The ModelInferResponse in ``message``, or all of it. Raises Malformed, and the error told."""
    found = {field.number: field for field in fields(message, most_fields(limits))}
    if max(found, default=0) > _ANSWER:
        return message
    error = strings(message, frozenset({_ERROR}), MOST_FIELDS, _MAX_TEXT).get(_ERROR, "")
    if error:
        raise GatewayError(wording.kind_of(error, asked.id), error, origin=Origin.BACKEND)
    field = found.get(_ANSWER)
    if field is None or field.wire_type != DELIMITED:
        raise Malformed(UNDECODABLE)
    return memoryview(message)[field.value : field.end]

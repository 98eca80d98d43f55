"""Inferences with any number of answers: a stream of events, each the JSON of one answer.

Clients ask for one by ``generate_stream``, by MLServer's ``infer_stream``, whose request is that of
``infer``, or by ``stream: true`` among the parameters of ``infer``.

*Rule 1.* An event is JSON: there is no place for binary data, nor for an encoding of its own.
*Rule 2.* Of servers, Triton is asked by ``generate_stream``, and only for a model that it says is
decoupled: of any other ``infer`` tells more. MLServer is asked by ``infer_stream``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from infergate.codecs.base import Parsed, Profile, Unfinished
from infergate.codecs.v2_rest import infer_request, infer_response
from infergate.codecs.v2_rest.errors import backend_error
from infergate.codecs.v2_rest.generate import Flat, read_generate
from infergate.codecs.v2_rest.generate_backend import EVENTS, read_generated, write_generate
from infergate.codecs.v2_rest.paths import Place, model_path
from infergate.core import events
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, joined

OURS: Final = frozenset({"generate", "generate_stream", "infer_stream"})
"""Ways to ask for an inference that few servers know: read here, whoever is behind."""
_HEADERS: Final = {"content-type": f"{events.TYPE}; charset=utf-8"}
_ABSENT: Final = frozenset({404, 405})
"""How a server answers that has no such path. It may also be the model that is not there: the
question that follows then tells."""

# ---- towards clients --------------------------------------------------------------------------


def read_request(wire: HttpRequest, place: Place, limits: Limits) -> Parsed | Unfinished[Parsed]:
    """The inference that is asked for at ``place``. Raises what the client did wrong."""
    if place.verb == "infer_stream":
        found = infer_request.read_request(wire, place.model, place.version, limits)
        if isinstance(found, Parsed):
            return replace(found, streamed=True)
        return replace(found, finish=partial(_finish_streamed, found))
    streamed = place.verb == "generate_stream"
    return read_generate(wire, place.model, place.version, limits, streamed=streamed)


def _finish_streamed(unfinished: Unfinished[Parsed], metadata: ModelMetadata) -> Parsed:
    return replace(unfinished.finish(metadata), streamed=True)


def plainly(parsed: Parsed) -> Parsed:
    """Rule 1."""
    return parsed if isinstance(parsed.reply, Flat) else replace(parsed, reply=None)


def event(text: Sequence[Buffer]) -> HttpResponse:
    """An answer that begins with the event of ``text``, or with none."""
    return HttpResponse(200, _HEADERS, events.written(joined(text)) if text else ())


# ---- towards backends -------------------------------------------------------------------------


def build_request(
    operation: InferRequest, profile: Profile, model: ModelMetadata | None
) -> HttpRequest | None:
    """Rule 2. None: ``infer`` is to be asked. Raises UNSUPPORTED for what cannot be told."""
    if profile.generates:
        return write_generate(operation, model) if model and model.decoupled else None
    if not profile.streams_infer:
        return None
    wire = infer_request.write_request(operation, replace(profile, binary=False))
    version = operation.version if profile.versions else ""
    path = model_path(operation.model, version, "/infer_stream")
    return replace(wire, path=path, headers=EVENTS)


def read_response(
    wire: HttpResponse, operation: InferRequest, limits: Limits, model: ModelMetadata | None
) -> InferResponse:
    """The answer in one event, or in an answer that is none. ``model`` where ``generate_stream``
    was asked. Raises the backend's error, BACKEND_GARBAGE, UNSUPPORTED."""
    if wire.status in _ABSENT:
        raise GatewayError(
            Kind.UNSUPPORTED, "the backend has no streams over REST", origin=Origin.BACKEND
        )
    kind = wire.headers.get("content-type", "")
    if model is None or not (wire.status == 200 or kind.startswith(events.TYPE)):
        if wire.status != 200:
            raise backend_error(wire.status, wire.headers, bytes(joined(wire.body)))
        return infer_response.read_response(wire, operation, limits)
    return read_generated(wire, operation, limits, model)

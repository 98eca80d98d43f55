"""Inferences with any number of responses: a stream of events, each with one response as JSON.

Clients request a stream with ``generate_stream``, with MLServer's ``infer_stream``, whose body is
that of ``infer``, or with ``stream: true`` in the parameters of ``infer``.

*Rule 1.* An event is JSON: it has neither binary data nor its own content encoding.
*Rule 2.* Towards backends, Triton's ``generate_stream`` is used only for a model that Triton
declares decoupled, because for any other model ``infer`` carries more information. MLServer's
``infer_stream`` is used for all models.
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
"""Kinds of inference requests that few servers understand; the gateway always translates them."""
_HEADERS: Final = {"content-type": f"{events.TYPE}; charset=utf-8"}
_ABSENT: Final = frozenset({404, 405})
"""Statuses of a server without such a path. They may also mean that the model does not exist; the
unary request that follows reports that."""

# ---- towards clients --------------------------------------------------------------------------


def read_request(wire: HttpRequest, place: Place, limits: Limits) -> Parsed | Unfinished[Parsed]:
    """Parse the inference at the path of ``match``. Raises the client's errors."""
    if place.verb == "infer_stream":
        parsed = infer_request.read_request(wire, place.model, place.version, limits)
        if isinstance(parsed, Parsed):
            return replace(parsed, streamed=True)
        return replace(parsed, finish=partial(_finish_streamed, parsed))
    wants_stream = place.verb == "generate_stream"
    return read_generate(wire, place.model, place.version, limits, streamed=wants_stream)


def _finish_streamed(unfinished: Unfinished[Parsed], metadata: ModelMetadata) -> Parsed:
    return replace(unfinished.finish(metadata), streamed=True)


def plainly(parsed: Parsed) -> Parsed:
    """Return ``parsed`` with its outputs requested as JSON (Rule 1)."""
    return parsed if isinstance(parsed.reply, Flat) else replace(parsed, reply=None)


def event(text: Sequence[Buffer]) -> HttpResponse:
    """Return a response whose body begins with one event of ``text``, or without an event."""
    return HttpResponse(200, _HEADERS, events.written(joined(text)) if text else ())


# ---- towards backends -------------------------------------------------------------------------


def build_request(
    operation: InferRequest, profile: Profile, model: ModelMetadata | None
) -> HttpRequest | None:
    """Build a streaming request (Rule 2), or return None if ``infer`` must be used. Raises
    UNSUPPORTED for an inference that a stream cannot express."""
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
    """Parse one event, or a response that is not a stream. ``model`` is given if
    ``generate_stream`` was requested. Raises the backend's error, BACKEND_GARBAGE or
    UNSUPPORTED."""
    if wire.status in _ABSENT:
        raise GatewayError(
            Kind.UNSUPPORTED, "the backend has no streams over REST", origin=Origin.BACKEND
        )
    content_type = wire.headers.get("content-type", "")
    if model is None or not (wire.status == 200 or content_type.startswith(events.TYPE)):
        if wire.status != 200:
            raise backend_error(wire.status, wire.headers, bytes(joined(wire.body)))
        return infer_response.read_response(wire, operation, limits)
    return read_generated(wire, operation, limits, model)

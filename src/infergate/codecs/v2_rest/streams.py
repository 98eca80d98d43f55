"""Inferences with any number of responses, which are sent as a stream of events. Each event is a
response as JSON.

Clients request a stream with ``generate_stream``, with MLServer's ``infer_stream``, or with
``stream: true`` in the parameters of ``infer``. The gateway requests streams from MLServer with
``infer_stream``. The gateway uses Triton's ``generate_stream`` only for decoupled models, because
``infer`` carries more information.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from infergate.codecs.base import ParsedRequest, PartialInferRequest, Profile
from infergate.codecs.v2_rest import infer_request, infer_response
from infergate.codecs.v2_rest.errors import backend_error
from infergate.codecs.v2_rest.generate_backend import (
    EVENT_STREAM_HEADERS,
    read_generate_response,
    write_generate_request,
)
from infergate.codecs.v2_rest.generate_frontend import read_generate_request
from infergate.codecs.v2_rest.paths import V2PathMatch, model_path
from infergate.core import server_sent_events
from infergate.core.errors import Kind, backend_failure
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, join_parts

_HEADERS: Final = {"content-type": f"{server_sent_events.EVENT_STREAM_TYPE}; charset=utf-8"}
_NO_STREAM_STATUSES: Final = frozenset({404, 405})
"""The statuses for an unknown path. Servers also return them for an unknown model. In both cases,
the gateway then sends a unary request. If the model is unknown, the response to this request is an
error."""

# ---- for clients ------------------------------------------------------------------------------


def read_request(
    wire: HttpRequest, match: V2PathMatch, limits: Limits
) -> ParsedRequest | PartialInferRequest[ParsedRequest]:
    """Parse an inference request whose path is ``match``. Raises client errors and
    NeedsOffloadError."""
    if match.action == "infer_stream":
        parsed = infer_request.read_request(wire, match.model, match.version, limits)
        if isinstance(parsed, ParsedRequest):
            return replace(parsed, wants_stream=True)
        return replace(parsed, complete=partial(_complete_streamed, parsed))
    wants_stream = match.action == "generate_stream"
    return read_generate_request(
        wire, match.model, match.version, limits, wants_stream=wants_stream
    )


def _complete_streamed(
    partial_request: PartialInferRequest[ParsedRequest], metadata: ModelMetadata
) -> ParsedRequest:
    return replace(partial_request.complete(metadata), wants_stream=True)


def event_response(text: Sequence[Buffer]) -> HttpResponse:
    """Return a response whose body is an event with ``text``, or is empty if ``text`` is empty."""
    return HttpResponse(
        200, _HEADERS, server_sent_events.format_event(join_parts(text)) if text else ()
    )


# ---- for backends -----------------------------------------------------------------------------


def build_request(
    operation: InferRequest, profile: Profile, model: ModelMetadata | None
) -> HttpRequest | None:
    """Build a request for a stream, or return None if the gateway must send a unary request. Raises
    UNSUPPORTED."""
    if profile.has_generate_stream:
        return write_generate_request(operation, model) if model and model.decoupled else None
    if not profile.has_infer_stream:
        return None
    wire = infer_request.write_request(operation, replace(profile, supports_binary=False))
    version = operation.version if profile.accepts_versions else ""
    path = model_path(operation.model, version, "/infer_stream")
    return replace(wire, path=path, headers=EVENT_STREAM_HEADERS)


def read_response(
    wire: HttpResponse, operation: InferRequest, limits: Limits, model: ModelMetadata | None
) -> InferResponse:
    """Parse one event, or a response that is not a stream. ``model`` is the model's metadata if
    ``generate_stream`` was requested, and None for other requests. Raises the backend's error,
    BACKEND_GARBAGE, UNSUPPORTED and NeedsOffloadError."""
    if wire.status in _NO_STREAM_STATUSES:
        raise backend_failure(Kind.UNSUPPORTED, "the backend does not support streams over REST")
    content_type = wire.headers.get("content-type", "")
    if model is None or not (
        wire.status == 200 or content_type.startswith(server_sent_events.EVENT_STREAM_TYPE)
    ):
        if wire.status != 200:
            raise backend_error(wire.status, wire.headers, bytes(join_parts(wire.body)))
        return infer_response.read_response(wire, operation, limits)
    return read_generate_response(wire, operation, limits, model)

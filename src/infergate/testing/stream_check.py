"""Checks a codec's implementation of ``SupportsStreaming``, for clients and for backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.base import CodecPlugin, ParsedRequest, Profile, SupportsStreaming
from infergate.codecs.profiles import GENERIC
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.core.server_sent_events import EventStreamParser
from infergate.core.wire import HttpResponse, join_parts
from infergate.testing import samples
from infergate.testing.canonical import assert_same
from infergate.testing.vectors import completed

_MAX_EVENT_BYTES: Final = 1 << 20


def check_stream(
    plugin: CodecPlugin, *, options: Mapping[str, Any] | None = None, profile: Profile = GENERIC
) -> None:
    """Check that the responses of a stream arrive unchanged, and that an error arrives as an error.
    Raises AssertionError, which names the broken invariant.

    The codec of ``plugin`` must implement ``SupportsStreaming``, and the protocol must represent
    inferences without loss. ``profile`` is a kind of server that supports streams."""
    codec: Any = plugin.create(options or {})
    has_streams = isinstance(codec, SupportsStreaming)
    assert has_streams, f"{plugin.name}: the codec does not implement SupportsStreaming"
    assert codec.capabilities.supports_streaming, (
        f"{plugin.name}: capabilities.supports_streaming is false"
    )
    for datatype in sorted(codec.capabilities.datatypes, key=lambda datatype: datatype.value):
        for request, response in samples.inferences(datatype):
            model = samples.metadata_for(request, response)
            wire = codec.build_stream_request(request, profile, model)
            assert wire is not None, (
                f"build_stream_request returns None for the profile {profile.name}; pass a profile "
                "that supports streams"
            )
            parsed = completed(codec.parse_request(wire, DEFAULT_LIMITS), model)
            assert_same("request of a stream", request, parsed.operation)
            assert parsed.wants_stream or codec.streaming_method, "the request is not for a stream"
            _check_responses(codec, request, parsed, response, model)
            _check_error(codec, request, wire, model)


def _check_responses(
    codec: Any,
    request: InferRequest,
    parsed: ParsedRequest,
    response: InferResponse,
    model: ModelMetadata | None,
) -> None:
    received = []
    for sent in (response, replace(response, is_last=True)):
        for wire in _messages(codec.build_stream_response(sent, parsed)):
            result = codec.parse_stream_response(wire, request, DEFAULT_LIMITS, model)
            received += [] if result is None else [result]
    assert len(received) == 2, f"{len(received)} instead of 2 responses arrived"
    for result in received:
        assert_same("response of a stream", response, replace(result, is_last=False))
    end = codec.build_stream_end(parsed)
    for wire in () if end is None else _messages(end):
        codec.parse_stream_response(wire, request, DEFAULT_LIMITS, model)


def _check_error(codec: Any, request: InferRequest, wire: Any, model: ModelMetadata | None) -> None:
    error = GatewayError(Kind.BACKEND_ERROR, "what went wrong")
    texts = []
    for message in _messages(codec.build_stream_error(error, wire)):
        try:
            codec.parse_stream_response(message, request, DEFAULT_LIMITS, model)
        except GatewayError as parsed:
            texts.append(parsed.public)
    assert texts, "the error of a stream is parsed as a response"
    assert "what went wrong" in texts[0], f"the error arrives as {texts[0]!r}"


def _messages(wire: Any) -> list[Any]:
    """Return the messages that the transport extracts from ``wire``: the events of an HTTP
    response, or ``wire`` itself."""
    if not isinstance(wire, HttpResponse):
        return [wire]
    parser = EventStreamParser(_MAX_EVENT_BYTES)
    parser.feed(bytes(join_parts(wire.body)) if wire.body else b"")
    events = []
    while (event := parser.next_event()) is not None:
        events.append(replace(wire, body=[event]))
    return events

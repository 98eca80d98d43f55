"""Checks that a codec follows the interface in ``infergate.codecs.base``.

Start with ``check_codec``, which needs neither a server nor the package Hypothesis."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from infergate.codecs.base import (
    Codec,
    CodecPlugin,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    SupportsContentEncoding,
    SupportsPassThrough,
    TransportKind,
)
from infergate.codecs.profiles import GENERIC
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.sequences import SEQUENCE_ID
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.testing import samples
from infergate.testing.canonical import assert_same
from infergate.testing.vectors import body_of, completed, with_body

LossyRoundTrip = Callable[[Any], Any]
"""Returns the canonical value after a round trip over the protocol, without the parts that the
protocol cannot represent."""
ServerResponse = Callable[[Operation, Response], Response]
"""Maps the response that the client expects to the response that the server must send."""

_WIRE_TYPES: Final[dict[TransportKind, tuple[type, type]]] = {
    TransportKind.HTTP: (HttpRequest, HttpResponse),
    TransportKind.GRPC: (RpcRequest, RpcResponse),
}


def _lossless(value: Any) -> Any:
    return value


def _same_response(operation: Operation, response: Response) -> Response:
    del operation
    return response


def check_codec(
    plugin: CodecPlugin,
    *,
    options: Mapping[str, Any] | None = None,
    profile: Profile = GENERIC,
    round_trip: LossyRoundTrip = _lossless,
    server_response: ServerResponse = _same_response,
) -> None:
    """Check the invariants of the codec of ``plugin``. Raises AssertionError, which names the
    broken invariant.

    ``options`` are the options of the codec. ``profile`` is the kind of server for which the codec
    builds requests. ``round_trip`` returns an operation or response after a round trip over the
    protocol, without the parts that the protocol cannot represent. By default, the round trip is
    lossless.

    A protocol may implement an operation with another operation (for example, metadata with the
    server's status). ``round_trip`` then returns the other operation, and ``server_response``
    returns the response to the other operation."""
    codec = plugin.create(options or {})
    check = _CodecCheck(codec, plugin.transport_kind, profile, round_trip, server_response)
    assert codec.name == plugin.name, f"the codec is named {codec.name}, not {plugin.name}"
    assert plugin.claims, "a plug-in must claim at least one path or service"
    assert codec.capabilities.datatypes, "a codec must support at least one datatype"
    _check_errors(codec, plugin.transport_kind)
    for operation, response, bodies in _exchanges(codec):
        wire_request = check.build(operation, samples.metadata_for(operation, response))
        if wire_request is not None:
            check.check_exchange(operation, wire_request, response)
            check.check_hostile(operation, wire_request, response, bodies)


def _exchanges(codec: Codec[Any, Any]) -> Iterator[tuple[Operation, Response, tuple[bytes, ...]]]:
    """Yield operations, responses and invalid bodies. For inferences, yield no invalid bodies."""
    for operation, response in samples.SAMPLE_EXCHANGES:
        yield operation, response, samples.INVALID_BODIES
    for datatype in sorted(codec.capabilities.datatypes, key=lambda datatype: datatype.value):
        for operation, response in samples.inferences(datatype):
            yield operation, response, ()


def _check_errors(codec: Codec[Any, Any], transport_kind: TransportKind) -> None:
    """Check that ``build_error`` supports every kind, and that the codec parses its own errors as
    errors."""
    for kind in Kind:
        for public in ("what went wrong", "", "größe \ud800 \n\r\0", "x" * 100_000):
            wire = codec.build_error(GatewayError(kind, public, retry_after=1.5))
            assert isinstance(wire, _WIRE_TYPES[transport_kind][1]), (
                f"build_error returns {type(wire).__name__} for {kind}"
            )
            is_error = _is_rejected(codec.parse_response, wire, InferRequest("m"), DEFAULT_LIMITS)
            assert is_error, f"{kind}: the wire form of the error is parsed as a response"


@dataclass(frozen=True, slots=True)
class _CodecCheck:
    codec: Codec[Any, Any]
    transport_kind: TransportKind
    profile: Profile
    round_trip: LossyRoundTrip
    server_response: ServerResponse

    def build(self, operation: Operation, model: ModelMetadata | None) -> Any:
        """Return the request for ``operation``, or None if the codec raises UNSUPPORTED."""
        try:
            request = self.codec.build_request(operation, self.profile, model)
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED:
                raise AssertionError(f"{operation} is rejected with {error!r}") from error
            return None
        assert isinstance(request, _WIRE_TYPES[self.transport_kind][0]), (
            f"build_request returns {type(request).__name__}"
        )
        return request

    def parse(self, wire: Any, model: ModelMetadata | None) -> ParsedRequest:
        return completed(self.codec.parse_request(wire, DEFAULT_LIMITS), model)

    def check_exchange(self, operation: Operation, request: Any, response: Response) -> None:
        """Check that request and response arrive unchanged, and that ``summarize``,
        ``open_request`` and ``validate`` agree with the parser."""
        codec = self.codec
        model = samples.metadata_for(operation, response)
        parsed = self.parse(request, model)
        assert_same("request", self.round_trip(operation), parsed.operation)
        summary = codec.summarize(request)
        assert summary.operation is type(parsed.operation), (
            f"summarize returns the operation {summary.operation}; parse_request returns "
            f"{type(parsed.operation)}"
        )
        for name in ("model", "version"):
            assert getattr(summary, name) == getattr(parsed.operation, name, ""), (
                f"summarize returns the {name} {getattr(summary, name)!r}; parse_request returns "
                f"{getattr(parsed.operation, name, '')!r}"
            )
        assert_same("summarized request", parsed.operation, self.parse(request, model).operation)
        if isinstance(codec, SupportsContentEncoding):
            for opened in (replace(request), *_compressed(request)):
                codec.summarize(opened)
                codec.open_request(opened)
                assert_same("opened request", parsed.operation, self.parse(opened, model).operation)
            for body in samples.INVALID_BODIES:
                codec.open_request(_encoded(request, body))
        wire_response = codec.build_response(self.server_response(operation, response), parsed)
        assert isinstance(wire_response, _WIRE_TYPES[self.transport_kind][1]), (
            f"build_response returns {type(wire_response).__name__}"
        )
        parsed_response = codec.parse_response(wire_response, operation, DEFAULT_LIMITS, model)
        assert_same("response", self.round_trip(response), parsed_response)
        if not isinstance(codec, SupportsPassThrough):
            return
        validated = completed(codec.validate(request, DEFAULT_LIMITS), model)
        assert_same("validated request", parsed.operation, self.parse(validated, model).operation)
        if codec.can_pass_through and isinstance(parsed.operation, InferRequest):
            self.check_pass_through(codec, validated, parsed.operation, wire_response, model)

    def check_pass_through(
        self,
        codec: SupportsPassThrough[Any, Any],
        request: Any,
        operation: InferRequest,
        wire_response: Any,
        model: ModelMetadata | None,
    ) -> None:
        """Check that ``rewrite_request`` and ``rewrite_response`` change only names, and that
        ``sequence_of`` finds the sequence."""
        has_sequences = self.codec.capabilities.supports_sequences
        for sequence in (None, 2**63, "by name") if has_sequences else (None,):
            parameters = {} if sequence is None else {SEQUENCE_ID: sequence}
            try:
                wire = self.build(replace(operation, parameters=parameters), model)
            except AssertionError:
                assert sequence == "by name"
                continue  # the protocol's sequence ids are numbers
            for form in (wire, completed(codec.validate(wire, DEFAULT_LIMITS), model)):
                assert codec.sequence_of(form, DEFAULT_LIMITS) == sequence, (
                    f"sequence_of does not return the sequence {sequence!r}"
                )
        rewritten = codec.rewrite_request(request, "other", "9", self.profile)
        if rewritten is not None:
            assert_same(
                "rewritten request",
                replace(operation, model="other", version="9"),
                self.parse(rewritten, model).operation,
            )
        response = self.codec.parse_response(wire_response, operation, DEFAULT_LIMITS, model)
        assert isinstance(response, InferResponse)
        for name, version in (("", ""), ("other", "9")):
            rewritten_response = codec.rewrite_response(
                wire_response, request, name, version, DEFAULT_LIMITS
            )
            new_name, new_version = name or response.model, version or response.version
            # a protocol whose responses have no model names takes the names from the request
            renamed = replace(operation, model=new_name, version=new_version)
            assert_same(
                "rewritten response",
                self.round_trip(replace(response, model=new_name, version=new_version)),
                self.codec.parse_response(rewritten_response, renamed, DEFAULT_LIMITS, model),
            )

    def check_hostile(
        self, operation: Operation, request: Any, response: Response, bodies: tuple[bytes, ...]
    ) -> None:
        """Check that the codec either parses any bytes or raises GatewayError, and that
        ``validate`` and the parser reject the same messages."""
        codec = self.codec
        # isinstance with a protocol is slow, and there are thousands of corrupted messages
        validator = codec if isinstance(codec, SupportsPassThrough) else None
        passes = validator and validator.can_pass_through and isinstance(operation, InferRequest)
        pass_through = validator if passes else None
        model = samples.metadata_for(operation, response)
        wire_response = codec.build_response(
            self.server_response(operation, response), self.parse(request, model)
        )
        needs_metadata_to_parse = (
            validator is not None
            and isinstance(codec.parse_request(request, DEFAULT_LIMITS), PartialInferRequest)
            and not isinstance(validator.validate(request, DEFAULT_LIMITS), PartialInferRequest)
        )
        for body in (*bodies, *samples.corrupted(bytes(join_parts(body_of(request))))):
            wire: Any = with_body(request, (body,))
            _is_rejected(codec.summarize, wire)
            parse_fails = _is_rejected(self.parse, wire, model)
            if validator:
                validation_fails = _is_rejected(
                    lambda wire=wire: completed(validator.validate(wire, DEFAULT_LIMITS), model)
                )
                assert parse_fails == validation_fails or (
                    needs_metadata_to_parse and parse_fails
                ), f"parse_request and validate differ on {body[:200]!r}"
            if pass_through:
                _is_rejected(pass_through.rewrite_request, wire, "other", "9", self.profile)
                _is_rejected(pass_through.sequence_of, wire, DEFAULT_LIMITS)
        for body in (*bodies, *samples.corrupted(bytes(join_parts(body_of(wire_response))))):
            wire = with_body(wire_response, (body,))
            _is_rejected(codec.parse_response, wire, operation, DEFAULT_LIMITS, model)
            if pass_through:
                _is_rejected(
                    pass_through.rewrite_response, wire, request, "other", "9", DEFAULT_LIMITS
                )


def _compressed(request: HttpRequest) -> Iterator[HttpRequest]:
    if request.body:
        yield _encoded(request, gzip.compress(join_parts(request.body)))


def _encoded(request: HttpRequest, body: bytes) -> HttpRequest:
    headers = {**request.headers, "content-encoding": "gzip"}
    return replace(request, headers=headers, body=(body,))


def _is_rejected(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether ``function`` raises GatewayError. Other exceptions are bugs of the codec."""
    try:
        function(*arguments)
    except GatewayError:
        return True
    return False

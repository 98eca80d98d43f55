"""The contract of a codec as code: run ``check_codec`` on your plugin first.

It needs neither a server nor hypothesis. ``infergate.codecs.base`` documents the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from infergate.codecs.base import (
    Carrier,
    Codec,
    CodecPlugin,
    Forwarding,
    Parsed,
    Profile,
)
from infergate.codecs.profiles import GENERIC
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Operation,
)
from infergate.core.sequences import PARAMETER
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, joined
from infergate.testing import samples
from infergate.testing.canonical import text
from infergate.testing.vectors import body_of, finished, with_body

Carries = Callable[[Any], Any]
"""Returns what is left of a canonical value after a round trip over the protocol: the value itself,
or without the parts that the protocol cannot represent."""
Answers = Callable[[Operation, Answer], Answer]
"""Returns the response that a server has to send so that the client reads the expected response."""

_REQUESTS: Final[dict[Carrier, type]] = {Carrier.HTTP: HttpRequest, Carrier.GRPC: RpcRequest}
_RESPONSES: Final[dict[Carrier, type]] = {Carrier.HTTP: HttpResponse, Carrier.GRPC: RpcResponse}


def _everything(value: Any) -> Any:
    return value


def _itself(operation: Operation, answer: Answer) -> Answer:
    del operation
    return answer


def check_codec(
    plugin: CodecPlugin,
    *,
    options: Mapping[str, Any] | None = None,
    profile: Profile = GENERIC,
    carries: Carries = _everything,
    answers: Answers = _itself,
) -> None:
    """Check the invariants of the codec of ``plugin``. Raises AssertionError naming the one that is
    broken.

    ``options`` are those of the codec, ``profile`` is the kind of server that it builds requests
    for. ``round_trip`` returns what is left of an operation or response after a round trip over a
    protocol that cannot represent everything (one without ids, for example); by default, everything
    must arrive.

    A protocol may implement an operation by another one (metadata by the server's status).
    ``round_trip`` then returns that other operation, and ``server_response`` its response.
    """
    codec = plugin.make(options or {})
    check = _Check(codec, plugin.carrier, profile, carries, answers)
    assert codec.name == plugin.name, f"the codec is named {codec.name}, the plugin {plugin.name}"
    assert plugin.claims, "a plugin claims at least one path or service"
    assert codec.caps.datatypes, "a codec carries at least one datatype"
    _check_errors(codec, plugin.carrier)
    for operation, answer, junk in _exchanges(codec):
        wire_request = check.build(operation, samples.description(operation, answer))
        if wire_request is not None:
            check.exchange(operation, wire_request, answer)
            check.hostile(operation, wire_request, answer, junk)


def _exchanges(codec: Codec[Any, Any]) -> Iterator[tuple[Operation, Answer, tuple[bytes, ...]]]:
    """Yield operations, responses and invalid bodies. The invalid bodies are independent of the
    datatype, so inferences come without them."""
    for operation, answer in samples.EXCHANGES:
        yield operation, answer, samples.JUNK
    for datatype in sorted(codec.caps.datatypes, key=lambda datatype: datatype.value):
        for operation, answer in samples.inferences(datatype):
            yield operation, answer, ()


def _check_errors(codec: Codec[Any, Any], carrier: Carrier) -> None:
    """Check that ``build_error`` has a form for every kind, and that the codec parses its own
    errors as errors."""
    for kind in Kind:
        for public in ("what went wrong", "", "größe \ud800 \n\r\0", "x" * 100_000):
            wire = codec.build_error(GatewayError(kind, public, retry_after=1.5))
            assert isinstance(wire, _RESPONSES[carrier]), f"{kind}: {type(wire)}"
            is_error = _refused(codec.parse_response, wire, InferRequest("m"), DEFAULT_LIMITS)
            assert is_error, f"{kind}: the wire form of the error is parsed as a response"


@dataclass(frozen=True, slots=True)
class _Check:
    """The checks of one codec."""

    codec: Codec[Any, Any]
    carrier: Carrier
    profile: Profile
    carries: Carries
    answers: Answers

    def build(self, operation: Operation, model: ModelMetadata | None) -> Any:
        """Return the request for ``operation``; None if the codec raises UNSUPPORTED."""
        try:
            request = self.codec.build_request(operation, self.profile, model)
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED:
                raise AssertionError(f"{operation} is rejected with {error!r}") from error
            return None
        assert isinstance(request, _REQUESTS[self.carrier]), type(request)
        return request

    def exchange(self, operation: Operation, asked: Any, answer: Answer) -> None:
        """Check that request and response arrive unchanged, and that ``summarize`` and ``validate``
        agree with the parser."""
        codec = self.codec
        model = samples.description(operation, answer)

        def read_request(wire: Any) -> Parsed:
            return finished(codec.parse_request(wire, DEFAULT_LIMITS), model)

        parsed = read_request(asked)
        _assert_same("request", self.carries(operation), parsed.operation)
        summary = codec.peek(asked)
        assert summary.operation is type(parsed.operation), f"summarize returns {summary.operation}"
        for name in ("model", "version"):
            assert getattr(summary, name) == getattr(parsed.operation, name, ""), (
                f"summarize: {name}"
            )
        wire_response = codec.build_response(self.answers(operation, answer), parsed)
        assert isinstance(wire_response, _RESPONSES[self.carrier]), type(wire_response)
        parsed_response = codec.parse_response(wire_response, operation, DEFAULT_LIMITS, model)
        _assert_same("response", self.carries(answer), parsed_response)
        if not isinstance(codec, Forwarding):
            return
        validated = finished(codec.shield(asked, DEFAULT_LIMITS), model)
        _assert_same(
            "validated request",
            parsed.operation,
            read_request(validated).operation,
        )
        if codec.forwards and isinstance(parsed.operation, InferRequest):
            self.forwarding(codec, validated, parsed.operation, wire_response, model)

    def forwarding(
        self,
        codec: Forwarding[Any, Any],
        asked: Any,
        operation: InferRequest,
        answered: Any,
        model: ModelMetadata | None,
    ) -> None:
        """Check that ``rewrite_request`` and ``rewrite_response`` change only names, and that
        ``sequence_of`` finds the sequence."""
        for sequence in (None, 2**63, "by name"):
            parameters = {} if sequence is None else {PARAMETER: sequence}
            try:
                wire = self.build(replace(operation, parameters=parameters), model)
            except AssertionError:
                assert sequence == "by name"
                continue  # the protocol only has numbers as sequence ids
            for form in (wire, finished(codec.shield(wire, DEFAULT_LIMITS), model)):
                assert codec.sequence(form, DEFAULT_LIMITS) == sequence, f"sequence {sequence!r}"
        rewritten = codec.readdress(asked, "other", "9", self.profile)
        if rewritten is not None:
            _assert_same(
                "rewritten request",
                replace(operation, model="other", version="9"),
                finished(self.codec.parse_request(rewritten, DEFAULT_LIMITS), model).operation,
            )
        response = self.codec.parse_response(answered, operation, DEFAULT_LIMITS, model)
        assert isinstance(response, InferResponse)
        renamed: tuple[dict[str, Any], ...] = ({}, {"model": "other", "version": "9"})
        for names in renamed:
            rewritten_response = codec.relabel(
                answered, asked, names.get("model", ""), names.get("version", ""), DEFAULT_LIMITS
            )
            _assert_same(
                "rewritten response",
                replace(response, **names),
                self.codec.parse_response(rewritten_response, operation, DEFAULT_LIMITS, model),
            )

    def hostile(
        self, operation: Operation, asked: Any, answer: Answer, junk: tuple[bytes, ...]
    ) -> None:
        """Check that any bytes are parsed or raise GatewayError, and that ``validate`` and the
        parser reject the same."""
        codec = self.codec
        forwarding = codec if isinstance(codec, Forwarding) else None

        def check_request(wire: Any) -> Any:
            assert isinstance(codec, Forwarding)
            return finished(codec.shield(wire, DEFAULT_LIMITS), model)

        if forwarding and not (forwarding.forwards and isinstance(operation, InferRequest)):
            forwarding = None
        model = samples.description(operation, answer)

        def read_request(wire: Any) -> Parsed:
            return finished(codec.parse_request(wire, DEFAULT_LIMITS), model)

        wire_response = codec.build_response(self.answers(operation, answer), read_request(asked))
        for body in (*junk, *samples.spoilt(bytes(joined(body_of(asked))))):
            wire: Any = with_body(asked, (body,))
            _refused(codec.peek, wire)
            parse_fails = _refused(read_request, wire)
            if isinstance(codec, Forwarding):
                validation_fails = _refused(check_request, wire)
                assert parse_fails == validation_fails, (
                    f"parse_request and validate differ on {body[:200]!r}"
                )
            if forwarding:
                _refused(forwarding.readdress, wire, "other", "9", self.profile)
                _refused(forwarding.sequence, wire, DEFAULT_LIMITS)
        for body in (*junk, *samples.spoilt(bytes(joined(body_of(wire_response))))):
            wire = with_body(wire_response, (body,))
            _refused(codec.parse_response, wire, operation, DEFAULT_LIMITS, model)
            if forwarding:
                _refused(forwarding.relabel, wire, asked, "other", "9", DEFAULT_LIMITS)


def _refused(act: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether ``function`` raises GatewayError; any other exception is a bug of the
    codec."""
    try:
        act(*arguments)
    except GatewayError:
        return True
    return False


def _assert_same(what: str, wanted: Operation | Answer, found: Operation | Answer) -> None:
    assert text(wanted) == text(found), f"{what}: {text(found)} instead of {text(wanted)}"

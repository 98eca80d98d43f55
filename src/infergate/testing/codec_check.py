"""The contract of a codec as code: run ``check_codec`` on your plugin before anything else.

It needs no server and no hypothesis; what it checks is written in ``infergate.codecs.base``.
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
"""What a protocol makes of a canonical value: the value itself, or without what it cannot tell."""
Answers = Callable[[Operation, Answer], Answer]
"""What a server must say so that a client who asks the operation reads the answer."""

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
    """Check the invariants of ``plugin``'s codec. Raises AssertionError saying which one is broken.

    ``options`` are what the codec is made with, ``profile`` the kind of server it builds requests
    for. ``carries`` tells what is left of an operation or answer after a trip over a wire that
    cannot tell everything (a protocol without ids, say); by default all must arrive. Where a
    protocol asks one thing by another (metadata by the server's status), ``carries`` tells what is
    asked, and ``answers`` what then is answered.
    """
    codec = plugin.make(options or {})
    check = _Check(codec, plugin.carrier, profile, carries, answers)
    assert codec.name == plugin.name, f"the codec is named {codec.name}, the plugin {plugin.name}"
    assert plugin.claims, "a plugin claims at least one path or service"
    assert codec.caps.datatypes, "a codec carries at least one datatype"
    _check_errors(codec, plugin.carrier)
    for operation, answer, junk in _exchanges(codec):
        asked = check.build(operation, samples.description(operation, answer))
        if asked is not None:
            check.exchange(operation, asked, answer)
            check.hostile(operation, asked, answer, junk)


def _exchanges(codec: Codec[Any, Any]) -> Iterator[tuple[Operation, Answer, tuple[bytes, ...]]]:
    """With bodies to read instead. Which datatype was asked for makes none of them another."""
    for operation, answer in samples.EXCHANGES:
        yield operation, answer, samples.JUNK
    for datatype in sorted(codec.caps.datatypes, key=lambda datatype: datatype.value):
        for operation, answer in samples.inferences(datatype):
            yield operation, answer, ()


def _check_errors(codec: Codec[Any, Any], carrier: Carrier) -> None:
    """``build_error`` has a form for every kind, and a codec reads its own errors as errors."""
    for kind in Kind:
        for public in ("what went wrong", "", "größe \ud800 \n\r\0", "x" * 100_000):
            wire = codec.build_error(GatewayError(kind, public, retry_after=1.5))
            assert isinstance(wire, _RESPONSES[carrier]), f"{kind}: {type(wire)}"
            refused = _refused(codec.parse_response, wire, InferRequest("m"), DEFAULT_LIMITS)
            assert refused, f"{kind}: the error's wire form reads as an answer"


@dataclass(frozen=True, slots=True)
class _Check:
    """One codec under check."""

    codec: Codec[Any, Any]
    carrier: Carrier
    profile: Profile
    carries: Carries
    answers: Answers

    def build(self, operation: Operation, model: ModelMetadata | None) -> Any:
        """The request for ``operation``; None where the protocol has none and says UNSUPPORTED."""
        try:
            asked = self.codec.build_request(operation, self.profile, model)
        except GatewayError as error:
            if error.kind is not Kind.UNSUPPORTED:
                raise AssertionError(f"{operation} is refused with {error!r}") from error
            return None
        assert isinstance(asked, _REQUESTS[self.carrier]), type(asked)
        return asked

    def exchange(self, operation: Operation, asked: Any, answer: Answer) -> None:
        """Request and answer arrive as they were; ``peek`` and ``shield`` agree with the parser."""
        codec = self.codec
        model = samples.description(operation, answer)

        def read_request(wire: Any) -> Parsed:
            return finished(codec.parse_request(wire, DEFAULT_LIMITS), model)

        parsed = read_request(asked)
        _assert_same("request", self.carries(operation), parsed.operation)
        peek = codec.peek(asked)
        assert peek.operation is type(parsed.operation), f"peek sees {peek.operation}"
        for name in ("model", "version"):
            assert getattr(peek, name) == getattr(parsed.operation, name, ""), f"peek: {name}"
        answered = codec.build_response(self.answers(operation, answer), parsed)
        assert isinstance(answered, _RESPONSES[self.carrier]), type(answered)
        read = codec.parse_response(answered, operation, DEFAULT_LIMITS, model)
        _assert_same("answer", self.carries(answer), read)
        if not isinstance(codec, Forwarding):
            return
        shielded = finished(codec.shield(asked, DEFAULT_LIMITS), model)
        _assert_same(
            "shielded request",
            parsed.operation,
            read_request(shielded).operation,
        )
        if codec.forwards and isinstance(parsed.operation, InferRequest):
            self.forwarding(codec, shielded, parsed.operation, answered, model)

    def forwarding(
        self,
        codec: Forwarding[Any, Any],
        asked: Any,
        operation: InferRequest,
        answered: Any,
        model: ModelMetadata | None,
    ) -> None:
        """``readdress`` and ``relabel`` change names only, and sequences are told."""
        for number in (None, 2**63, "by name"):
            told = {} if number is None else {PARAMETER: number}
            try:
                wire = self.build(replace(operation, parameters=told), model)
            except AssertionError:
                assert number == "by name"
                continue  # the protocol's sequences have no names
            for each in (wire, finished(codec.shield(wire, DEFAULT_LIMITS), model)):
                assert codec.sequence(each, DEFAULT_LIMITS) == number, f"sequence {number!r}"
        readdressed = codec.readdress(asked, "other", "9", self.profile)
        if readdressed is not None:
            _assert_same(
                "readdressed request",
                replace(operation, model="other", version="9"),
                finished(self.codec.parse_request(readdressed, DEFAULT_LIMITS), model).operation,
            )
        answer = self.codec.parse_response(answered, operation, DEFAULT_LIMITS, model)
        assert isinstance(answer, InferResponse)
        renamed: tuple[dict[str, Any], ...] = ({}, {"model": "other", "version": "9"})
        for names in renamed:
            relabelled = codec.relabel(
                answered, asked, names.get("model", ""), names.get("version", ""), DEFAULT_LIMITS
            )
            _assert_same(
                "relabelled answer",
                replace(answer, **names),
                self.codec.parse_response(relabelled, operation, DEFAULT_LIMITS, model),
            )

    def hostile(
        self, operation: Operation, asked: Any, answer: Answer, junk: tuple[bytes, ...]
    ) -> None:
        """Any bytes parse or raise GatewayError; ``shield`` and the parser refuse the same."""
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

        answered = codec.build_response(self.answers(operation, answer), read_request(asked))
        for body in (*junk, *samples.spoilt(bytes(joined(body_of(asked))))):
            wire: Any = with_body(asked, (body,))
            _refused(codec.peek, wire)
            refused = _refused(read_request, wire)
            if isinstance(codec, Forwarding):
                shielded = _refused(check_request, wire)
                assert refused == shielded, f"parse_request and shield differ on {body[:200]!r}"
            if forwarding:
                _refused(forwarding.readdress, wire, "other", "9", self.profile)
                _refused(forwarding.sequence, wire, DEFAULT_LIMITS)
        for body in (*junk, *samples.spoilt(bytes(joined(body_of(answered))))):
            wire = with_body(answered, (body,))
            _refused(codec.parse_response, wire, operation, DEFAULT_LIMITS, model)
            if forwarding:
                _refused(forwarding.relabel, wire, asked, "other", "9", DEFAULT_LIMITS)


def _refused(act: Callable[..., Any], *arguments: Any) -> bool:
    """Whether ``act`` raises GatewayError; anything else it raises is the codec's fault."""
    try:
        act(*arguments)
    except GatewayError:
        return True
    return False


def _assert_same(what: str, wanted: Operation | Answer, found: Operation | Answer) -> None:
    assert text(wanted) == text(found), f"{what}: {text(found)} instead of {text(wanted)}"

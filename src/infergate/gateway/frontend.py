"""One protocol towards clients: wire in, wire out, whatever the backend speaks.

*Strategy.* How an inference takes its route is chosen once, when the frontend is built: *forward*
where both sides spell the same protocol and the route renames no tensor, *translate* elsewhere.
*Rule 1.* Every request ends in a wire answer; every error in this protocol's own form.
*Rule 2.* Both ways refuse the same requests and give the same answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from infergate.backends.base import Backend, read_wrong
from infergate.codecs.base import (
    Codec,
    Forwarding,
    OutputsNeedTranslation,
    Parsed,
    Peek,
    Profile,
    Unfinished,
)
from infergate.core.accounting import are_long, count_new, count_tensors, parts
from infergate.core.aside import Aside
from infergate.core.call import REQUEST_ID, Call
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import CostlyError, Limits
from infergate.core.memory import SMALL
from infergate.core.messages import OPERATIONS, Answer, InferRequest
from infergate.core.sequences import SequenceName
from infergate.core.vocabulary import BUG
from infergate.core.wire import HttpRequest, LateMessage, size
from infergate.gateway.answers import only, opened
from infergate.gateway.gateway import Bound, Gateway
from infergate.gateway.labour import Labour
from infergate.gateway.late import BEGINNING, beginning

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Req_contra = TypeVar("Req_contra", contravariant=True)
Resp_co = TypeVar("Resp_co", covariant=True)
T = TypeVar("T")
_log = logging.getLogger(__name__)
_MOST_REFUSING: Final = 1024
"""Models of one backend that are remembered as ones to translate for."""


@runtime_checkable
class Exchanging(Protocol):
    """A backend that takes wire messages as they are."""

    codec: Codec[Any, Any]

    @property
    def spreads(self) -> bool:
        """Whether it has several endpoints, to one of which a sequence must keep."""
        ...

    def infer(self, wire: Any, call: Call, sequence: SequenceName | None = None) -> Awaitable[Any]:
        """Send the inference ``wire``, of ``sequence`` in the backend's names, return the wire
        answer."""
        ...

    async def profile(self, call: Call) -> Profile:
        """What kind of server it is."""
        ...


class Way(Protocol[Req_contra, Resp_co]):
    """How one route's inferences are carried out."""

    @property
    def name(self) -> str:
        """What the access log calls it."""
        ...

    async def infer(self, wire: Req_contra, peek: Peek, bound: Bound, call: Call) -> Resp_co:
        """The answer to the inference in ``wire``, whose route is ``bound``."""
        ...


class Gate(Protocol):
    """Who may ask what, and how often."""

    async def admitted(self, peek: Peek, call: Call) -> Peek:
        """How to go on with the request that ``peek`` tells of. Raises GatewayError."""
        ...

    async def known(self, call: Call) -> None:
        """Whether it is told well enough who asks, whatever he will ask. Raises GatewayError."""
        ...


class Translate(Generic[Req, Resp]):
    """Wire → canonical → gateway → canonical → wire. Serves every operation."""

    name: Final = "translate"

    def __init__(self, labour: Labour[Req, Resp], gateway: Gateway) -> None:
        self._labour: Final = labour
        self._gateway: Final = gateway

    async def infer(self, wire: Req, peek: Peek, bound: Bound, call: Call) -> Resp:
        """Parse, infer, build."""
        del peek
        parsed = await self.parse(wire, call)
        if parsed.streamed:
            response: Resp = await opened(self._gateway, self._labour, parsed, wire, call)
            return response
        if parsed.only:
            answer: Answer = await only(self._gateway, parsed, call)
        else:
            assert isinstance(parsed.operation, InferRequest)
            answer = await self._gateway.infer(parsed.operation, bound, call)
        return await self._built(answer, parsed, call)

    async def perform(self, wire: Req, call: Call) -> Resp:
        """The answer to any other operation."""
        parsed = await self.parse(wire, call)
        self._gateway.names.check_operation(parsed.operation)
        return await self._built(await self._gateway.perform(parsed.operation, call), parsed, call)

    async def parse(self, wire: Req, call: Call) -> Parsed:
        """The whole of what ``wire`` asks for."""
        labour = self._labour
        here = labour.reads_here(wire)
        if here:
            try:
                parsed = labour.codec.parse_request(wire, labour.limits)
            except CostlyError:
                here = False
        if not here:
            parsed = await labour.aside(call, labour.parse_request, wire)
        if isinstance(parsed, Unfinished):
            unfinished = parsed
            try:
                parsed = await self.finished(unfinished, call, here=here)
            except CostlyError:
                parsed = await self.finished(unfinished, call, here=False)
        operation = parsed.operation
        if isinstance(operation, InferRequest) and are_long(operation.inputs):
            count_tensors(operation.inputs, parts(wire), call.memory)
        return parsed

    async def _built(self, answer: Answer, parsed: Parsed, call: Call) -> Resp:
        labour = self._labour
        how = labour.codec.build_response
        if labour.writes_short(answer, parsed):
            return how(answer, parsed)
        response: Resp = (await labour.written(call, how, answer, parsed))[0]
        return response

    async def finished(self, unfinished: Unfinished[T], call: Call, *, here: bool) -> T:
        """``unfinished`` made whole. What contradicts the metadata may contradict old metadata
        only, so it is looked at again before the client is refused."""
        model, version = unfinished.model, unfinished.version
        known = await self._gateway.describe(model, version, call)
        try:
            return await self._labour.finish(unfinished, known, call, here=here)
        except GatewayError:
            newer = await self._gateway.describe(model, version, call, newer=True)
            if newer == known:
                raise
        return await self._labour.finish(unfinished, newer, call, here=here)


class Forward(Generic[Req, Resp]):
    """The message goes on as it came, after ``shield`` has checked it; no tensor is decoded."""

    name: Final = "forward"

    def __init__(
        self,
        codec: Forwarding[Req, Resp],
        labour: Labour[Req, Resp],
        backend: Exchanging,
        otherwise: Translate[Req, Resp],
    ) -> None:
        self._codec: Final = codec
        self._shield = codec.shield
        self._relabel = codec.relabel
        self._labour: Final = labour
        self._backend: Final = backend
        self._otherwise: Final = otherwise
        self._refusing: Final[set[str]] = set()
        """The backend's models whose outputs cannot be had in the form that clients ask for."""

    async def infer(  # noqa: C901 - one path; a helper that raises its error would keep the message
        self, wire: Req, peek: Peek, bound: Bound, call: Call
    ) -> Resp:
        """Check, readdress, exchange, relabel. What takes long to check is translated."""
        route, limits = bound.route, self._labour.limits
        found: Any  # the type checker cannot tell Req from Unfinished[Req]
        if not route.validate:  # the operator vouches for this route's clients
            found = wire
        else:
            here = self._labour.reads_here(wire)
            try:
                if here:
                    found = self._shield(wire, limits)
                else:
                    found = await self._labour.aside(call, self._codec.shield, wire, limits)
                if isinstance(found, Unfinished):
                    found = await self._otherwise.finished(found, call, here=here)
            except CostlyError:
                return await self._translated(wire, peek, bound, call)
        checked: Req = found
        if checked is not wire:
            _count_inflated(checked, wire, call)
        model = route.backend_model(peek.model)
        keeps = self._backend.spreads or route.retry.idempotent
        sequence = await self._sequence(checked, bound, model, call) if keeps else None
        upstream = self._codec.readdress(
            checked,
            model,
            route.backend_version(peek.version),
            await self._backend.profile(call),
        )
        if upstream is None or model in self._refusing:  # this server does not take that form
            return await self._translated(checked, peek, bound, call)
        answer = await self._backend.infer(upstream, call, sequence)
        names = (
            peek.model if route.rewrite.model else "",
            (peek.version or route.version) if route.rewrite.version else "",
        )
        labour = self._labour
        try:
            if not labour.forwards_here(answer, checked):
                return await self._relabel_aside(answer, checked, names, call)
            try:
                return self._relabel(answer, checked, *names, limits)
            except CostlyError:
                how = self._codec.relabel
                return await labour.answered_aside(call, how, answer, checked, *names, limits)
        except GatewayError as error:
            if not await self._may_translate(error, checked, peek, bound, call):
                raise read_wrong(error, bound.backend.name) from None
        return await self._translated(checked, peek, bound, call)

    def _translated(self, wire: Req, peek: Peek, bound: Bound, call: Call) -> Awaitable[Resp]:
        call.way = self._otherwise.name
        return self._otherwise.infer(wire, peek, bound, call)

    async def _may_translate(
        self, error: GatewayError, checked: Req, peek: Peek, bound: Bound, call: Call
    ) -> bool:
        """Whether the server cannot give the answer as it was asked for, so that the message is
        translated, and from now on all to that model. The model runs again, but for a step of a
        sequence."""
        if not isinstance(error, OutputsNeedTranslation):
            return False
        model = bound.route.backend_model(peek.model)
        if len(self._refusing) >= _MOST_REFUSING:
            self._refusing.clear()
        self._refusing.add(model)
        return await self._sequence(checked, bound, model, call) is None

    async def _relabel_aside(
        self, answer: Resp, asked: Any, names: tuple[str, str], call: Call
    ) -> Resp:
        """The same by a helper, which needs no tensors of the request."""
        if isinstance(asked, HttpRequest):
            asked = replace(asked, body=())
        labour = self._labour
        how, limits = self._codec.relabel, labour.limits
        return await labour.answered_aside(call, how, answer, asked, *names, limits)

    async def _sequence(
        self, wire: Req, bound: Bound, model: str, call: Call
    ) -> SequenceName | None:
        labour, how = self._labour, self._codec.sequence
        try:
            if bound.route.validate or labour.reads_here(wire):
                number = how(wire, labour.limits)
            else:
                number = await labour.aside(call, how, wire, labour.limits)
        except CostlyError:
            number = await labour.aside(call, how, wire, labour.limits)
        return None if number is None else SequenceName(model, number)


def _count_inflated(checked: Any, wire: Any, call: Call) -> None:
    """Count the body of ``checked`` where it is not that of ``wire``: its encoding was undone."""
    made = parts(checked)
    if size(made) > SMALL:
        count_new(made, parts(wire), call.memory)


class Ways(Protocol):
    """Makes the ways that routes are taken."""

    def translate(self, labour: Labour[Any, Any], gateway: Gateway) -> Translate[Any, Any]:
        """Through the canonical form."""
        ...

    def forward(
        self,
        codec: Forwarding[Any, Any],
        labour: Labour[Any, Any],
        backend: Exchanging,
        otherwise: Translate[Any, Any],
    ) -> Forward[Any, Any]:
        """As it came."""
        ...


class Plain:
    """Those above."""

    translate: Final = staticmethod(Translate)
    forward: Final = staticmethod(Forward)


def _begun(wire: Any, late: LateMessage) -> Any:
    """``wire`` with the beginning of its message."""
    return replace(wire, message=(beginning(late.beginning),), late=None)


class Frontend(Generic[Req, Resp]):
    """Answers one protocol's requests."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it stands on
        self,
        codec: Codec[Req, Resp],
        gateway: Gateway,
        limits: Limits,
        aside: Aside | None = None,
        gate: Gate | None = None,
        ways: Ways | None = None,
    ) -> None:
        """``aside`` is where long text is read and written; None: here. ``gate`` None: everybody
        may ask everything. ``ways`` None: those above."""
        ways = ways or Plain()
        self.codec: Final = codec
        self._gate: Final = gate
        self._lacks: Final = frozenset(Datatype) - codec.caps.datatypes
        self.gateway: Final = gateway
        self.labour: Final = Labour(codec, limits, aside)
        self._translate: Final[Translate[Req, Resp]] = ways.translate(self.labour, gateway)
        # By backend, for there may be thousands of routes: a reload builds this while others wait.
        asked = {id(bound.backend): bound.backend for bound in gateway.bound}
        forward = {key: self._forwarding(each, ways) for key, each in asked.items()}
        self._ways: Final[dict[Bound, Way[Req, Resp]]] = {
            bound: self._translate
            if bound.route.rewrite.renames_tensors or bound in gateway.branches
            else forward[id(bound.backend)]
            for bound in gateway.bound
        }

    def _forwarding(self, backend: Backend, ways: Ways) -> Way[Req, Resp]:
        """How messages that rename no tensor go to ``backend``."""
        if (
            isinstance(backend, Exchanging)
            and isinstance(self.codec, Forwarding)
            and backend.codec.name == self.codec.name
            and self.codec.forwards
        ):
            return ways.forward(self.codec, self.labour, backend, self._translate)
        return self._translate

    async def respond(self, wire: Req, call: Call, late: LateMessage | None = None) -> Resp:
        """The answer to ``wire``, good or bad. Notes the outcome on ``call``. ``late`` is the
        message of ``wire`` where it is not inflated yet."""
        call.protocol = self.codec.name
        call.lacks = self._lacks
        try:
            peek = self.codec.peek(wire if late is None else _begun(wire, late))
            call.operation = OPERATIONS[peek.operation]
            call.model = peek.model
            self._check_names(peek)
            if self._gate is not None:
                peek = await self._gate.admitted(peek, call)
            if late is not None:
                await self._inflate(wire, late, peek, call)
            if peek.operation is not InferRequest:
                return await self._translate.perform(wire, call)
            bound = self.gateway.bind(peek.model, peek.version, call)
            way = self._ways[bound] if peek.forwards else self._translate
            call.way = way.name
            return await way.infer(wire, peek, bound, call)
        except GatewayError as error:
            return self.refuse(error, wire, call)
        except Exception:  # noqa: BLE001 - the last line: a bug costs one request, not the process
            _log.exception("a bug while serving %s", call.protocol, extra=BUG)
            return self.refuse(GatewayError(Kind.INTERNAL, "internal error"), wire, call)

    def _check_names(self, peek: Peek) -> None:
        """Before access rules and routes: raise BAD_REQUEST for a name that is not accepted."""
        names = self.gateway.names
        if peek.model:
            names.check(peek.model)
        if peek.version:
            names.check(peek.version, "model version")

    async def _inflate(self, wire: Any, late: LateMessage, early: Peek, call: Call) -> None:
        """Put the whole message into ``wire``, which is about what ``early`` says. Raises
        GatewayError."""
        whole = await late.whole(call.memory)
        call.bytes_in = len(whole)
        wire.late, wire.message = None, (whole,)
        peek = self.codec.peek(wire)
        if (peek.operation, peek.model, peek.version) != (
            early.operation,
            early.model,
            early.version,
        ):
            raise bad_request(
                f"the names in a compressed message must be in its first {BEGINNING} bytes"
            )

    async def welcome(self, call: Call) -> None:
        """Raises GatewayError where a stream is not to be opened: there are so many of them, and
        one may say nothing for hours."""
        call.protocol = self.codec.name
        if self._gate is not None:
            await self._gate.known(call)

    async def read_streamed(self, wire: Req, call: Call) -> tuple[InferRequest, Parsed, Bound]:
        """The inference that ``wire``, a request of a stream, asks for, as it was parsed, and its
        route, which is noted on ``call``. Raises GatewayError."""
        call.protocol = self.codec.name
        call.lacks = self._lacks
        call.way = self._translate.name
        peek = self.codec.peek(wire)
        call.model = peek.model
        self._check_names(peek)
        if self._gate is not None:
            await self._gate.admitted(peek, call)
        bound = self.gateway.bind(peek.model, peek.version, call)
        parsed = await self._translate.parse(wire, call)
        assert isinstance(parsed.operation, InferRequest)
        return parsed.operation, parsed, bound

    def refuse(self, error: GatewayError, wire: Req, call: Call) -> Resp:
        """``error`` as this protocol tells it, with the id by which the log has it."""
        call.protocol = self.codec.name
        call.fail(error)
        if call.request_id:
            call.returned.setdefault(REQUEST_ID, call.request_id)
        return self.codec.build_error(error, wire)

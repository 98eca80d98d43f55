"""One protocol towards clients: a wire request in, a wire response out, whatever the backend
speaks.

An inference takes one of two pipelines, chosen per route when the frontend is built:
``PassThrough`` where client and backend speak the same protocol and the route renames no tensor,
``Translation`` elsewhere.

- Every request ends in a wire response; every error is written in this protocol's form.
- Both pipelines refuse the same requests and give the same responses.
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
"""Models of one backend that are remembered as needing translation."""


@runtime_checkable
class Exchanging(Protocol):
    """A backend that takes wire messages unchanged."""

    codec: Codec[Any, Any]

    @property
    def spreads(self) -> bool:
        """Whether it has several endpoints, so that each sequence must keep to one of them."""
        ...

    def infer(self, wire: Any, call: Call, sequence: SequenceName | None = None) -> Awaitable[Any]:
        """Send the inference ``wire`` and return the wire response. ``sequence`` is in the
        backend's names."""
        ...

    async def profile(self, call: Call) -> Profile:
        """Return the backend's kind of server."""
        ...


class Way(Protocol[Req_contra, Resp_co]):
    """How the inferences of one route are carried out."""

    @property
    def name(self) -> str:
        """The name in the access log."""
        ...

    async def infer(self, wire: Req_contra, peek: Peek, bound: Bound, call: Call) -> Resp_co:
        """Return the response to the inference in ``wire``, whose route is ``binding``."""
        ...


class Gate(Protocol):
    """Decides which client may request what, and how often."""

    async def admitted(self, peek: Peek, call: Call) -> Peek:
        """Authorize the request described by ``summary`` and return the summary to continue with.
        Raises GatewayError."""
        ...

    async def known(self, call: Call) -> None:
        """Authenticate the client, whatever it is going to request. Raises GatewayError."""
        ...


class Translate(Generic[Req, Resp]):
    """Wire → canonical → gateway → canonical → wire. Serves every operation."""

    name: Final = "translate"

    def __init__(self, labour: Labour[Req, Resp], gateway: Gateway) -> None:
        self._labour: Final = labour
        self._gateway: Final = gateway

    async def infer(self, wire: Req, peek: Peek, bound: Bound, call: Call) -> Resp:
        """Parse the request, run the inference, build the response."""
        del peek
        parsed = await self.parse(wire, call)
        if parsed.streamed:
            response: Resp = await opened(self._gateway, self._labour, parsed, wire, call)
            return response
        if parsed.only:
            result: Answer = await only(self._gateway, parsed, call)
        else:
            assert isinstance(parsed.operation, InferRequest)
            result = await self._gateway.infer(parsed.operation, bound, call)
        return await self._built(result, parsed, call)

    async def perform(self, wire: Req, call: Call) -> Resp:
        """Return the response to any operation other than an inference."""
        parsed = await self.parse(wire, call)
        self._gateway.names.check_operation(parsed.operation)
        return await self._built(await self._gateway.perform(parsed.operation, call), parsed, call)

    async def parse(self, wire: Req, call: Call) -> Parsed:
        """Return the operation in ``wire``, with the model's metadata filled in where it is
        needed."""
        offload = self._labour
        inline = offload.reads_here(wire)
        if inline:
            try:
                parsed = offload.codec.parse_request(wire, offload.limits)
            except CostlyError:
                inline = False
        if not inline:
            parsed = await offload.aside(call, offload.parse_request, wire)
        if isinstance(parsed, Unfinished):
            partial = parsed
            try:
                parsed = await self.finished(partial, call, here=inline)
            except CostlyError:
                parsed = await self.finished(partial, call, here=False)
        operation = parsed.operation
        if isinstance(operation, InferRequest) and are_long(operation.inputs):
            count_tensors(operation.inputs, parts(wire), call.memory)
        return parsed

    async def _built(self, answer: Answer, parsed: Parsed, call: Call) -> Resp:
        offload = self._labour
        build = offload.codec.build_response
        if offload.writes_short(answer, parsed):
            return build(answer, parsed)
        wire: Resp = (await offload.written(call, build, answer, parsed))[0]
        return wire

    async def finished(self, unfinished: Unfinished[T], call: Call, *, here: bool) -> T:
        """Complete ``partial`` with the model's metadata. A request that contradicts cached
        metadata is checked once more against fresh metadata before it is refused."""
        model, version = unfinished.model, unfinished.version
        metadata = await self._gateway.describe(model, version, call)
        try:
            return await self._labour.finish(unfinished, metadata, call, here=here)
        except GatewayError:
            fresh = await self._gateway.describe(model, version, call, newer=True)
            if fresh == metadata:
                raise
        return await self._labour.finish(unfinished, fresh, call, here=here)


class Forward(Generic[Req, Resp]):
    """Passes the message on unchanged once ``validate`` has checked it; no tensor is decoded."""

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
        """The backend's models that cannot give outputs in the form that clients request."""

    async def infer(  # noqa: C901 - one path; an error raised in a helper would keep the message alive
        self, wire: Req, peek: Peek, bound: Bound, call: Call
    ) -> Resp:
        """Check, rewrite, exchange, rewrite back. A message that is too costly to check is
        translated."""
        route, limits = bound.route, self._labour.limits
        validated: Any  # the type checker cannot tell Req from Unfinished[Req]
        if not route.validate:  # the operator trusts this route's clients
            validated = wire
        else:
            inline = self._labour.reads_here(wire)
            try:
                if inline:
                    validated = self._shield(wire, limits)
                else:
                    validated = await self._labour.aside(call, self._codec.shield, wire, limits)
                if isinstance(validated, Unfinished):
                    validated = await self._otherwise.finished(validated, call, here=inline)
            except CostlyError:
                return await self._translated(wire, peek, bound, call)
        checked: Req = validated
        if checked is not wire:
            _count_inflated(checked, wire, call)
        model = route.backend_model(peek.model)
        needs_sequence = self._backend.spreads or route.retry.idempotent
        sequence = await self._sequence(checked, bound, model, call) if needs_sequence else None
        request = self._codec.readdress(
            checked,
            model,
            route.backend_version(peek.version),
            await self._backend.profile(call),
        )
        if request is None or model in self._refusing:  # the server does not accept this form
            return await self._translated(checked, peek, bound, call)
        response = await self._backend.infer(request, call, sequence)
        names = (
            peek.model if route.rewrite.model else "",
            (peek.version or route.version) if route.rewrite.version else "",
        )
        offload = self._labour
        try:
            if not offload.forwards_here(response, checked):
                return await self._relabel_aside(response, checked, names, call)
            try:
                return self._relabel(response, checked, *names, limits)
            except CostlyError:
                rewrite = self._codec.relabel
                return await offload.answered_aside(
                    call, rewrite, response, checked, *names, limits
                )
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
        """Return whether to translate after ``error``: the server cannot give outputs in the
        requested form.

        All later requests to the model are translated too. The model runs a second time for this
        request, so a step of a sequence is not repeated.
        """
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
        """Rewrite the response in a helper process, which needs no tensors of the request."""
        if isinstance(asked, HttpRequest):
            asked = replace(asked, body=())
        offload = self._labour
        rewrite, limits = self._codec.relabel, offload.limits
        return await offload.answered_aside(call, rewrite, answer, asked, *names, limits)

    async def _sequence(
        self, wire: Req, bound: Bound, model: str, call: Call
    ) -> SequenceName | None:
        offload, read_sequence = self._labour, self._codec.sequence
        try:
            if bound.route.validate or offload.reads_here(wire):
                sequence_id = read_sequence(wire, offload.limits)
            else:
                sequence_id = await offload.aside(call, read_sequence, wire, offload.limits)
        except CostlyError:
            sequence_id = await offload.aside(call, read_sequence, wire, offload.limits)
        return None if sequence_id is None else SequenceName(model, sequence_id)


def _count_inflated(checked: Any, wire: Any, call: Call) -> None:
    """Count the body of ``checked`` as new memory if it is not that of ``wire``, whose encoding was
    undone."""
    body = parts(checked)
    if size(body) > SMALL:
        count_new(body, parts(wire), call.memory)


class Ways(Protocol):
    """Makes the pipelines of the routes."""

    def translate(self, labour: Labour[Any, Any], gateway: Gateway) -> Translate[Any, Any]:
        """Make the pipeline that goes through the canonical form."""
        ...

    def forward(
        self,
        codec: Forwarding[Any, Any],
        labour: Labour[Any, Any],
        backend: Exchanging,
        otherwise: Translate[Any, Any],
    ) -> Forward[Any, Any]:
        """Make the pipeline that passes messages through."""
        ...


class Plain:
    """Makes the untraced pipelines."""

    translate: Final = staticmethod(Translate)
    forward: Final = staticmethod(Forward)


def _begun(wire: Any, late: LateMessage) -> Any:
    """Return ``wire`` with the first bytes of its deferred message."""
    return replace(wire, message=(beginning(late.beginning),), late=None)


class Frontend(Generic[Req, Resp]):
    """Answers the requests of one protocol."""

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        codec: Codec[Req, Resp],
        gateway: Gateway,
        limits: Limits,
        aside: Aside | None = None,
        gate: Gate | None = None,
        ways: Ways | None = None,
    ) -> None:
        """``offload`` reads and writes long text in helper processes; None does it in this process.
        ``authorizer`` None allows every request. ``pipeline_factory`` None makes the untraced
        pipelines."""
        ways = ways or Plain()
        self.codec: Final = codec
        self._gate: Final = gate
        self._lacks: Final = frozenset(Datatype) - codec.caps.datatypes
        self.gateway: Final = gateway
        self.labour: Final = Labour(codec, limits, aside)
        self._translate: Final[Translate[Req, Resp]] = ways.translate(self.labour, gateway)
        # By backend: there may be thousands of routes, and a reload builds this on the event loop.
        backends = {id(binding.backend): binding.backend for binding in gateway.bound}
        by_backend = {key: self._forwarding(backend, ways) for key, backend in backends.items()}
        self._ways: Final[dict[Bound, Way[Req, Resp]]] = {
            binding: self._translate
            if binding.route.rewrite.renames_tensors or binding in gateway.branches
            else by_backend[id(binding.backend)]
            for binding in gateway.bound
        }

    def _forwarding(self, backend: Backend, ways: Ways) -> Way[Req, Resp]:
        """Return the pipeline to ``backend`` for routes that rename no tensor."""
        if (
            isinstance(backend, Exchanging)
            and isinstance(self.codec, Forwarding)
            and backend.codec.name == self.codec.name
            and self.codec.forwards
        ):
            return ways.forward(self.codec, self.labour, backend, self._translate)
        return self._translate

    async def respond(self, wire: Req, call: Call, late: LateMessage | None = None) -> Resp:
        """Answer ``wire``, with an error response if need be, and note the outcome on ``call``.
        ``deferred`` is the message of ``wire`` if it is not inflated yet."""
        call.protocol = self.codec.name
        call.lacks = self._lacks
        try:
            summary = self.codec.peek(wire if late is None else _begun(wire, late))
            call.operation = OPERATIONS[summary.operation]
            call.model = summary.model
            self._check_names(summary)
            if self._gate is not None:
                summary = await self._gate.admitted(summary, call)
            if late is not None:
                await self._inflate(wire, late, summary, call)
            if summary.operation is not InferRequest:
                return await self._translate.perform(wire, call)
            binding = self.gateway.bind(summary.model, summary.version, call)
            pipeline = self._ways[binding] if summary.forwards else self._translate
            call.way = pipeline.name
            return await pipeline.infer(wire, summary, binding, call)
        except GatewayError as error:
            return self.refuse(error, wire, call)
        except Exception:  # noqa: BLE001 - a bug must cost one request, not the process
            _log.exception("internal error while serving %s", call.protocol, extra=BUG)
            return self.refuse(GatewayError(Kind.INTERNAL, "internal error"), wire, call)

    def _check_names(self, peek: Peek) -> None:
        """Raise BAD_REQUEST for a name that is not accepted, before access rules and routes see
        it."""
        names = self.gateway.names
        if peek.model:
            names.check(peek.model)
        if peek.version:
            names.check(peek.version, "model version")

    async def _inflate(self, wire: Any, late: LateMessage, early: Peek, call: Call) -> None:
        """Put the whole message into ``wire``. Raises GatewayError, also if its names differ from
        ``authorized``, the summary that was checked."""
        message = await late.whole(call.memory)
        call.bytes_in = len(message)
        wire.late, wire.message = None, (message,)
        summary = self.codec.peek(wire)
        if (summary.operation, summary.model, summary.version) != (
            early.operation,
            early.model,
            early.version,
        ):
            raise bad_request(
                f"the names in a compressed message must be in its first {BEGINNING} bytes"
            )

    async def welcome(self, call: Call) -> None:
        """Authenticate the client of a new stream. Raises GatewayError before the stream is opened:
        the number of streams is limited, and an open one may stay idle for hours."""
        call.protocol = self.codec.name
        if self._gate is not None:
            await self._gate.known(call)

    async def read_streamed(self, wire: Req, call: Call) -> tuple[InferRequest, Parsed, Bound]:
        """Parse ``wire``, one request of a stream; return its inference, how it was parsed and its
        route, which is noted on ``call``. Raises GatewayError."""
        call.protocol = self.codec.name
        call.lacks = self._lacks
        call.way = self._translate.name
        summary = self.codec.peek(wire)
        call.model = summary.model
        self._check_names(summary)
        if self._gate is not None:
            await self._gate.admitted(summary, call)
        binding = self.gateway.bind(summary.model, summary.version, call)
        parsed = await self._translate.parse(wire, call)
        assert isinstance(parsed.operation, InferRequest)
        return parsed.operation, parsed, binding

    def refuse(self, error: GatewayError, wire: Req, call: Call) -> Resp:
        """Return ``error`` in this protocol's form, with the request id that is logged."""
        call.protocol = self.codec.name
        call.fail(error)
        if call.request_id:
            call.returned.setdefault(REQUEST_ID, call.request_id)
        return self.codec.build_error(error, wire)

"""A server behind the gateway: a transport and a codec behind the Backend protocol.

What is sent is the matter of the codec, and where to and how often that of ``sending``.

*Rule 1.* A description that a request or an answer does not fit may be old. A request that was not
sent is tried once more with a newer one; else the next request asks for it.
*Rule 2.* A question that a server makes nothing of is asked in another way, where its protocol has
one; that of an inference never is.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from infergate.backends.base import several
from infergate.backends.carriers import HTTP_HEADERS, RPC_HEADERS, HeaderAccess
from infergate.backends.checking import Checking
from infergate.backends.descriptions import LIFETIME, Descriptions, configured
from infergate.backends.detection import Detection
from infergate.backends.endpoints import Balance, Endpoints, Lease, Site
from infergate.backends.headers import HeaderRule
from infergate.backends.messages import Messages
from infergate.backends.queueing import Queue
from infergate.backends.remembered import DOUBTFUL
from infergate.backends.sending import Sending, late
from infergate.backends.watching import Watcher, Watching
from infergate.codecs.base import Codec, Profile, Rephrasing, Streaming
from infergate.codecs.profiles import GENERIC, detect
from infergate.core.accounting import count_tensors, parts
from infergate.core.aside import Aside
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.figures import PlaceFigures
from infergate.core.limits import HEADER_BUDGET, CostlyError, Limits
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelConfig,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelUnloadRequest,
    Operation,
    ServerMetadata,
    ServerMetadataRequest,
)
from infergate.core.sequences import SequenceName, sequence_of
from infergate.core.tally import Tally
from infergate.routing.budget import LEAST, SHARE, RetryBudget
from infergate.transport.base import Dropping, Endpoint, StreamUpstream, Upstream

__all__ = ["HTTP_HEADERS", "RPC_HEADERS", "HeaderAccess", "RemoteBackend", "Server"]
Req = TypeVar("Req")
Resp = TypeVar("Resp")

_PATIENCE: Final = 2.0  # seconds a server has to tell a model's configuration
_LASTING: Final = frozenset(
    {Kind.BAD_REQUEST, Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.UNSUPPORTED}
)
"""Refusals to tell a configuration that the next request would meet too."""
_UNFITTING: Final = frozenset({Kind.BAD_REQUEST, Kind.NOT_FOUND, Kind.BACKEND_GARBAGE})
"""What comes of a request that was made, or an answer that was read, by an old description."""
_OUTDATED: Final = frozenset({Kind.BAD_REQUEST, Kind.NO_BACKEND})
"""Refusals of a request that an old description may have led to."""
_NOT_UNDERSTOOD: Final = frozenset(
    {
        Kind.BAD_REQUEST,
        Kind.NOT_FOUND,
        Kind.METHOD_NOT_ALLOWED,
        Kind.UNSUPPORTED,
        Kind.BACKEND_GARBAGE,
        Kind.BACKEND_ERROR,
    }
)
"""What a server says, or is said of it, that makes nothing of a question."""


@dataclass(frozen=True, slots=True)
class Server:
    """What the operator says of a backend. ``timeout`` in seconds; ``profile`` None: ask it."""

    name: str
    endpoints: Sequence[Endpoint | Site]
    timeout: float = 30.0
    profile: Profile | None = None
    forward_headers: Sequence[str] = ()
    return_headers: Sequence[str] = ()
    balance: Balance = field(default_factory=Balance)
    watching: Watching = field(default_factory=Watching)
    key: Callable[[Call], str] | None = None
    """What requests have in common that are to go to one endpoint; empty: nothing."""
    max_requests: int = 0
    """Inferences it is sent at once; 0: as many as come."""
    max_queue: int = 0
    """Inferences that wait for their turn."""
    retry_share: float = SHARE
    """Of the inferences in progress: how many may be tries beyond the first."""
    retry_least: int = LEAST
    header_budget: int = HEADER_BUDGET
    """How many may be in any case."""


class RemoteBackend(Generic[Req, Resp]):
    """Speaks ``codec`` to the endpoints of ``server`` over ``upstream``."""

    def __init__(  # noqa: PLR0913 - what it stands on
        self,
        server: Server,
        codec: Codec[Req, Resp],
        upstream: Upstream[Req, Resp],
        headers: HeaderAccess[Req, Resp],
        limits: Limits,
        *,
        tally: Tally | None = None,
        aside: Aside | None = None,
    ) -> None:
        """``tally`` is where its retries and the like are counted, ``aside`` where messages that
        take long are read and written; None: here."""
        tally = tally or Tally()
        self.name: Final = server.name
        self.protocol: Final = codec.name
        self.datatypes: Final = codec.caps.datatypes
        self.sequences: Final = codec.caps.sequences
        self.codec: Final = codec
        self._upstream: Final = upstream
        self._messages: Final = Messages(server.name, codec, limits, aside)
        sites = [e if isinstance(e, Site) else Site(e, str(e)) for e in server.endpoints]
        self._endpoints: Final = Endpoints(server.name, sites, server.balance)
        dropping = upstream if isinstance(upstream, Dropping) else None
        check = Checking(codec, upstream, limits).check
        self._watcher: Final = Watcher(self._endpoints, server.watching, check, dropping)
        self._endpoints.suspect = self._watcher.suspect
        self.figures: Final = self._endpoints.figures
        self.start: Final = self._watcher.start
        queue = _queue(server, tally)
        self._queue: Final = queue
        self._sending: Final = Sending(
            server.name,
            self._endpoints,
            upstream,
            headers,
            timeout=server.timeout,
            forwarded=HeaderRule(server.forward_headers, server.header_budget),
            returned=HeaderRule(server.return_headers),
            key=server.key,
            budget=RetryBudget(server.retry_share, server.retry_least),
            queue=queue,
            tally=tally,
        )
        self.infer: Final = self._sending.infer
        """See :class:`~infergate.backends.sending.Sending`."""
        self._rephrasing: Final = _rephrasing(codec)
        self._detection: Final = Detection(server.profile, self._ask_profile)
        self._descriptions: Final = Descriptions(self._ask_description)

    def over(
        self, wrapped: Callable[[Upstream[Req, Resp]], Upstream[Req, Resp]]
    ) -> RemoteBackend[Req, Resp]:
        """The same, but its operations pass by what ``wrapped`` makes of its upstream: for somebody
        to look at. What is known and counted is one for both. Not to be closed."""
        other = copy.copy(self)
        upstream = wrapped(self._upstream)
        sending = self._sending.over(upstream)
        vars(other).update(_upstream=upstream, _sending=sending, infer=sending.infer)
        return other

    @property
    def spreads(self) -> bool:
        """Whether there are several endpoints, to one of which a sequence must keep."""
        return self._endpoints.spreads

    @property
    def ready(self) -> bool | None:
        """See Watched."""
        return self._endpoints.ready if self._watcher.checks else None

    @property
    def places(self) -> PlaceFigures | None:
        """See Bounded."""
        return None if self._queue is None else self._queue.figures

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Translate ``operation``, exchange it, and read the answer."""
        if self.codec.described and isinstance(operation, InferRequest):
            return await self._infer_described(operation, call)
        profile = await self.profile(call)
        messages = self._messages
        if messages.is_long(operation, profile):
            wire = await messages.write_aside(operation, profile, call)
        else:
            wire = messages.write(operation, profile, call)
        try:
            answer = await self._answer(operation, wire, call)
            try:
                return messages.read(answer, operation, call)
            except CostlyError:
                return await messages.read_aside(answer, operation, call)
        except GatewayError as error:
            if error.kind not in _NOT_UNDERSTOOD:
                raise
            otherwise = self._rephrasing(operation, error.kind)
            if otherwise is None:
                raise
            return await self._ask_otherwise(operation, otherwise, error, call)

    def _answer(self, operation: Operation, wire: Req, call: Call) -> Awaitable[Resp]:
        if isinstance(operation, InferRequest):
            return self.infer(wire, call, self._sequence(operation, call))
        return self._sending.exchange(wire, call)

    async def _ask_otherwise(
        self, operation: Operation, wire: Req, first: GatewayError, call: Call
    ) -> Answer:
        """Rule 2."""
        try:
            answer = await self._sending.exchange(wire, call)
            return await self._messages.read_either(answer, operation, call)
        except GatewayError as error:
            if error.kind not in _NOT_UNDERSTOOD:
                raise
            if not isinstance(operation, ModelMetadataRequest):
                raise first from error
            absent = first.kind is error.kind is Kind.NOT_FOUND
            raise GatewayError(
                Kind.NOT_FOUND if absent else Kind.UNSUPPORTED,
                f"backend '{self.name}' does not tell the metadata of model '{operation.model}'; "
                "it can be declared under 'models' in the gateway's configuration",
                detail=f"{first.public} {first.detail}; {error.public} {error.detail}",
            ) from error

    async def _infer_described(self, request: InferRequest, call: Call) -> Answer:
        """Rule 1."""
        profile = await self.profile(call)
        declared, messages = call.declared, self._messages
        model = declared or await self.describe(request.model, request.version, call)
        try:
            wire = (
                await messages.write_aside(request, profile, call, model)
                if messages.is_long(request, profile)
                else messages.write(request, profile, call, model)
            )
        except GatewayError as error:
            if declared or error.kind not in _OUTDATED:
                raise
            newer = await self.describe(request.model, request.version, call, newer=True)
            if newer == model:
                raise
            model = newer
            wire = await messages.write_aside(request, profile, call, model)
        answer = await self.infer(wire, call, self._sequence(request, call))
        try:
            try:
                return messages.read(answer, request, call, model)
            except CostlyError:
                return await messages.read_aside(answer, request, call, model)
        except GatewayError as error:
            if error.kind in _UNFITTING:
                self._descriptions.doubt(request.model, request.version)
            raise

    async def stream(
        self, request: InferRequest, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """See Backend. One answer, from a server that has no streams. What goes wrong after one
        that was told to be the last is no error: clients that tell answers apart by their order
        would take it for the answer to their next request."""
        codec = self.codec
        begun = ended = False
        wire, model = await self._streamed(request, call)
        if wire is not None:
            assert isinstance(codec, Streaming)
            sequence = self._sequence(request, call)
            try:
                async with aclosing(self._sending.stream(wire, call, sequence)) as messages:
                    async for message in messages:
                        answer = await self._messages.read_streamed(message, request, call, model)
                        begun = True
                        if answer is not None:
                            new = count_tensors(answer.outputs, parts(message), call.memory)
                            yield answer
                            call.memory.shrink(new)
                            ended = answer.last
            except GatewayError as error:
                if ended:  # all that was asked for is there; only its end was still to come
                    return
                if begun or error.kind is not Kind.UNSUPPORTED:
                    raise
            else:
                return
        try:
            answered = await self.perform(request, call)
        except GatewayError as error:
            if error.kind is Kind.UNSUPPORTED:  # it may have become a decoupled model
                self._descriptions.doubt(request.model, request.version)
            raise
        assert isinstance(answered, InferResponse)
        yield replace(answered, last=True)

    async def _streamed(
        self, request: InferRequest, call: Call
    ) -> tuple[Req | None, ModelMetadata | None]:
        """What asks for a stream, None where there is none to ask for; and the model's metadata,
        where the former needs it."""
        codec = self.codec
        if not (isinstance(codec, Streaming) and isinstance(self._upstream, StreamUpstream)):
            return None, None
        await self.kind(call)  # streams depend on it, whatever the rest does
        profile = await self.profile(call)
        model = None
        if codec.describes_streams(profile):
            model = await self.describe(request.model, request.version, call)
        return codec.build_stream_request(request, profile, model), model

    def _sequence(self, request: InferRequest, call: Call) -> SequenceName | None:
        """The sequence that ``request`` is of, where that matters: to the choice of an endpoint, or
        because nothing of a sequence is sent twice."""
        matters = self.sequences and (self.spreads or call.retry.idempotent)
        return sequence_of(request) if matters else None

    async def everywhere(self, operation: Operation, call: Call) -> Sequence[Answer]:
        """See Backend. Of a model that may have been changed no description is believed."""
        wire = self.codec.build_request(operation, await self.kind(call))
        self._sending.forward(wire, call)
        call.tighten(time.monotonic() + self._sending.allowed(call))
        began = time.monotonic()
        try:
            asked = (self._one(wire, operation, each, call) for each in self._endpoints.all())
            outcomes = await asyncio.gather(*asked)
        finally:
            call.backend_seconds += time.monotonic() - began
            if isinstance(operation, ModelLoadRequest | ModelUnloadRequest):
                self._descriptions.forget(operation.model)
        failed = [each for each in outcomes if isinstance(each, GatewayError)]
        if failed:
            try:
                raise several(failed, len(outcomes), self.name)
            finally:
                del failed, outcomes  # see Sending: one that failed alone is raised as it is
        return [each for each in outcomes if not isinstance(each, GatewayError)]

    async def _one(
        self, wire: Req, operation: Operation, lease: Lease, call: Call
    ) -> Answer | GatewayError:
        try:
            answer = await self._sending.to(lease, wire, call)
            return await self._messages.read_either(answer, operation, call)
        except GatewayError as error:
            return error

    async def profile(self, call: Call) -> Profile:
        """What kind of server this is: asked for where requests depend on it, else as known."""
        if not self.codec.profiled:
            return self._detection.known
        return await self.kind(call)

    async def kind(self, call: Call) -> Profile:
        """See Backend: declared, or asked for; what every server of a protocol does is added."""
        call.tighten(time.monotonic() + self._sending.allowed(call))
        try:
            told = await self._detection.profile(call)
        except TimeoutError:
            raise late(self.name) from None
        caps = self.codec.caps
        return replace(
            told,
            tells_config=told.tells_config or caps.tells_config,
            tells_statistics=told.tells_statistics or caps.tells_statistics,
        )

    async def _ask_profile(self, call: Call) -> Profile:
        question = ServerMetadataRequest()
        wire = self.codec.build_request(question, GENERIC)
        told = await self._sending.exchange(wire, call)
        answer = await self._messages.read_either(told, question, call)
        assert isinstance(answer, ServerMetadata)
        return detect(answer)

    async def classifies(self, call: Call) -> bool:
        """By the protocol, or by the kind of server, which is asked for."""
        return self.codec.caps.classifies or (await self.kind(call)).classifies

    async def describe(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        """See Backend."""
        call.tighten(time.monotonic() + self._sending.allowed(call))
        try:
            return await self._descriptions.get(model, version, call, newer=newer)
        except TimeoutError:
            raise late(self.name) from None

    async def _ask_description(
        self, model: str, version: str, call: Call
    ) -> tuple[ModelMetadata, float]:
        told = await self.perform(ModelMetadataRequest(model, version), call)
        assert isinstance(told, ModelMetadata)
        if told.max_batch_size is not None:
            return told, LIFETIME
        call.tighten(time.monotonic() + _PATIENCE)
        try:
            return await self._configured(told, model, version, call), LIFETIME
        except GatewayError as error:
            return told, LIFETIME if error.kind in _LASTING else DOUBTFUL

    async def _configured(
        self, told: ModelMetadata, model: str, version: str, call: Call
    ) -> ModelMetadata:
        """``told`` and what is known by the configuration alone, which not every kind of server has
        or tells."""
        if not (await self.kind(call)).tells_config:
            return told
        config = await self.perform(ModelConfigRequest(model, version), call)
        assert isinstance(config, ModelConfig)
        return configured(told, config.settings)

    async def close(self) -> None:
        """Look after its endpoints no longer, and close the connections to all of them."""
        await self._watcher.stop()
        await self._upstream.close()


def _queue(server: Server, tally: Tally) -> Queue | None:
    if not server.max_requests:
        return None
    return Queue(server.name, server.max_requests, server.max_queue, tally)


def _rephrasing(codec: Codec[Req, Resp]) -> Callable[[Operation, Kind], Req | None]:
    """Another way that ``codec`` has to ask something."""
    return codec.rephrase if isinstance(codec, Rephrasing) else lambda _operation, _told: None

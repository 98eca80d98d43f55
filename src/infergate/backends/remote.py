"""A backend of remote servers: an upstream and a codec behind the ``Backend`` protocol.

The codec decides what is sent; ``request_sender`` decides where to and how often.

*Rule 1.* Cached metadata that does not fit a request or response may be outdated. A request that
was not sent yet is rebuilt once with fresh metadata; otherwise the next request fetches it.
*Rule 2.* If a server does not understand a request, the alternative form that its codec may offer
is tried. Inferences are never sent in another form.
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

_PATIENCE: Final = 2.0  # seconds for the request for a model's configuration
_LASTING: Final = frozenset(
    {Kind.BAD_REQUEST, Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.UNSUPPORTED}
)
"""Errors of a configuration request that the next one would meet too."""
_UNFITTING: Final = frozenset({Kind.BAD_REQUEST, Kind.NOT_FOUND, Kind.BACKEND_GARBAGE})
"""Errors that outdated metadata may cause in writing a request or reading a response."""
_OUTDATED: Final = frozenset({Kind.BAD_REQUEST, Kind.NO_BACKEND})
"""Errors of building a request that outdated metadata may cause."""
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
"""Errors of a request that the server does not support in this form."""


@dataclass(frozen=True, slots=True)
class Server:
    """The configuration of a backend. ``timeout`` is in seconds; without ``profile``, the kind of
    server is detected."""

    name: str
    endpoints: Sequence[Endpoint | Site]
    timeout: float = 30.0
    profile: Profile | None = None
    forward_headers: Sequence[str] = ()
    return_headers: Sequence[str] = ()
    balance: Balance = field(default_factory=Balance)
    watching: Watching = field(default_factory=Watching)
    key: Callable[[Call], str] | None = None
    """Returns the key of requests that belong on the same endpoint; empty: no key."""
    max_requests: int = 0
    """Maximum concurrent inferences; 0: unlimited."""
    max_queue: int = 0
    """Maximum inferences waiting in the queue."""
    retry_share: float = SHARE
    """Retries allowed at a time, as a share of the inferences in progress."""
    retry_least: int = LEAST
    """Retries allowed at a time in any case."""
    header_budget: int = HEADER_BUDGET
    """Maximum bytes of forwarded headers."""


class RemoteBackend(Generic[Req, Resp]):
    """Speaks ``codec`` to the endpoints of ``settings`` over ``upstream``."""

    def __init__(  # noqa: PLR0913 - dependency injection
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
        """``counters`` receives retry and queue statistics. Without ``offload``, long messages are
        read and written on the event loop."""
        tally = tally or Tally()
        self.name: Final = server.name
        self.protocol: Final = codec.name
        self.datatypes: Final = codec.caps.datatypes
        self.sequences: Final = codec.caps.sequences
        self.codec: Final = codec
        self._upstream: Final = upstream
        self._messages: Final = Messages(server.name, codec, limits, aside)
        configured = [
            endpoint if isinstance(endpoint, Site) else Site(endpoint, str(endpoint))
            for endpoint in server.endpoints
        ]
        self._endpoints: Final = Endpoints(server.name, configured, server.balance)
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
        """The request sender's ``infer``, for pass-through requests."""
        self._rephrasing: Final = _rephrasing(codec)
        self._detection: Final = Detection(server.profile, self._ask_profile)
        self._descriptions: Final = Descriptions(self._ask_description)

    def over(
        self, wrapped: Callable[[Upstream[Req, Resp]], Upstream[Req, Resp]]
    ) -> RemoteBackend[Req, Resp]:
        """Return a copy whose exchanges go through ``wrap(upstream)``, so that they can be
        observed. It shares all state and must not be closed."""
        copied = copy.copy(self)
        upstream = wrapped(self._upstream)
        sending = self._sending.over(upstream)
        vars(copied).update(_upstream=upstream, _sending=sending, infer=sending.infer)
        return copied

    @property
    def spreads(self) -> bool:
        """Whether there are several endpoints, so that a sequence must keep to one of them."""
        return self._endpoints.spreads

    @property
    def ready(self) -> bool | None:
        """Whether any endpoint can serve, according to health checks; None if checks are off or
        have not run yet."""
        return self._endpoints.ready if self._watcher.checks else None

    @property
    def places(self) -> PlaceFigures | None:
        """The use of the concurrency limit; None if there is no limit."""
        return None if self._queue is None else self._queue.figures

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Build the request, exchange it, and parse the response."""
        if self.codec.described and isinstance(operation, InferRequest):
            return await self._infer_described(operation, call)
        profile = await self.profile(call)
        messages = self._messages
        if messages.is_long(operation, profile):
            wire = await messages.write_aside(operation, profile, call)
        else:
            wire = messages.write(operation, profile, call)
        try:
            response = await self._answer(operation, wire, call)
            try:
                return messages.read(response, operation, call)
            except CostlyError:
                return await messages.read_aside(response, operation, call)
        except GatewayError as error:
            if error.kind not in _NOT_UNDERSTOOD:
                raise
            alternative = self._rephrasing(operation, error.kind)
            if alternative is None:
                raise
            return await self._ask_otherwise(operation, alternative, error, call)

    def _answer(self, operation: Operation, wire: Req, call: Call) -> Awaitable[Resp]:
        if isinstance(operation, InferRequest):
            return self.infer(wire, call, self._sequence(operation, call))
        return self._sending.exchange(wire, call)

    async def _ask_otherwise(
        self, operation: Operation, wire: Req, first: GatewayError, call: Call
    ) -> Answer:
        """Send the alternative form of a request that the server did not understand."""
        try:
            response = await self._sending.exchange(wire, call)
            return await self._messages.read_either(response, operation, call)
        except GatewayError as error:
            if error.kind not in _NOT_UNDERSTOOD:
                raise
            if not isinstance(operation, ModelMetadataRequest):
                raise first from error
            is_unknown_model = first.kind is error.kind is Kind.NOT_FOUND
            raise GatewayError(
                Kind.NOT_FOUND if is_unknown_model else Kind.UNSUPPORTED,
                f"backend '{self.name}' does not provide the metadata of model "
                f"'{operation.model}'; declare it under 'models' in the gateway's configuration",
                detail=f"{first.public} {first.detail}; {error.public} {error.detail}",
            ) from error

    async def _infer_described(self, request: InferRequest, call: Call) -> Answer:
        """Send an inference whose messages depend on the model's metadata (Rule 1)."""
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
            fresh = await self.describe(request.model, request.version, call, newer=True)
            if fresh == model:
                raise
            model = fresh
            wire = await messages.write_aside(request, profile, call, model)
        response = await self.infer(wire, call, self._sequence(request, call))
        try:
            try:
                return messages.read(response, request, call, model)
            except CostlyError:
                return await messages.read_aside(response, request, call, model)
        except GatewayError as error:
            if error.kind in _UNFITTING:
                self._descriptions.doubt(request.model, request.version)
            raise

    async def stream(
        self, request: InferRequest, call: Call
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``; a server without streams yields its one response.
        Errors after a response marked as the last are dropped: clients that match responses by
        order would take such an error for the response to their next request."""
        codec = self.codec
        has_message = has_last = False
        wire, model = await self._streamed(request, call)
        if wire is not None:
            assert isinstance(codec, Streaming)
            sequence = self._sequence(request, call)
            try:
                async with aclosing(self._sending.stream(wire, call, sequence)) as messages:
                    async for message in messages:
                        response = await self._messages.read_streamed(message, request, call, model)
                        has_message = True
                        if response is not None:
                            counted_bytes = count_tensors(
                                response.outputs, parts(message), call.memory
                            )
                            yield response
                            call.memory.shrink(counted_bytes)
                            has_last = response.last
            except GatewayError as error:
                if has_last:  # the responses are complete; only the end of the stream was due
                    return
                if has_message or error.kind is not Kind.UNSUPPORTED:
                    raise
            else:
                return
        try:
            response_message = await self.perform(request, call)
        except GatewayError as error:
            if error.kind is Kind.UNSUPPORTED:  # the model may have become decoupled
                self._descriptions.doubt(request.model, request.version)
            raise
        assert isinstance(response_message, InferResponse)
        yield replace(response_message, last=True)

    async def _streamed(
        self, request: InferRequest, call: Call
    ) -> tuple[Req | None, ModelMetadata | None]:
        """Return the message that starts a stream, or None if streams are not supported; and the
        model's metadata, if that message depends on it."""
        codec = self.codec
        if not (isinstance(codec, Streaming) and isinstance(self._upstream, StreamUpstream)):
            return None, None
        await self.kind(call)  # streams need a detected profile even if other requests do not
        profile = await self.profile(call)
        model = None
        if codec.describes_streams(profile):
            model = await self.describe(request.model, request.version, call)
        return codec.build_stream_request(request, profile, model), model

    def _sequence(self, request: InferRequest, call: Call) -> SequenceName | None:
        """Return the sequence of ``request`` if it affects the choice of the endpoint or forbids
        resending."""
        is_relevant = self.sequences and (self.spreads or call.retry.idempotent)
        return sequence_of(request) if is_relevant else None

    async def everywhere(self, operation: Operation, call: Call) -> Sequence[Answer]:
        """Carry out ``operation`` on every endpoint concurrently. Loading or unloading a model
        drops its cached metadata."""
        wire = self.codec.build_request(operation, await self.kind(call))
        self._sending.forward(wire, call)
        call.tighten(time.monotonic() + self._sending.allowed(call))
        started = time.monotonic()
        try:
            exchanges = (self._one(wire, operation, item, call) for item in self._endpoints.all())
            outcomes = await asyncio.gather(*exchanges)
        finally:
            call.backend_seconds += time.monotonic() - started
            if isinstance(operation, ModelLoadRequest | ModelUnloadRequest):
                self._descriptions.forget(operation.model)
        errors = [item for item in outcomes if isinstance(item, GatewayError)]
        if errors:
            try:
                raise several(errors, len(outcomes), self.name)
            finally:
                del errors, outcomes  # a single error is raised unchanged and refers to this frame
        return [item for item in outcomes if not isinstance(item, GatewayError)]

    async def _one(
        self, wire: Req, operation: Operation, lease: Lease, call: Call
    ) -> Answer | GatewayError:
        try:
            response = await self._sending.to(lease, wire, call)
            return await self._messages.read_either(response, operation, call)
        except GatewayError as error:
            return error

    async def profile(self, call: Call) -> Profile:
        """Return the profile for building a request; it is detected only if the codec's requests
        depend on it."""
        if not self.codec.profiled:
            return self._detection.known
        return await self.kind(call)

    async def kind(self, call: Call) -> Profile:
        """Return the declared or detected profile, plus what every server of the protocol
        supports."""
        call.tighten(time.monotonic() + self._sending.allowed(call))
        try:
            profile = await self._detection.profile(call)
        except TimeoutError:
            raise late(self.name) from None
        capabilities = self.codec.caps
        return replace(
            profile,
            tells_config=profile.tells_config or capabilities.tells_config,
            tells_statistics=profile.tells_statistics or capabilities.tells_statistics,
        )

    async def _ask_profile(self, call: Call) -> Profile:
        request = ServerMetadataRequest()
        wire = self.codec.build_request(request, GENERIC)
        wire_response = await self._sending.exchange(wire, call)
        response = await self._messages.read_either(wire_response, request, call)
        assert isinstance(response, ServerMetadata)
        return detect(response)

    async def classifies(self, call: Call) -> bool:
        """Return whether the protocol or this kind of server supports classification."""
        return self.codec.caps.classifies or (await self.kind(call)).classifies

    async def describe(
        self, model: str, version: str, call: Call, *, newer: bool = False
    ) -> ModelMetadata:
        """Return a model's metadata, at most a minute old, with ``refresh`` at most a second."""
        call.tighten(time.monotonic() + self._sending.allowed(call))
        try:
            return await self._descriptions.get(model, version, call, newer=newer)
        except TimeoutError:
            raise late(self.name) from None

    async def _ask_description(
        self, model: str, version: str, call: Call
    ) -> tuple[ModelMetadata, float]:
        metadata = await self.perform(ModelMetadataRequest(model, version), call)
        assert isinstance(metadata, ModelMetadata)
        if metadata.max_batch_size is not None:
            return metadata, LIFETIME
        call.tighten(time.monotonic() + _PATIENCE)
        try:
            return await self._configured(metadata, model, version, call), LIFETIME
        except GatewayError as error:
            return metadata, LIFETIME if error.kind in _LASTING else DOUBTFUL

    async def _configured(
        self, told: ModelMetadata, model: str, version: str, call: Call
    ) -> ModelMetadata:
        """Add the fields that only the model's configuration contains, if the server provides
        it."""
        if not (await self.kind(call)).tells_config:
            return told
        config = await self.perform(ModelConfigRequest(model, version), call)
        assert isinstance(config, ModelConfig)
        return configured(told, config.settings)

    async def close(self) -> None:
        """Stop monitoring the endpoints, and close all connections."""
        await self._watcher.stop()
        await self._upstream.close()


def _queue(server: Server, tally: Tally) -> Queue | None:
    if not server.max_requests:
        return None
    return Queue(server.name, server.max_requests, server.max_queue, tally)


def _rephrasing(codec: Codec[Req, Resp]) -> Callable[[Operation, Kind], Req | None]:
    """Return the function that builds a codec's alternative form of a request, or None."""
    return codec.rephrase if isinstance(codec, Rephrasing) else lambda _operation, _told: None

"""A backend of remote servers: an upstream and a codec behind the ``Backend`` protocol.

The codec builds the message. ``request_sender`` chooses the endpoint and decides on retries.

*Rule 1.* Cached metadata that does not fit a request or response may be outdated. If the request
has not been sent yet, it is rebuilt once with fresh metadata. If the request has been sent, the
next request fetches fresh metadata.
*Rule 2.* A request that a server does not understand is sent again in an alternative form if the
codec has one. Inferences have no alternative forms."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final, Generic, TypeVar

from infergate.backends.attempts import SenderState
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.base import combine_errors
from infergate.backends.codec_offload import BackendCodecOffload
from infergate.backends.endpoint_monitor import EndpointMonitor
from infergate.backends.endpoints import ConfiguredEndpoint, EndpointHandle, Endpoints
from infergate.backends.health_check import check_health
from infergate.backends.message_access import HTTP_MESSAGES, RPC_MESSAGES, MessageAccess
from infergate.backends.metadata_cache import (
    LIFETIME_SECONDS,
    ModelMetadataCache,
    add_configuration,
)
from infergate.backends.profile_detection import ProfileDetection
from infergate.backends.request_preparation import deadline_error
from infergate.backends.request_sender import RequestSender
from infergate.backends.single_flight import STALE_SECONDS
from infergate.codecs.base import Codec, Profile, SupportsServerVariants, SupportsStreaming
from infergate.codecs.profiles import GENERIC, detect_profile
from infergate.core.accounting import body_parts, charge_tensors
from infergate.core.counters import BackendCounters
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits, NeedsOffloadError
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelConfig,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadata,
    ModelMetadataRequest,
    ModelUnloadRequest,
    Operation,
    Response,
    ServerMetadata,
    ServerMetadataRequest,
)
from infergate.core.offload import Offload
from infergate.core.priorities import requested_priority
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceKey, sequence_key
from infergate.core.stats import ConcurrencyStats
from infergate.routing.budget import RetryBudget
from infergate.transport.base import StreamingUpstream, SupportsDisconnect, Upstream

__all__ = ["HTTP_MESSAGES", "RPC_MESSAGES", "MessageAccess", "RemoteBackend"]
Req = TypeVar("Req")
Resp = TypeVar("Resp")

_CONFIG_TIMEOUT_SECONDS: Final = 2.0  # the timeout of a request for a model's configuration
_PERMANENT_ERRORS: Final = frozenset(
    {Kind.BAD_REQUEST, Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.UNSUPPORTED}
)
"""Errors of a configuration request that a retry cannot resolve."""
_STALE_METADATA_ERRORS: Final = frozenset({Kind.BAD_REQUEST, Kind.NOT_FOUND, Kind.BACKEND_GARBAGE})
"""Errors that outdated metadata may cause after an inference has been sent."""
_STALE_REQUEST_ERRORS: Final = frozenset({Kind.BAD_REQUEST, Kind.NO_BACKEND})
"""Errors that outdated metadata may cause while a request is built."""
_EXAMPLE_TENSORS: Final = (
    "{inputs: [{name: x, datatype: FP32, shape: [-1, 3]}], "
    "outputs: [{name: y, datatype: FP32, shape: [-1]}]}"
)
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
"""Errors that may mean that the server does not support the form of a request."""


class RemoteBackend(Generic[Req, Resp]):
    """Exchanges messages of ``codec`` with the endpoints in ``settings`` over ``upstream``."""

    def __init__(  # noqa: PLR0913 - dependency injection
        self,
        settings: BackendSettings,
        codec: Codec[Req, Resp],
        upstream: Upstream[Req, Resp],
        access: MessageAccess[Req, Resp],
        limits: Limits,
        *,
        counters: BackendCounters | None = None,
        offload: Offload | None = None,
    ) -> None:
        """``counters`` receives retry and queue statistics. Without ``offload``, long messages are
        read and written on the event loop."""
        counters = counters or BackendCounters()
        self.name: Final = settings.name
        self.protocol: Final = codec.name
        self.datatypes: Final = codec.capabilities.datatypes
        self.supports_sequences: Final = codec.capabilities.supports_sequences
        self.codec: Final = codec
        self._upstream: Final = upstream
        self.codec_offload: Final = BackendCodecOffload(settings.name, codec, limits, offload)
        configured = [
            endpoint
            if isinstance(endpoint, ConfiguredEndpoint)
            else ConfiguredEndpoint(endpoint, str(endpoint))
            for endpoint in settings.endpoints
        ]
        self._endpoints: Final = Endpoints(settings.name, configured, settings.balancing)
        disconnecting = upstream if isinstance(upstream, SupportsDisconnect) else None
        check = partial(check_health, codec, upstream, limits)
        self._monitor: Final = EndpointMonitor(
            self._endpoints, settings.monitoring, check, disconnecting, watch=settings.watch
        )
        self._endpoints.on_suspected = self._monitor.check_suspected
        self.endpoint_stats: Final = self._endpoints.stats
        self.start: Final = self._monitor.start
        self._queue: Final = settings.make_queue(counters)
        self.has_queue: Final = self._queue is not None
        self._sender: Final = RequestSender(
            settings,
            SenderState(
                self._endpoints,
                RetryBudget(settings.retry_share, settings.min_retries),
                self._queue,
                counters,
            ),
            upstream,
            access,
        )
        self.infer: Final = self._sender.infer
        """The request sender's ``infer``, which the pass-through pipeline calls directly."""
        self._profile_detection: Final = ProfileDetection(
            settings.profile, self._fetch_profile, codec.capabilities
        )
        self.fixed_profile: Final = self._profile_detection.declared
        """The configured profile, or None if the profile is detected."""
        self._inference_profile: Final = self.fixed_profile or GENERIC
        """The profile for inferences, if the codec does not need a detected profile."""
        self._metadata_cache: Final = ModelMetadataCache(self._fetch_metadata)

    def with_upstream(
        self, wrap: Callable[[Upstream[Req, Resp]], Upstream[Req, Resp]]
    ) -> RemoteBackend[Req, Resp]:
        """Return a copy that uses ``wrap(upstream)`` for its exchanges, so that the caller can
        observe them. The copy shares all state and must not be closed."""
        copied = copy.copy(self)
        upstream = wrap(self._upstream)
        sending = self._sender.with_upstream(upstream)
        vars(copied).update(_upstream=upstream, _sender=sending, infer=sending.infer)
        return copied

    @property
    def has_several_endpoints(self) -> bool:
        """Whether there are several endpoints, in which case a sequence must stay on one."""
        return self._endpoints.has_several

    @property
    def relay_sender(self) -> RequestSender[Req, Resp] | None:
        """The sender of messages that are exchanged without a task, or None if the upstream needs
        tasks."""
        return None if self._sender.begin is None else self._sender

    @property
    def is_ready(self) -> bool | None:
        return self._endpoints.is_ready if self._monitor.is_checking else None

    @property
    def concurrency_stats(self) -> ConcurrencyStats | None:
        """The concurrency limit and its current use, or None if there is no limit."""
        return None if self._queue is None else self._queue.stats

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Build the request, send it, and parse the response."""
        if self.codec.needs_metadata and isinstance(operation, InferRequest):
            return await self._infer_with_metadata(operation, context)
        if self.codec.needs_profile:
            profile = await self.server_profile(context)
        elif isinstance(operation, InferRequest):
            profile = self._inference_profile
        else:
            profile = self._profile_detection.cached_profile
        messages = self.codec_offload
        try:
            wire = messages.write_inline(operation, profile, context)
            if wire is None:
                wire = await messages.write_request(operation, profile, context)
            if isinstance(operation, InferRequest):
                sequence = self._read_scheduling(operation, context)
                response = await self.infer(wire, context, sequence)
            else:
                response = await self._sender.exchange(wire, context)
            try:
                return messages.read_inline(response, operation, context)
            except NeedsOffloadError:
                return await messages.read_in_helper(response, operation, context)
        except GatewayError as error:
            if error.kind not in _NOT_UNDERSTOOD:
                raise
            alternative = self._build_alternative(operation, error.kind)
            if alternative is None:
                raise self._add_advice(operation, context, error) from None
            return await self._try_alternative(operation, alternative, error, context)

    def _build_alternative(self, operation: Operation, error_kind: Kind) -> Req | None:
        if not isinstance(self.codec, SupportsServerVariants):
            return None
        return self.codec.build_alternative_request(operation, error_kind)

    async def _try_alternative(
        self, operation: Operation, wire: Req, first_error: GatewayError, context: RequestContext
    ) -> Response:
        try:
            response = await self._sender.exchange(wire, context)
            return await self.codec_offload.read_response(response, operation, context)
        except GatewayError as error:
            if error.kind not in _NOT_UNDERSTOOD:
                raise
            if not isinstance(operation, ModelMetadataRequest):
                raise first_error from error
            raise self._no_metadata_error(operation, context, first_error, error) from error

    def _add_advice(
        self, operation: Operation, context: RequestContext, error: GatewayError
    ) -> GatewayError:
        """Return ``error``, or an error with advice if the server provides no metadata."""
        if error.kind is Kind.UNSUPPORTED and isinstance(operation, ModelMetadataRequest):
            return self._no_metadata_error(operation, context, error)
        return error

    def _no_metadata_error(
        self, operation: ModelMetadataRequest, context: RequestContext, *errors: GatewayError
    ) -> GatewayError:
        # the section 'models' has the names that clients use
        name = json.dumps(context.record.model or operation.model, ensure_ascii=False)
        is_unknown_model = all(error.kind is Kind.NOT_FOUND for error in errors)
        return GatewayError(
            Kind.NOT_FOUND if is_unknown_model else Kind.UNSUPPORTED,
            f"backend '{self.name}' does not provide the metadata of model "
            f"'{operation.model}'; declare it under 'models' in the gateway's configuration, "
            f"for example: models: {{{name}: {_EXAMPLE_TENSORS}}}",
            detail="; ".join(f"{error.public} {error.detail}" for error in errors),
        )

    async def _infer_with_metadata(
        self, request: InferRequest, context: RequestContext
    ) -> Response:
        """Send an inference whose messages depend on the model's metadata (Rule 1)."""
        profile = self.inference_profile() or await self.server_profile(context)
        declared, messages = context.policy.declared_metadata, self.codec_offload
        model = declared or await self.describe(request.model, request.version, context)
        try:
            wire = messages.write_inline(request, profile, context, model)
            if wire is None:
                wire = await messages.write_request(request, profile, context, model)
        except GatewayError as error:
            if declared or error.kind not in _STALE_REQUEST_ERRORS:
                raise
            fresh = await self.describe(request.model, request.version, context, refresh=True)
            if fresh == model:
                raise
            model = fresh
            wire = await messages.write_request(request, profile, context, model)
        response = await self.infer(wire, context, self._read_scheduling(request, context))
        try:
            try:
                return messages.read_inline(response, request, context, model)
            except NeedsOffloadError:
                return await messages.read_in_helper(response, request, context, model)
        except GatewayError as error:
            if error.kind in _STALE_METADATA_ERRORS:
                self._metadata_cache.mark_stale(request.model, request.version)
            raise

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``. A server without streams sends one response. Errors
        after a response that is marked as the last are dropped, because clients that match
        responses by order would attribute such an error to their next request."""
        codec = self.codec
        has_message = has_last = False
        wire, model = await self._build_stream_request(request, context)
        if wire is not None:
            assert isinstance(codec, SupportsStreaming)
            sequence = self._read_scheduling(request, context)
            try:
                async with aclosing(self._sender.stream(wire, context, sequence)) as messages:
                    async for message in messages:
                        response = await self.codec_offload.read_stream_response(
                            message, request, context, model
                        )
                        has_message = True
                        if response is not None:
                            counted_bytes = charge_tensors(
                                response.outputs, body_parts(message), context.memory
                            )
                            yield response
                            context.memory.shrink(counted_bytes)
                            has_last = response.is_last
            except GatewayError as error:
                if has_last:  # only the end of the stream is missing
                    return
                if has_message or error.kind is not Kind.UNSUPPORTED:
                    raise
            else:
                return
        try:
            response_message = await self.perform(request, context)
        except GatewayError as error:
            if error.kind is Kind.UNSUPPORTED:  # the model may have become decoupled
                self._metadata_cache.mark_stale(request.model, request.version)
            raise
        assert isinstance(response_message, InferResponse)
        yield replace(response_message, is_last=True)

    async def _build_stream_request(
        self, request: InferRequest, context: RequestContext
    ) -> tuple[Req | None, ModelMetadata | None]:
        """Return the message that starts a stream and the model's metadata. The message is None if
        streams are not supported; the metadata is None if the message does not depend on
        metadata."""
        codec = self.codec
        if not (
            isinstance(codec, SupportsStreaming) and isinstance(self._upstream, StreamingUpstream)
        ):
            return None, None
        # Streams need a detected profile even if other requests do not.
        await self.server_profile(context)
        profile = await self.request_profile(context)
        model = None
        if codec.streams_need_metadata(profile):
            model = await self.describe(request.model, request.version, context)
        return codec.build_stream_request(request, profile, model), model

    def _read_scheduling(
        self, request: InferRequest, context: RequestContext
    ) -> SequenceKey | None:
        """Set the priority of ``context``, and return the sequence that determines the endpoint."""
        if self._queue is not None:
            context.priority = requested_priority(request.parameters)
        is_relevant = self.supports_sequences and (
            self._endpoints.has_several or context.policy.retry.is_idempotent
        )
        return sequence_key(request) if is_relevant else None

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> Sequence[Response]:
        """Execute ``operation`` on every endpoint concurrently. Loading or unloading a model drops
        its cached metadata."""
        wire = self.codec.build_request(operation, await self.server_profile(context))
        self._sender.preparation.prepare(wire, context)
        context.shorten_deadline(time.monotonic() + self._sender.preparation.timeout_for(context))
        started = time.monotonic()
        try:
            exchanges = (
                self._perform_on(wire, operation, item, context)
                for item in self._endpoints.all_handles()
            )
            outcomes = await asyncio.gather(*exchanges)
        finally:
            context.record.backend_seconds += time.monotonic() - started
            if isinstance(operation, ModelLoadRequest | ModelUnloadRequest):
                self._metadata_cache.invalidate_model(operation.model)
        errors = [item for item in outcomes if isinstance(item, GatewayError)]
        if errors:
            try:
                raise combine_errors(errors, len(outcomes), self.name)
            finally:
                del errors, outcomes  # a single error is raised unchanged and refers to this frame
        return [item for item in outcomes if not isinstance(item, GatewayError)]

    async def _perform_on(
        self, wire: Req, operation: Operation, handle: EndpointHandle, context: RequestContext
    ) -> Response | GatewayError:
        try:
            response = await self._sender.exchange_with(handle, wire, context)
            return await self.codec_offload.read_response(response, operation, context)
        except GatewayError as error:
            return error

    async def request_profile(self, context: RequestContext) -> Profile:
        """Return the profile for a request. Detect the profile only if the codec depends on it."""
        return self.current_profile() or await self.server_profile(context)

    def cached_metadata(self, model: str, version: str) -> ModelMetadata | None:
        """Return the cached metadata of a model, or None."""
        return self._metadata_cache.cached(model, version)

    def current_profile(self) -> Profile | None:
        """Return the profile for a request, or None if ``request_profile`` must detect the
        profile."""
        if self.codec.needs_profile:
            return self._profile_detection.current_profile
        return self._profile_detection.cached_profile

    def inference_profile(self) -> Profile | None:
        """Return the profile for an inference that ``perform`` builds, or None if the profile must
        be detected."""
        if self.codec.needs_profile:
            return self._profile_detection.current_profile
        return self._inference_profile

    async def server_profile(self, context: RequestContext) -> Profile:
        """Return the configured or detected profile. Raises GatewayError."""
        context.shorten_deadline(time.monotonic() + self._sender.preparation.timeout_for(context))
        try:
            return await self._profile_detection.profile(context)
        except TimeoutError:
            raise deadline_error(self.name) from None

    async def _fetch_profile(self, context: RequestContext) -> Profile:
        request = ServerMetadataRequest()
        wire = self.codec.build_request(request, GENERIC)
        wire_response = await self._sender.exchange(wire, context)
        response = await self.codec_offload.read_response(wire_response, request, context)
        assert isinstance(response, ServerMetadata)
        return detect_profile(response)

    async def supports_classification(self, context: RequestContext) -> bool:
        """Return whether the protocol, or this kind of server, supports classification."""
        return (
            self.codec.capabilities.supports_classification
            or (await self.server_profile(context)).supports_classification
        )

    async def describe(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        """Return metadata that is at most a minute or, with ``refresh``, at most a second old."""
        context.shorten_deadline(time.monotonic() + self._sender.preparation.timeout_for(context))
        try:
            return await self._metadata_cache.get(model, version, context, refresh=refresh)
        except TimeoutError:
            raise deadline_error(self.name) from None

    async def _fetch_metadata(
        self, model: str, version: str, context: RequestContext
    ) -> tuple[ModelMetadata, float]:
        metadata = await self.perform(ModelMetadataRequest(model, version), context)
        assert isinstance(metadata, ModelMetadata)
        if metadata.max_batch_size is not None:
            return metadata, LIFETIME_SECONDS
        context.shorten_deadline(time.monotonic() + _CONFIG_TIMEOUT_SECONDS)
        lifetime = LIFETIME_SECONDS
        try:
            if (await self.server_profile(context)).reports_config:
                config = await self.perform(ModelConfigRequest(model, version), context)
                assert isinstance(config, ModelConfig)
                metadata = add_configuration(metadata, config.settings)
        except GatewayError as error:
            if error.kind not in _PERMANENT_ERRORS:
                lifetime = STALE_SECONDS
        return metadata, lifetime

    async def close(self) -> None:
        """Stop monitoring the endpoints, and close all connections."""
        await self._monitor.stop()
        await self._upstream.close()

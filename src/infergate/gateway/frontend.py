"""Serves clients that speak one protocol. The backends may speak any protocol.

``make_pipeline`` chooses one of two pipelines for each route: ``PassThrough`` if tensors need not
be decoded, or else ``Translation``.

- Every request gets a response in the client's protocol, even if an error occurs.
- Both pipelines reject the same requests and return the same responses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from infergate.backends.base import Backend
from infergate.backends.relay_support import SupportsRawMessages
from infergate.codecs.base import (
    Codec,
    ParsedRequest,
    RequestSummary,
    SupportsContentEncoding,
    SupportsPassThrough,
)
from infergate.core.bounded_cache import BoundedCache
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import OPERATION_NAMES, InferRequest
from infergate.core.offload import Offload
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.wire import DeferredMessage
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.deferred_message import PREFIX_BYTES, leading_fields
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.internal_error import internal_error
from infergate.gateway.pass_through import PassThrough
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.steps import UNTRACED, Steps
from infergate.gateway.translation import Translation

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Pipeline = Translation[Req, Resp] | PassThrough[Req, Resp]
"""The pipeline of a route's inferences. The access log contains its name."""
_MAX_TRANSLATED_MODELS: Final = 1024
"""Maximum number of cached names of models that need translation, per backend."""


class RequestAuthorizer(Protocol):
    """Authorizes the requests of each client, and applies rate limits."""

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        """Authorize the request with ``summary``. Return ``summary``, or a copy with a false
        ``can_pass_through`` if the message must be parsed to check it. Raises GatewayError."""
        ...

    async def authenticate(self, context: RequestContext) -> None:
        """Authenticate the client before it sends a request. Raises GatewayError."""
        ...


@runtime_checkable
class SupportsDecisions(Protocol):
    """An authorizer that can decide on most requests without I/O."""

    def decide(self, summary: RequestSummary, context: RequestContext) -> RequestSummary | None:
        """Authorize the request like ``authorize``. If authorization needs I/O, return None without
        any effect."""
        ...


def _with_first_bytes(wire: Any, deferred: DeferredMessage) -> Any:
    return replace(wire, message=(leading_fields(deferred.prefix),), deferred=None)


class Frontend(Generic[Req, Resp]):
    """Serves the requests of one protocol."""

    def __init__(  # noqa: PLR0913, PLR0917 - dependency injection
        self,
        codec: Codec[Req, Resp],
        gateway: InferenceGateway,
        limits: Limits,
        offload: Offload | None = None,
        authorizer: RequestAuthorizer | None = None,
        steps: Steps = UNTRACED,
    ) -> None:
        """``offload`` reads and writes long text in helper processes. If ``offload`` is None, this
        process reads and writes all text. Without ``authorizer``, every request is allowed."""
        self.codec: Final = codec
        self.open_request: Final = (
            codec.open_request if isinstance(codec, SupportsContentEncoding) else None
        )
        self._authorizer: Final = authorizer
        self.decide: Final[
            Callable[[RequestSummary, RequestContext], RequestSummary | None] | None
        ] = authorizer.decide if isinstance(authorizer, SupportsDecisions) else None
        """Authorizes a request if no I/O is needed. It is None without an authorizer, or if the
        authorizer always needs I/O."""
        self.unsupported_datatypes: Final = frozenset(Datatype) - codec.capabilities.datatypes
        self.gateway: Final = gateway
        self._check_model: Final = gateway.name_rule.check_model
        if offload is not None:
            offload = steps.offload(offload)
        self.codec_offload: Final = CodecOffload(codec, limits, offload)
        self._steps: Final = steps
        self.translation: Final[Translation[Req, Resp]] = Translation(
            self.codec_offload, gateway, steps
        )
        self._translated_models: Final[dict[Backend, BoundedCache[str, None]]] = {}
        """For each backend, the models whose inferences must be translated (see
        ``PassThrough``)."""
        self.pipelines: Final[dict[RouteBinding, Pipeline[Req, Resp]]] = {}
        """The pipelines of routes. A pipeline is created when its route is first used, because
        creating the pipelines of thousands of routes in a reload would block the event loop."""

    @property
    def can_relay(self) -> bool:
        """Whether requests may be served without a task. This requires a backend that can relay
        requests, and authorization without I/O."""
        decides = self._authorizer is None or self.decide is not None
        return decides and self.gateway.can_relay(self.codec.name)

    def make_pipeline(self, binding: RouteBinding) -> Pipeline[Req, Resp]:
        """Create, keep and return the pipeline of ``binding``."""
        route, backend, codec = binding.route, binding.backend, self.codec
        pipeline: Pipeline[Req, Resp] = self.translation
        if (
            not (route.rewrite.renames_tensors or route.has_other_targets or route.has_layers)
            and isinstance(backend, SupportsRawMessages)
            and isinstance(codec, SupportsPassThrough)
            and backend.codec.name == codec.name
            and codec.can_pass_through
        ):
            models = self._translated_models.setdefault(
                backend, BoundedCache(_MAX_TRANSLATED_MODELS)
            )
            pipeline = PassThrough(
                route, codec, self.codec_offload, backend, self.translation, models, self._steps
            )
        self.pipelines[binding] = pipeline
        return pipeline

    async def respond(
        self, wire: Req, context: RequestContext, deferred: DeferredMessage | None = None
    ) -> Resp:
        """Return the response, or the error response, to ``wire``, and record the outcome.
        ``deferred`` is the message of ``wire`` if the message is not inflated yet."""
        record = context.record
        record.protocol = self.codec.name
        context.unsupported_datatypes = self.unsupported_datatypes
        try:
            summary = self.codec.summarize(
                wire if deferred is None else _with_first_bytes(wire, deferred)
            )
            record.operation = OPERATION_NAMES[summary.operation]
            record.model = summary.model
            self._check_model(summary.model, summary.version)
            if self._authorizer is not None:
                summary = await self._authorizer.authorize(summary, context)
            if deferred is not None:
                await self._inflate(wire, deferred, summary, context)
            if self.open_request is not None:
                self.open_request(wire)
            if summary.operation is not InferRequest:
                return await self.translation.perform(wire, context)
            binding = self.gateway.bind(summary.model, summary.version, context)
            pipeline: Pipeline[Req, Resp] = self.translation
            if summary.can_pass_through:
                pipeline = self.pipelines.get(binding) or self.make_pipeline(binding)
            record.pipeline = pipeline.name
            return await pipeline.infer(wire, summary, binding, context)
        except GatewayError as error:
            return self.refuse(error, wire, context)
        except Exception:  # noqa: BLE001 - a bug must fail only one request
            return self.refuse(internal_error(f"serving {self.codec.name}"), wire, context)

    async def _inflate(
        self,
        wire: Any,
        deferred: DeferredMessage,
        authorized: RequestSummary,
        context: RequestContext,
    ) -> None:
        """Set the message of ``wire`` to the inflated message. Raises GatewayError, for example if
        the names in the message differ from ``authorized``, the authorized summary."""
        message = await deferred.inflate(context.memory)
        context.record.bytes_in = len(message)
        wire.deferred, wire.message = None, (message,)
        summary = self.codec.summarize(wire)
        if (summary.operation, summary.model, summary.version) != (
            authorized.operation,
            authorized.model,
            authorized.version,
        ):
            raise bad_request(
                "the model name and version of a compressed message must be in the first "
                f"{PREFIX_BYTES} bytes of the inflated message"
            )

    async def open_stream(self, context: RequestContext) -> None:
        """Authenticate the client before its stream is opened, because the number of streams is
        limited and an open stream may stay idle for hours. Raises GatewayError."""
        context.record.protocol = self.codec.name
        if self._authorizer is not None:
            await self._authorizer.authenticate(context)

    async def parse_stream_request(
        self, wire: Req, context: RequestContext
    ) -> tuple[InferRequest, ParsedRequest, RouteBinding]:
        """Parse ``wire``, a request of a stream. Return the inference, the parse result and the
        route, and record the route in ``context``. Raises GatewayError."""
        record = context.record
        record.protocol = self.codec.name
        context.unsupported_datatypes = self.unsupported_datatypes
        record.pipeline = self.translation.name
        summary = self.codec.summarize(wire)
        record.model = summary.model
        self._check_model(summary.model, summary.version)
        if self._authorizer is not None:
            await self._authorizer.authorize(summary, context)
        binding = self.gateway.bind(summary.model, summary.version, context)
        parsed = await self.translation.parse(wire, context)
        assert isinstance(parsed.operation, InferRequest)
        return parsed.operation, parsed, binding

    def refuse(self, error: GatewayError, wire: Req, context: RequestContext) -> Resp:
        """Record ``error``, and return it as a response in this protocol with the request id."""
        record = context.record
        record.protocol = self.codec.name
        context.record_error(error)
        if context.request_id and REQUEST_ID_HEADER not in context.response_headers:
            request_id = {REQUEST_ID_HEADER: context.request_id}
            context.response_headers = {**context.response_headers, **request_id}
        return self.codec.build_error(error, wire)

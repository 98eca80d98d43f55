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

from infergate.backends.base import Backend, attribute_parse_error
from infergate.codecs.base import (
    Codec,
    OutputsNeedTranslationError,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    RequestSummary,
    SupportsContentEncoding,
    SupportsPassThrough,
)
from infergate.core.accounting import (
    body_parts,
    charge_new_buffers,
    charge_tensors,
    needs_accounting,
)
from infergate.core.bounded_cache import BoundedCache
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits, NeedsOffloadError
from infergate.core.log_events import BUG
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.messages import OPERATION_NAMES, InferRequest, Response
from infergate.core.offload import Offload
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.sequences import SequenceKey
from infergate.core.wire import DeferredMessage, HttpRequest, total_size
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.deferred_message import PREFIX_BYTES, leading_fields
from infergate.gateway.gateway import Gateway, RouteBinding
from infergate.gateway.http_stream import open_http_stream, single_response

Req = TypeVar("Req")
Resp = TypeVar("Resp")
Req_contra = TypeVar("Req_contra", contravariant=True)
Resp_co = TypeVar("Resp_co", covariant=True)
T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_TRANSLATED_MODELS: Final = 1024
"""Models of one backend that are remembered as needing translation."""


@runtime_checkable
class SupportsRawMessages(Protocol):
    """A backend that takes wire messages unchanged."""

    codec: Codec[Any, Any]

    @property
    def has_several_endpoints(self) -> bool:
        """Whether it has several endpoints, so that each sequence must keep to one of them."""
        ...

    def infer(
        self, wire: Any, context: RequestContext, sequence: SequenceKey | None = None
    ) -> Awaitable[Any]:
        """Send the inference ``wire`` and return the wire response. ``sequence`` is in the
        backend's names."""
        ...

    async def request_profile(self, context: RequestContext) -> Profile:
        """Return the backend's kind of server."""
        ...


class Pipeline(Protocol[Req_contra, Resp_co]):
    """How the inferences of one route are carried out."""

    @property
    def name(self) -> str:
        """The name in the access log."""
        ...

    async def infer(
        self,
        wire: Req_contra,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
    ) -> Resp_co:
        """Return the response to the inference in ``wire``, whose route is ``binding``."""
        ...


class RequestAuthorizer(Protocol):
    """Decides which client may request what, and how often."""

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        """Authorize the request described by ``summary`` and return the summary to continue with.
        Raises GatewayError."""
        ...

    async def authenticate(self, context: RequestContext) -> None:
        """Authenticate the client, whatever it is going to request. Raises GatewayError."""
        ...


class Translation(Generic[Req, Resp]):
    """Wire → canonical → gateway → canonical → wire. Serves every operation."""

    name: Final = "translate"

    def __init__(self, codec_offload: CodecOffload[Req, Resp], gateway: Gateway) -> None:
        self._codec_offload: Final = codec_offload
        self._gateway: Final = gateway

    async def infer(
        self, wire: Req, summary: RequestSummary, binding: RouteBinding, context: RequestContext
    ) -> Resp:
        """Parse the request, run the inference, build the response."""
        del summary
        parsed = await self.parse(wire, context)
        if parsed.wants_stream:
            response: Resp = await open_http_stream(
                self._gateway, self._codec_offload, parsed, wire, context
            )
            return response
        if parsed.single_response_error:
            result: Response = await single_response(self._gateway, parsed, context)
        else:
            assert isinstance(parsed.operation, InferRequest)
            result = await self._gateway.infer(parsed.operation, binding, context)
        return await self._build_response(result, parsed, context)

    async def perform(self, wire: Req, context: RequestContext) -> Resp:
        """Return the response to any operation other than an inference."""
        parsed = await self.parse(wire, context)
        self._gateway.name_rule.check_operation(parsed.operation)
        return await self._build_response(
            await self._gateway.perform(parsed.operation, context), parsed, context
        )

    async def parse(self, wire: Req, context: RequestContext) -> ParsedRequest:
        """Return the operation in ``wire``, with the model's metadata filled in where it is
        needed."""
        offload = self._codec_offload
        inline = offload.can_read_inline(wire)
        if inline:
            try:
                parsed = offload.codec.parse_request(wire, offload.limits)
            except NeedsOffloadError:
                inline = False
        if not inline:
            parsed = await offload.run_in_helper(context, offload.parse_request, wire)
        if isinstance(parsed, PartialInferRequest):
            partial = parsed
            try:
                parsed = await self.complete(partial, context, inline=inline)
            except NeedsOffloadError:
                parsed = await self.complete(partial, context, inline=False)
        operation = parsed.operation
        if isinstance(operation, InferRequest) and needs_accounting(operation.inputs):
            charge_tensors(operation.inputs, body_parts(wire), context.memory)
        return parsed

    async def _build_response(
        self, response: Response, parsed: ParsedRequest, context: RequestContext
    ) -> Resp:
        offload = self._codec_offload
        build = offload.codec.build_response
        if offload.is_short_response(response, parsed):
            return build(response, parsed)
        wire: Resp = (await offload.write_response(context, build, response, parsed))[0]
        return wire

    async def complete(
        self, partial: PartialInferRequest[T], context: RequestContext, *, inline: bool
    ) -> T:
        """Complete ``partial`` with the model's metadata. A request that contradicts cached
        metadata is checked once more against fresh metadata before it is refused."""
        model, version = partial.model, partial.version
        metadata = await self._gateway.describe(model, version, context)
        try:
            return await self._codec_offload.complete(partial, metadata, context, inline=inline)
        except GatewayError:
            fresh = await self._gateway.describe(model, version, context, newer=True)
            if fresh == metadata:
                raise
        return await self._codec_offload.complete(partial, fresh, context, inline=inline)


class PassThrough(Generic[Req, Resp]):
    """Passes the message on unchanged once ``validate`` has checked it; no tensor is decoded."""

    name: Final = "forward"

    def __init__(
        self,
        codec: SupportsPassThrough[Req, Resp],
        codec_offload: CodecOffload[Req, Resp],
        backend: SupportsRawMessages,
        translation: Translation[Req, Resp],
    ) -> None:
        self._codec: Final = codec
        self._validate = codec.validate
        self._rewrite_response = codec.rewrite_response
        self._codec_offload: Final = codec_offload
        self._backend: Final = backend
        self._translation: Final = translation
        self._translated_models: Final = BoundedCache[str, None](_MAX_TRANSLATED_MODELS)
        """The backend's models that cannot give outputs in the form that clients request."""

    async def infer(  # noqa: C901 - one path; an error raised in a helper would keep the message alive
        self, wire: Req, summary: RequestSummary, binding: RouteBinding, context: RequestContext
    ) -> Resp:
        """Check, rewrite, exchange, rewrite back. A message that is too costly to check is
        translated."""
        route, limits = binding.route, self._codec_offload.limits
        validated: Any  # Req, but mypy cannot narrow Req | PartialInferRequest[Req]
        if not route.validate:  # the operator trusts this route's clients
            validated = wire
        else:
            inline = self._codec_offload.can_read_inline(wire)
            try:
                if inline:
                    validated = self._validate(wire, limits)
                else:
                    validated = await self._codec_offload.run_in_helper(
                        context, self._codec.validate, wire, limits
                    )
                if isinstance(validated, PartialInferRequest):
                    validated = await self._translation.complete(validated, context, inline=inline)
            except NeedsOffloadError:
                return await self._translate(wire, summary, binding, context)
        checked: Req = validated
        if checked is not wire:
            _count_inflated(checked, wire, context)
        model = route.backend_model(summary.model)
        needs_sequence = self._backend.has_several_endpoints or route.retry.is_idempotent
        sequence = (
            await self._sequence_name(checked, binding, model, context) if needs_sequence else None
        )
        request = self._codec.rewrite_request(
            checked,
            model,
            route.backend_version(summary.version),
            await self._backend.request_profile(context),
        )
        if (
            request is None or model in self._translated_models
        ):  # the server does not accept this form
            return await self._translate(checked, summary, binding, context)
        response = await self._backend.infer(request, context, sequence)
        names = (
            summary.model if route.rewrite.model else "",
            (summary.version or route.version) if route.rewrite.version else "",
        )
        offload = self._codec_offload
        try:
            if not offload.can_rewrite_inline(response, checked):
                return await self._rewrite_in_helper(response, checked, names, context)
            try:
                return self._rewrite_response(response, checked, *names, limits)
            except NeedsOffloadError:
                rewrite = self._codec.rewrite_response
                return await offload.build_in_helper(
                    context, rewrite, response, checked, *names, limits
                )
        except GatewayError as error:
            if not await self._should_translate(error, checked, summary, binding, context):
                raise attribute_parse_error(error, binding.backend.name) from None
        return await self._translate(checked, summary, binding, context)

    def _translate(
        self, wire: Req, summary: RequestSummary, binding: RouteBinding, context: RequestContext
    ) -> Awaitable[Resp]:
        context.record.pipeline = self._translation.name
        return self._translation.infer(wire, summary, binding, context)

    async def _should_translate(
        self,
        error: GatewayError,
        checked: Req,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
    ) -> bool:
        """Return whether to translate after ``error``: the server cannot give outputs in the
        requested form.

        All later requests to the model are translated too. The model runs a second time for this
        request, so a step of a sequence is not repeated.
        """
        if not isinstance(error, OutputsNeedTranslationError):
            return False
        model = binding.route.backend_model(summary.model)
        self._translated_models[model] = None
        return await self._sequence_name(checked, binding, model, context) is None

    async def _rewrite_in_helper(
        self, response: Resp, request: Any, names: tuple[str, str], context: RequestContext
    ) -> Resp:
        """Rewrite the response in a helper process, which needs no tensors of the request."""
        if isinstance(request, HttpRequest):
            request = replace(request, body=())
        offload = self._codec_offload
        rewrite, limits = self._codec.rewrite_response, offload.limits
        return await offload.build_in_helper(context, rewrite, response, request, *names, limits)

    async def _sequence_name(
        self, wire: Req, binding: RouteBinding, model: str, context: RequestContext
    ) -> SequenceKey | None:
        offload, read_sequence = self._codec_offload, self._codec.sequence_of
        try:
            if binding.route.validate or offload.can_read_inline(wire):
                sequence_id = read_sequence(wire, offload.limits)
            else:
                sequence_id = await offload.run_in_helper(
                    context, read_sequence, wire, offload.limits
                )
        except NeedsOffloadError:
            sequence_id = await offload.run_in_helper(context, read_sequence, wire, offload.limits)
        return None if sequence_id is None else SequenceKey(model, sequence_id)


def _count_inflated(checked: Any, wire: Any, context: RequestContext) -> None:
    """Count the body of ``checked`` as new memory if it is not that of ``wire``, whose encoding was
    undone."""
    body = body_parts(checked)
    if total_size(body) > MIN_ACCOUNTED_BYTES:
        charge_new_buffers(body, body_parts(wire), context.memory)


class PipelineFactory(Protocol):
    """Makes the pipelines of the routes."""

    def make_translation(
        self, codec_offload: CodecOffload[Any, Any], gateway: Gateway
    ) -> Translation[Any, Any]:
        """Make the pipeline that goes through the canonical form."""
        ...

    def make_pass_through(
        self,
        codec: SupportsPassThrough[Any, Any],
        codec_offload: CodecOffload[Any, Any],
        backend: SupportsRawMessages,
        translation: Translation[Any, Any],
    ) -> PassThrough[Any, Any]:
        """Make the pipeline that passes messages through."""
        ...


class DefaultPipelines:
    """Makes the untraced pipelines."""

    make_translation: Final = staticmethod(Translation)
    make_pass_through: Final = staticmethod(PassThrough)


def _with_first_bytes(wire: Any, deferred: DeferredMessage) -> Any:
    """Return ``wire`` with the first bytes of its deferred message."""
    return replace(wire, message=(leading_fields(deferred.prefix),), deferred=None)


class Frontend(Generic[Req, Resp]):
    """Answers the requests of one protocol."""

    def __init__(  # noqa: PLR0913, PLR0917 - its collaborators
        self,
        codec: Codec[Req, Resp],
        gateway: Gateway,
        limits: Limits,
        offload: Offload | None = None,
        authorizer: RequestAuthorizer | None = None,
        pipeline_factory: PipelineFactory | None = None,
    ) -> None:
        """``offload`` reads and writes long text in helper processes; None does it in this process.
        ``authorizer`` None allows every request. ``pipeline_factory`` None makes the untraced
        pipelines."""
        pipeline_factory = pipeline_factory or DefaultPipelines()
        self.codec: Final = codec
        self._open_request: Final = (
            codec.open_request if isinstance(codec, SupportsContentEncoding) else None
        )
        self._authorizer: Final = authorizer
        self._unsupported_datatypes: Final = frozenset(Datatype) - codec.capabilities.datatypes
        self.gateway: Final = gateway
        self.codec_offload: Final = CodecOffload(codec, limits, offload)
        self._translation: Final[Translation[Req, Resp]] = pipeline_factory.make_translation(
            self.codec_offload, gateway
        )
        # By backend: there may be thousands of routes, and a reload builds this on the event loop.
        backends = {id(binding.backend): binding.backend for binding in gateway.bindings}
        by_backend = {
            key: self._pipeline_to(backend, pipeline_factory) for key, backend in backends.items()
        }
        self._pipelines: Final[dict[RouteBinding, Pipeline[Req, Resp]]] = {
            binding: self._translation
            if binding.route.rewrite.renames_tensors or binding in gateway.traffic_splits
            else by_backend[id(binding.backend)]
            for binding in gateway.bindings
        }

    def _pipeline_to(
        self, backend: Backend, pipeline_factory: PipelineFactory
    ) -> Pipeline[Req, Resp]:
        """Return the pipeline to ``backend`` for routes that rename no tensor."""
        if (
            isinstance(backend, SupportsRawMessages)
            and isinstance(self.codec, SupportsPassThrough)
            and backend.codec.name == self.codec.name
            and self.codec.can_pass_through
        ):
            return pipeline_factory.make_pass_through(
                self.codec, self.codec_offload, backend, self._translation
            )
        return self._translation

    async def respond(
        self, wire: Req, context: RequestContext, deferred: DeferredMessage | None = None
    ) -> Resp:
        """Answer ``wire``, with an error response if need be, and note the outcome on its record.
        ``deferred`` is the message of ``wire`` if it is not inflated yet."""
        record = context.record
        record.protocol = self.codec.name
        context.unsupported_datatypes = self._unsupported_datatypes
        try:
            summary = self.codec.summarize(
                wire if deferred is None else _with_first_bytes(wire, deferred)
            )
            record.operation = OPERATION_NAMES[summary.operation]
            record.model = summary.model
            self._check_names(summary)
            if self._authorizer is not None:
                summary = await self._authorizer.authorize(summary, context)
            if deferred is not None:
                await self._inflate(wire, deferred, summary, context)
            if self._open_request is not None:
                self._open_request(wire)
            if summary.operation is not InferRequest:
                return await self._translation.perform(wire, context)
            binding = self.gateway.bind(summary.model, summary.version, context)
            pipeline = self._pipelines[binding] if summary.can_pass_through else self._translation
            record.pipeline = pipeline.name
            return await pipeline.infer(wire, summary, binding, context)
        except GatewayError as error:
            return self.refuse(error, wire, context)
        except Exception:  # noqa: BLE001 - a bug must cost one request, not the process
            _log.exception("internal error while serving %s", self.codec.name, extra=BUG)
            return self.refuse(GatewayError(Kind.INTERNAL, "internal error"), wire, context)

    def _check_names(self, summary: RequestSummary) -> None:
        """Raise BAD_REQUEST for a name that is not accepted, before access rules and routes see
        it."""
        names = self.gateway.name_rule
        if summary.model:
            names.check(summary.model)
        if summary.version:
            names.check(summary.version, "model version")

    async def _inflate(
        self,
        wire: Any,
        deferred: DeferredMessage,
        authorized: RequestSummary,
        context: RequestContext,
    ) -> None:
        """Put the whole message into ``wire``. Raises GatewayError, also if its names differ from
        ``authorized``, the summary that was checked."""
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
                f"the names in a compressed message must be in its first {PREFIX_BYTES} bytes"
            )

    async def open_stream(self, context: RequestContext) -> None:
        """Authenticate the client of a new stream. Raises GatewayError before the stream is opened:
        the number of streams is limited, and an open one may stay idle for hours."""
        context.record.protocol = self.codec.name
        if self._authorizer is not None:
            await self._authorizer.authenticate(context)

    async def parse_stream_request(
        self, wire: Req, context: RequestContext
    ) -> tuple[InferRequest, ParsedRequest, RouteBinding]:
        """Parse ``wire``, one request of a stream; return its inference, how it was parsed and its
        route, which is noted on ``context``. Raises GatewayError."""
        record = context.record
        record.protocol = self.codec.name
        context.unsupported_datatypes = self._unsupported_datatypes
        record.pipeline = self._translation.name
        summary = self.codec.summarize(wire)
        record.model = summary.model
        self._check_names(summary)
        if self._authorizer is not None:
            await self._authorizer.authorize(summary, context)
        binding = self.gateway.bind(summary.model, summary.version, context)
        parsed = await self._translation.parse(wire, context)
        assert isinstance(parsed.operation, InferRequest)
        return parsed.operation, parsed, binding

    def refuse(self, error: GatewayError, wire: Req, context: RequestContext) -> Resp:
        """Return ``error`` in this protocol's form, with the request id that is logged."""
        record = context.record
        record.protocol = self.codec.name
        record.record_error(error)
        if context.request_id:
            context.response_headers.setdefault(REQUEST_ID_HEADER, context.request_id)
        return self.codec.build_error(error, wire)

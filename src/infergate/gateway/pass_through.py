"""The pipeline for routes whose clients and backend speak the same protocol: messages pass through
without being translated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from infergate.backends.base import attribute_parse_error
from infergate.backends.relay_support import SupportsRawMessages, SupportsRelay
from infergate.codecs.base import (
    OutputsNeedTranslationError,
    PartialInferRequest,
    RequestSummary,
    SupportsPassThrough,
    SupportsPriority,
)
from infergate.core.accounting import body_parts, charge_new_buffers
from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError
from infergate.core.limits import NeedsOffloadError
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.messages import ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceKey
from infergate.core.wire import HttpRequest, total_size
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.steps import PARSE, RENDER, Steps
from infergate.gateway.translation import Translation
from infergate.routing.table import Route

Req = TypeVar("Req")
Resp = TypeVar("Resp")

KnownMetadata = Callable[
    [str, str, RouteBinding, RequestContext, Callable[[str, str], ModelMetadata | None]],
    ModelMetadata | None,
]
"""The type of ``InferenceGateway.known_metadata``."""


class PassThrough(Generic[Req, Resp]):
    """Validates the messages of one route and passes them on without decoding tensors."""

    name: Final = "forward"

    def __init__(  # noqa: PLR0913, PLR0917 - dependency injection
        self,
        route: Route,
        codec: SupportsPassThrough[Req, Resp],
        codec_offload: CodecOffload[Req, Resp],
        backend: SupportsRawMessages,
        translation: Translation[Req, Resp],
        translated_models: BoundedCache[str, None],
        steps: Steps,
    ) -> None:
        """``translated_models`` are the models whose outputs the server cannot return in the format
        that clients request. All routes to the backend share ``translated_models``."""
        rewrite = route.rewrite
        self._route: Final = route
        self._renames_model: Final = bool(rewrite.model)
        self._renames_version: Final = bool(rewrite.version)
        self.renames: Final = self._renames_model or self._renames_version
        self._may_repeat: Final = route.retry.is_idempotent
        self._codec: Final = codec
        # ``validate`` is None if the operator trusts this route's clients.
        self.validate: Final = steps.sync(PARSE, codec.validate) if route.validate else None
        self.sequence_of: Final = codec.sequence_of
        prioritized = codec if backend.has_queue and isinstance(codec, SupportsPriority) else None
        self._prioritized_codec: Final = prioritized
        self.rewrite_request: Final = codec.rewrite_request
        self.rewrite_response: Final = steps.sync(RENDER, codec.rewrite_response)
        self.codec_offload: Final = codec_offload
        self.limits: Final = codec_offload.limits
        self.is_always_inline: Final = codec_offload.is_always_inline
        self._backend: Final = backend
        self.profile: Final = backend.fixed_profile
        self.translation: Final = translation
        self.translated_models: Final = translated_models
        relaying = None
        if isinstance(backend, SupportsRelay) and not route.retry.is_idempotent:
            relaying = backend
        self.relaying: Final[SupportsRelay | None] = relaying
        self.sender: Final = None if relaying is None else relaying.relay_sender
        """The sender of relayed requests, or None if requests need tasks."""

    def prepare_now(
        self,
        wire: Req,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
        known_metadata: KnownMetadata,
    ) -> tuple[Req | None, Any]:
        """Check and rewrite the message like ``infer``, but without waiting. The first result is
        the request to the backend, or None if ``infer`` must build the request. The second result
        is the argument ``checked`` for ``infer`` and ``deliver``. Raises GatewayError."""
        checked: Any = wire
        sender, relaying = self.sender, self.relaying
        assert sender is not None
        assert relaying is not None
        try:
            if not (self.is_always_inline or self.codec_offload.can_read_inline(wire)):
                return None, wire
            if self.validate is not None:
                checked = self.validate(wire, self.limits)
                if isinstance(checked, PartialInferRequest):
                    metadata = known_metadata(
                        checked.model, checked.version, binding, context, relaying.cached_metadata
                    )
                    completed = None if metadata is None else self._complete_now(checked, metadata)
                    if completed is None:
                        return None, checked
                    checked = completed
                if checked is not wire and body_parts(checked) is not body_parts(wire):
                    return None, checked  # the body was decoded, and must be charged
            if sender.endpoints.has_several and self.sequence_of(checked, self.limits) is not None:
                return None, checked
            model, version = summary.model, summary.version
            if self.renames:
                model, version, _ = self.rename(summary)
            profile = self.profile or relaying.current_profile()
            if profile is None or model in self.translated_models:
                return None, checked
            return self.rewrite_request(checked, model, version, profile), checked
        except NeedsOffloadError:
            return None, checked

    def _complete_now(self, partial: PartialInferRequest[Req], metadata: ModelMetadata) -> Any:
        """Return the completed ``partial``, or None if completing it takes long or ``partial``
        contradicts ``metadata``, which may be outdated."""
        if not self.codec_offload.can_complete_inline(partial):
            return None
        try:
            return partial.complete(metadata)
        except GatewayError:
            return None

    async def infer(
        self,
        wire: Req,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
        checked: Any = None,
    ) -> Resp:
        """Check and rewrite the request, send it, and rewrite the response. If the check raises
        NeedsOffloadError, the request is translated. ``checked`` is the second result of
        ``prepare_now`` if the caller has called it."""
        offload = self.codec_offload
        if checked is None:
            checked = wire  # the type is Req, but mypy cannot narrow Req | PartialInferRequest[Req]
        if self.validate is not None:
            inline = self.is_always_inline or offload.can_read_inline(wire)
            try:
                if checked is not wire:
                    pass
                elif inline:
                    checked = self.validate(wire, self.limits)
                else:
                    checked = await offload.run_in_helper(
                        context, self._codec.validate, wire, self.limits
                    )
                if isinstance(checked, PartialInferRequest):
                    checked = await self.translation.complete(checked, context, inline=inline)
            except NeedsOffloadError:
                return await self.translate(wire, summary, binding, context)
            if checked is not wire:
                _charge_inflated(checked, wire, context)
        model, version, _ = self.rename(summary)
        sequence = None
        if self._may_repeat or self._backend.has_several_endpoints:
            sequence = await self._sequence_name(checked, model, context)
        profile = self.profile or await self._backend.request_profile(context)
        request = self.rewrite_request(checked, model, version, profile)
        if request is None or model in self.translated_models:  # it cannot pass through
            return await self.translate(checked, summary, binding, context)
        self._read_priority(checked, context)
        response = await self._backend.infer(request, context, sequence)
        del request
        return await self.deliver(response, checked, summary, binding, context)

    def _read_priority(self, checked: Any, context: RequestContext) -> None:
        codec = self._prioritized_codec
        if codec is not None:
            context.priority = codec.priority_of(checked)

    def rename(self, summary: RequestSummary) -> tuple[str, str, tuple[str, str]]:
        """Return the model and the version for the backend, and the names for the response. An
        empty name leaves the name in the response unchanged."""
        model, version = summary.model, summary.version
        client_model = client_version = ""
        if self._renames_model:
            client_model, model = model, self._route.backend_model(model)
        if self._renames_version:
            client_version, version = version or self._route.version, self._route.rewrite.version
        return model, version, (client_model, client_version)

    async def deliver(
        self,
        response: Resp,
        checked: Any,
        summary: RequestSummary,
        binding: RouteBinding,
        context: RequestContext,
    ) -> Resp:
        """Rewrite ``response``, the response to ``checked``, or serve the request again with
        ``Translation``."""
        offload, limits = self.codec_offload, self.limits
        model, _, names = self.rename(summary)
        try:
            try:
                if self.is_always_inline or offload.can_rewrite_inline(response, checked):
                    return self.rewrite_response(response, checked, *names, limits)
            except NeedsOffloadError:  # the helper may need the request with its tensors
                return await offload.build_in_helper(
                    context, self._codec.rewrite_response, response, checked, *names, limits
                )
            return await self._rewrite_in_helper(response, checked, names, context)
        except GatewayError as error:
            if not await self._should_translate(error, checked, model, context):
                raise attribute_parse_error(error, binding.backend.name) from None
        return await self.translate(checked, summary, binding, context)

    def translate(
        self, wire: Req, summary: RequestSummary, binding: RouteBinding, context: RequestContext
    ) -> Awaitable[Resp]:
        """Serve the request with the ``Translation`` pipeline."""
        context.record.pipeline = self.translation.name
        return self.translation.infer(wire, summary, binding, context)

    async def _should_translate(
        self, error: GatewayError, checked: Req, model: str, context: RequestContext
    ) -> bool:
        """Return whether to translate the request after ``error``.

        If ``error`` means that the server cannot return outputs in the requested format, all
        later requests to the model are translated. This request is also translated, unless it
        belongs to a sequence, because translation runs the model a second time."""
        if not isinstance(error, OutputsNeedTranslationError):
            return False
        self.translated_models[model] = None
        return await self._sequence_name(checked, model, context) is None

    async def _rewrite_in_helper(
        self, response: Resp, request: Any, names: tuple[str, str], context: RequestContext
    ) -> Resp:
        """Rewrite the response in a helper process, without the request's tensors."""
        if isinstance(request, HttpRequest):
            request = replace(request, body=())
        rewrite, limits = self._codec.rewrite_response, self.limits
        return await self.codec_offload.build_in_helper(
            context, rewrite, response, request, *names, limits
        )

    async def _sequence_name(
        self, wire: Req, model: str, context: RequestContext
    ) -> SequenceKey | None:
        offload, read_sequence, limits = self.codec_offload, self._codec.sequence_of, self.limits
        try:
            if self.validate is not None or offload.can_read_inline(wire):
                sequence_id = read_sequence(wire, limits)
            else:
                sequence_id = await offload.run_in_helper(context, read_sequence, wire, limits)
        except NeedsOffloadError:
            sequence_id = await offload.run_in_helper(context, read_sequence, wire, limits)
        return None if sequence_id is None else SequenceKey(model, sequence_id)


def _charge_inflated(checked: Any, wire: Any, context: RequestContext) -> None:
    """Charge the body of ``checked`` to the request's memory if the body was decoded from a content
    encoding and is therefore not the body of ``wire``."""
    body = body_parts(checked)
    if total_size(body) > MIN_ACCOUNTED_BYTES:
        charge_new_buffers(body, body_parts(wire), context.memory)

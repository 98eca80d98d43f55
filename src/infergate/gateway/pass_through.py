"""The pipeline for routes whose client and backend speak the same protocol: the message passes on
unchanged."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from infergate.backends.base import attribute_parse_error
from infergate.codecs.base import (
    Codec,
    OutputsNeedTranslationError,
    PartialInferRequest,
    Profile,
    RequestSummary,
    SupportsPassThrough,
)
from infergate.core.accounting import body_parts, charge_new_buffers
from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError
from infergate.core.limits import NeedsOffloadError
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.request_context import RequestContext
from infergate.core.sequences import SequenceKey
from infergate.core.wire import HttpRequest, total_size
from infergate.gateway.codec_offload import CodecOffload
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.steps import PARSE, RENDER, Steps
from infergate.gateway.translation import Translation

Req = TypeVar("Req")
Resp = TypeVar("Resp")
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


class PassThrough(Generic[Req, Resp]):
    """Passes the message on unchanged once ``validate`` has checked it; no tensor is decoded."""

    name: Final = "forward"

    def __init__(
        self,
        codec: SupportsPassThrough[Req, Resp],
        codec_offload: CodecOffload[Req, Resp],
        backend: SupportsRawMessages,
        translation: Translation[Req, Resp],
        steps: Steps,
    ) -> None:
        self._codec: Final = codec
        self._validate: Final = steps.sync(PARSE, codec.validate)
        self._rewrite_response: Final = steps.sync(RENDER, codec.rewrite_response)
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

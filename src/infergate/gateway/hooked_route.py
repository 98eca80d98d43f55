"""Runs the request hooks of a route around its inferences."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from infergate.core.accounting import charge_tensors, needs_accounting
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, data_bytes
from infergate.gateway.route_layers import RouteInferences
from infergate.gateway.shared_memory import uses_shared_memory
from infergate.plugin_host.calls import plugin_call
from infergate.plugin_host.results import InvalidResultError, check_request, check_response
from infergate.plugin_host.runner import PluginCallError, PluginRunner, Step
from infergate.plugins.base import PluginCall
from infergate.plugins.hook import RequestHook

IGNORED: Final = object()
"""The result of a failed call of a hook whose errors are ignored."""


@dataclass(frozen=True, slots=True)
class ConfiguredHook:
    """A hook and its settings. Each call may take up to ``timeout`` seconds. With
    ``ignores_errors``, an inference continues unchanged if the hook fails."""

    runner: PluginRunner
    timeout: float
    ignores_errors: bool

    @property
    def hook(self) -> RequestHook:
        """The plug-in that implements the hook."""
        assert isinstance(self.runner.plugin, RequestHook)
        return self.runner.plugin

    def defines(self, method: str) -> bool:
        """Return whether the hook overrides ``method``. Only overridden methods are called."""
        return getattr(type(self.hook), method) is not getattr(RequestHook, method)

    async def run(self, step: Step, tensors: Sequence[Tensor], context: RequestContext) -> Any:
        """Return the result of ``step``, which calls a method of the hook with ``tensors``. Return
        ``IGNORED`` if ``step`` fails and errors are ignored. Raises GatewayError."""
        seconds = context.remaining_seconds(self.timeout)
        try:
            return await self.runner.run(
                step, seconds, memory=context.memory, held_bytes=data_bytes(tensors)
            )
        except PluginCallError:
            if not self.ignores_errors:
                raise
            return IGNORED


class HookedRoute:
    """Runs inferences on ``inner`` with ``hooks`` around them. The ``before`` method of the first
    hook runs first, and the ``after`` method of the first hook runs last."""

    def __init__(
        self, inner: RouteInferences, hooks: Sequence[ConfiguredHook], limits: Limits
    ) -> None:
        self._inner: Final = inner
        self._hooks: Final = tuple(hooks)
        self._limits: Final = limits

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        inference = _HookedInference(self._limits, context, is_stream=False)
        changed = await inference.before(request, self._hooks)
        response = inference.answer
        if response is None:
            response = await self._inner.infer(changed, context)
        return await inference.after(response)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        inference = _HookedInference(self._limits, context, is_stream=True)
        changed = await inference.before(request, self._hooks)
        if inference.answer is not None:
            yield await inference.after(replace(inference.answer, is_last=True))
            return
        async with aclosing(self._inner.stream(changed, context)) as responses:
            async for response in responses:
                yield await inference.after(response)


class _HookedInference:
    """The state of one inference that passes through the hooks."""

    def __init__(self, limits: Limits, context: RequestContext, *, is_stream: bool) -> None:
        self._limits: Final = limits
        self._context: Final = context
        self._is_stream: Final = is_stream
        self._passed: Final[list[tuple[ConfiguredHook, InferRequest, PluginCall]]] = []
        """The hooks that have passed the request on, each with the request and the call that the
        hook received."""
        self.answer: InferResponse | None = None
        """The response from the hook that answered the request, or None."""

    async def before(self, request: InferRequest, hooks: Sequence[ConfiguredHook]) -> InferRequest:
        """Run ``before`` of each hook until a hook answers the request. Return the request for the
        route."""
        if uses_shared_memory(request):
            raise GatewayError(
                Kind.UNSUPPORTED,
                "this route has request hooks, which cannot read tensors in shared memory",
            )
        for hook in hooks:
            call = plugin_call(self._context, is_stream=self._is_stream)
            result = None
            if hook.defines("before"):
                step = partial(self._run_before, hook.hook, request, call)
                result = await hook.run(step, request.inputs, self._context)
            if result is IGNORED:
                continue  # ``after`` must not run without ``before``
            if isinstance(result, InferResponse):
                hook.runner.counters.answers += 1
                self._charge(result.outputs, request.inputs)
                self.answer = result
                break
            self._passed.append((hook, request, call))
            if result is not None:
                self._charge(result.inputs, request.inputs)
                request = result
        return request

    async def _run_before(
        self, hook: RequestHook, request: InferRequest, call: PluginCall
    ) -> InferRequest | InferResponse | None:
        result: Any = await hook.before(request, call)
        if result is None:
            return None
        if isinstance(result, InferRequest):
            return check_request(result, request, self._limits)
        if not isinstance(result, InferResponse):
            raise _unexpected_result("before", result, "InferRequest, InferResponse")
        return check_response(result, request, self._limits, request.inputs)

    async def after(self, response: InferResponse) -> InferResponse:
        """Run ``after`` of each hook, from the last hook to the first, and return the response for
        the client."""
        for hook, request, call in reversed(self._passed):
            if not hook.defines("after"):
                continue
            step = partial(self._run_after, hook.hook, request, response, call)
            result = await hook.run(step, response.outputs, self._context)
            if isinstance(result, InferResponse):
                self._charge(result.outputs, response.outputs)
                response = result
        return response

    async def _run_after(
        self, hook: RequestHook, request: InferRequest, response: InferResponse, call: PluginCall
    ) -> InferResponse | None:
        result: Any = await hook.after(request, response, call)
        if result is None:
            return None
        if not isinstance(result, InferResponse):
            raise _unexpected_result("after", result, "InferResponse")
        checked = check_response(result, request, self._limits, response.outputs)
        return replace(checked, is_last=response.is_last)

    def _charge(self, tensors: Sequence[Tensor], source: Sequence[Tensor]) -> None:
        if needs_accounting(tensors):
            charge_tensors(tensors, [tensor.data for tensor in source], self._context.memory)


def _unexpected_result(method: str, result: object, expected: str) -> InvalidResultError:
    kind = type(result).__name__
    return InvalidResultError(f"{method} returned {kind}; expected {expected} or None")

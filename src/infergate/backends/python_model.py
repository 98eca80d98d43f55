"""The backend that serves a Python model, a plug-in that runs in this process."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Final

from infergate.backends.builtin.model import Signature
from infergate.backends.in_process import InProcessBackend, charge_outputs
from infergate.backends.request_queue import RequestQueue
from infergate.codecs.base import Profile
from infergate.core.counters import BackendCounters
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from infergate.core.priorities import PRIORITY_HEADER, requested_priority
from infergate.core.request_context import RequestContext
from infergate.core.stats import ConcurrencyStats
from infergate.core.tensor import data_bytes
from infergate.plugin_host.calls import plugin_call
from infergate.plugin_host.results import InvalidResultError, model_response
from infergate.plugin_host.runner import PluginRunner, Step
from infergate.plugins.base import PluginCall
from infergate.plugins.model import PythonModel

DEFAULT_CONCURRENCY: Final = 8
"""The limit of concurrent inferences if the configuration sets none."""
_END: Final = object()


class PythonModelBackend(InProcessBackend):
    """Serves the model of ``runner``. At most ``max_requests`` inferences run at a time, including
    abandoned ones, and at most ``max_queue`` wait. If ``max_requests`` is 0,
    ``DEFAULT_CONCURRENCY`` applies."""

    profile = Profile("python")
    server = ServerMetadata("python", "")
    models_label = "Python models"

    def __init__(  # noqa: PLR0913 - most are keyword-only
        self,
        name: str,
        runner: PluginRunner,
        metadata: ModelMetadata,
        limits: Limits,
        *,
        timeout: float,
        max_requests: int = 0,
        max_queue: int = 100,
        counters: BackendCounters | None = None,
        priority_header: str = PRIORITY_HEADER,
    ) -> None:
        super().__init__(name, (metadata,), timeout)
        assert isinstance(runner.plugin, PythonModel)
        self._model: Final[PythonModel] = runner.plugin
        self._runner: Final = runner
        self._metadata: Final = metadata
        self._limits: Final = limits
        self._signature: Final = Signature(
            metadata.name, metadata.inputs, metadata.outputs, metadata.max_batch_size or 0
        )
        self._queue: Final = RequestQueue(
            name,
            max_requests or DEFAULT_CONCURRENCY,
            max_queue,
            counters or BackendCounters(),
            priority_header,
        )

    @property
    def concurrency_stats(self) -> ConcurrencyStats:
        """The limit of concurrent inferences and its current use."""
        return self._queue.stats

    def _is_ready(self) -> bool:
        return not self._runner.is_stuck

    async def _infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        self._check(request)
        call = plugin_call(context, is_stream=False)
        response = await self._run(self._infer_step(request, call), request, context)
        return charge_outputs(response, request, context)

    def _infer_step(self, request: InferRequest, call: PluginCall) -> Step:
        model: Any = self._model

        async def infer_async() -> InferResponse:
            return self._response(await model.infer(request, call), request)

        if inspect.iscoroutinefunction(model.infer):
            return infer_async
        return lambda: self._response(model.infer(request, call), request)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        """Yield all responses to ``request``. Each response is computed on demand, has its own
        timeout, and takes a slot only while it is computed. Raises the errors of ``perform``."""
        self._check(request)
        call = plugin_call(context, is_stream=True)
        responses: Any = await self._run(
            lambda: self._model.stream(request, call), request, context
        )
        if responses is None:
            response = await self._run(self._infer_step(request, call), request, context)
            yield replace(charge_outputs(response, request, context), is_last=True)
            return
        ended = False
        try:
            while True:
                response = await self._run(self._next_step(responses, request), request, context)
                if response is _END:
                    ended = True
                    return
                yield charge_outputs(response, request, context)
        finally:
            if not ended:
                self._runner.run_unattended(_close_step(responses))

    def _next_step(self, responses: Any, request: InferRequest) -> Step:
        def convert(result: Any) -> Any:
            return result if result is _END else self._response(result, request)

        async def next_async() -> Any:
            return convert(await anext(responses, _END))

        def next_plain() -> Any:
            if not isinstance(responses, Iterator):
                kind = type(responses).__name__
                raise InvalidResultError(f"stream returned {kind}; expected an iterator")
            return convert(next(responses, _END))

        return next_async if isinstance(responses, AsyncIterator) else next_plain

    async def _run(self, step: Step, request: InferRequest, context: RequestContext) -> Any:
        """Run ``step`` in a slot of the queue. An abandoned step keeps its slot until it ends."""
        context.shorten_deadline(self._deadline(context))
        context.priority = requested_priority(request.parameters)
        await self._queue.enter(context)
        return await self._runner.run(
            step,
            self._deadline(context) - time.monotonic(),
            memory=context.memory,
            held_bytes=data_bytes(request.inputs),
            on_end=self._queue.leave,
        )

    def _response(self, result: Any, request: InferRequest) -> InferResponse:
        return model_response(result, request, self._metadata, self._limits)

    def _check(self, request: InferRequest) -> None:
        self._find_metadata(request.model, request.version)
        self._signature.checked_inputs(request)

    def discard(self) -> None:
        """Close the model of a backend that was never used. Blocks the calling thread."""
        self._runner.discard()

    async def close(self) -> None:
        """Close the model."""
        await self._runner.close()


def _close_step(responses: Any) -> Step:
    """Return a step that closes the generator of a stream in the thread or event loop that runs
    it."""

    async def close_async() -> None:
        await responses.aclose()

    return close_async if hasattr(responses, "aclose") else getattr(responses, "close", type(None))

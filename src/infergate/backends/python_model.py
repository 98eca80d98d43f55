"""The backend that serves a Python model, a plug-in that runs in this process."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from infergate.backends.builtin.model import Signature
from infergate.backends.request_queue import RequestQueue
from infergate.codecs.base import Profile
from infergate.core import messages
from infergate.core.accounting import charge_tensors, needs_accounting
from infergate.core.counters import BackendCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind, backend_failure
from infergate.core.limits import Limits
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, Operation, Response
from infergate.core.priorities import PRIORITY_HEADER, requested_priority
from infergate.core.request_context import RequestContext
from infergate.core.stats import ConcurrencyStats
from infergate.plugin_host.calls import plugin_call
from infergate.plugin_host.results import InvalidResultError, model_response
from infergate.plugin_host.runner import PluginRunner, Step
from infergate.plugins.base import PluginCall
from infergate.plugins.model import PythonModel

PROTOCOL: Final = "python"
DEFAULT_CONCURRENCY: Final = 8
"""The limit of concurrent inferences if the configuration sets none."""
_PROFILE: Final = Profile(PROTOCOL)
_END: Final = object()


class PythonModelBackend:
    """A ``Backend`` that serves one Python model.

    ``timeout`` limits each response in seconds, unless the route sets a timeout. At most
    ``max_requests`` inferences run at a time, including abandoned ones, and
    ``max_queue`` wait.
    """

    protocol = PROTOCOL
    datatypes = frozenset(Datatype)
    supports_sequences = True

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
        self.name = name
        assert isinstance(runner.plugin, PythonModel)
        self._model: Final[PythonModel] = runner.plugin
        self._runner: Final = runner
        self._metadata: Final = metadata
        self._limits: Final = limits
        self._timeout: Final = timeout
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

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        """Execute ``operation``. Raises NOT_FOUND, BAD_REQUEST, UNSUPPORTED, OVERLOADED, TIMEOUT,
        and the errors of the model."""
        match operation:
            case InferRequest():
                return await self._infer(operation, context)
            case messages.ServerLiveRequest():
                return messages.HealthStatus(ok=True)
            case messages.ServerReadyRequest():
                return messages.HealthStatus(ok=not self._runner.is_stuck)
            case messages.ServerMetadataRequest():
                return messages.ServerMetadata(PROTOCOL, "")
            case messages.ModelIndexRequest():
                versions = self._metadata.versions
                entries = (
                    messages.ModelIndexEntry(self._metadata.name, version, "READY")
                    for version in versions
                )
                return messages.ModelIndex(tuple(entries))
            case messages.ModelReadyRequest(model, version):
                self._check_name(model, version)
                return messages.HealthStatus(ok=not self._runner.is_stuck)
            case messages.ModelMetadataRequest(model, version):
                return await self.describe(model, version, context)
            case _:
                name = messages.OPERATION_NAMES[type(operation)]
                raise backend_failure(Kind.UNSUPPORTED, f"Python models do not support {name}")

    async def _infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        self._check(request)
        call = plugin_call(context, is_stream=False)
        response = await self._run(self._infer_step(request, call), request, context)
        return self._charge_outputs(response, request, context)

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
        """Yield all responses to ``request``. Each is computed on demand, has its own timeout, and
        takes a slot only while it is computed. Raises the errors of ``perform``."""
        self._check(request)
        call = plugin_call(context, is_stream=True)
        responses: Any = await self._run(
            lambda: self._model.stream(request, call), request, context
        )
        if responses is None:
            response = await self._run(self._infer_step(request, call), request, context)
            yield replace(self._charge_outputs(response, request, context), is_last=True)
            return
        ended = False
        try:
            while True:
                response = await self._run(self._next_step(responses, request), request, context)
                if response is _END:
                    ended = True
                    return
                yield self._charge_outputs(response, request, context)
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
                raise InvalidResultError(f"stream returned {type(responses).__name__}")
            return convert(next(responses, _END))

        return next_async if isinstance(responses, AsyncIterator) else next_plain

    async def _run(self, step: Step, request: InferRequest, context: RequestContext) -> Any:
        """Run ``step`` in a slot, which it keeps until it ends, even if it is abandoned."""
        context.shorten_deadline(self._deadline(context))
        context.priority = requested_priority(request.parameters)
        await self._queue.enter(context)
        return await self._runner.run(
            step,
            self._deadline(context) - time.monotonic(),
            memory=context.memory,
            held_bytes=sum(len(tensor.data) for tensor in request.inputs),
            on_end=self._queue.leave,
        )

    def _response(self, result: Any, request: InferRequest) -> InferResponse:
        return model_response(result, request, self._metadata, self._limits)

    @staticmethod
    def _charge_outputs(
        response: InferResponse, request: InferRequest, context: RequestContext
    ) -> InferResponse:
        if needs_accounting(response.outputs):
            inputs = (tensor.data for tensor in request.inputs)
            charge_tensors(response.outputs, inputs, context.memory)
        return response

    def _deadline(self, context: RequestContext) -> float:
        timeout = context.policy.timeout
        latest = time.monotonic() + (self._timeout if timeout is None else timeout)
        return latest if context.deadline is None else min(latest, context.deadline)

    def _check(self, request: InferRequest) -> None:
        self._check_name(request.model, request.version)
        self._signature.checked_inputs(request)

    def _check_name(self, model: str, version: str) -> None:
        metadata = self._metadata
        if model != metadata.name:
            raise backend_failure(Kind.NOT_FOUND, f"unknown model '{model}'")
        if version not in ("", *metadata.versions):
            raise backend_failure(Kind.NOT_FOUND, f"unknown version '{version}' of model '{model}'")

    async def describe(
        self,
        model: str,
        version: str,
        context: RequestContext,  # noqa: ARG002 - instant
        *,
        refresh: bool = False,  # noqa: ARG002 - nothing changes
    ) -> ModelMetadata:
        self._check_name(model, version)
        return self._metadata

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> Sequence[Response]:
        """Execute ``operation`` once, because this backend has no endpoints."""
        return (await self.perform(operation, context),)

    async def server_profile(self, context: RequestContext) -> Profile:  # noqa: ARG002 - instant
        return _PROFILE

    async def supports_classification(self, context: RequestContext) -> bool:  # noqa: ARG002
        """Return False: the gateway selects the classes."""
        return False

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

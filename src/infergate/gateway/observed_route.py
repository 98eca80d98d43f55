"""Routes whose inferences are observed, for example by a recorder.

An observer receives an exchange after its response, so the client never waits for it. It gets no
exchanges with shared memory, because the client may reuse the memory before the exchange is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Protocol

from infergate.core.errors import GatewayError, Kind, internal_error
from infergate.core.exchange import Exchange, Outcome
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.gateway.route_layers import RouteInferences
from infergate.gateway.shared_memory import uses_shared_memory


class ExchangeObserver(Protocol):
    """Receives exchanges of the routes that it observes."""

    def selects(self, request: InferRequest, context: RequestContext) -> bool:
        """Return whether the exchange of ``request`` is to be observed. The gateway calls this
        method before it sends the request, so that it keeps no responses of streams that are not
        observed."""
        ...

    def observe(self, exchange: Exchange, memory: MemoryAccount) -> None:
        """Receive a finished exchange. The method runs on the event loop, must return at once, and
        raises nothing. ``memory`` is the account of the request: an observer that keeps the
        exchange grows it and detaches the growth."""
        ...


class ObservedRoute:
    """Runs the inferences of ``inner``, and passes them to ``observers`` (at least one)."""

    def __init__(self, inner: RouteInferences, observers: Sequence[ExchangeObserver]) -> None:
        self._inner: Final = inner
        self._observers: Final = tuple(observers)

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        observers = self._selected(request, context)
        if not observers:
            return await self._inner.infer(request, context)
        observation = _Observation(request, context, is_stream=False)
        try:
            response = await self._inner.infer(request, context)
            observation.responses.append(response)
        except BaseException as error:
            observation.error = _as_gateway_error(error)
            raise
        else:
            return response
        finally:
            observation.report(observers)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        observers = self._selected(request, context)
        observation = _Observation(request, context, is_stream=True)
        try:
            async with aclosing(self._inner.stream(request, context)) as responses:
                async for response in responses:
                    if observers and not observation.add(response):
                        observers = ()
                    yield response
        except BaseException as error:
            observation.error = _as_gateway_error(error)
            raise
        finally:
            observation.report(observers)

    def _selected(
        self, request: InferRequest, context: RequestContext
    ) -> tuple[ExchangeObserver, ...]:
        if uses_shared_memory(request):
            return ()
        return tuple([each for each in self._observers if each.selects(request, context)])


class _Observation:
    """An exchange in progress."""

    def __init__(self, request: InferRequest, context: RequestContext, *, is_stream: bool) -> None:
        self._request: Final = request
        self._context: Final = context
        self._is_stream: Final = is_stream
        self._started_at: Final = time.time()
        self._started: Final = time.monotonic()
        self._offsets: Final[list[float]] = []
        self._charged = 0
        self.responses: Final[list[InferResponse]] = []
        self.error: GatewayError | None = None

    def add(self, response: InferResponse) -> bool:
        """Keep ``response`` of a stream. If memory is short, release all responses and return
        False."""
        size = sum(len(tensor.data) for tensor in response.outputs)
        try:
            self._context.memory.grow(size)
        except GatewayError:
            self._release()
            return False
        self._charged += size
        self.responses.append(response)
        self._offsets.append(time.monotonic() - self._started)
        return True

    def report(self, observers: Sequence[ExchangeObserver]) -> None:
        """Pass the exchange to ``observers``, and release it."""
        if observers:
            exchange = self._exchange()
            for observer in observers:
                observer.observe(exchange, self._context.memory)
        self._release()

    def _release(self) -> None:
        self._context.memory.shrink(self._charged)
        self._charged = 0
        self.responses.clear()

    def _exchange(self) -> Exchange:
        context = self._context
        duration = time.monotonic() - self._started
        return Exchange(
            self._request,
            Outcome(tuple(self.responses), self.error, duration, tuple(self._offsets)),
            context.record.protocol,
            context.record.route,
            context.record.backend,
            context.request_id,
            context.headers,
            self._started_at,
            self._is_stream,
        )


def _as_gateway_error(error: BaseException) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
        return GatewayError(Kind.CANCELLED, "the client ended the request")
    return internal_error()

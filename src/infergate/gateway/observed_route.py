"""Routes whose inferences are observed, for example by a recorder.

An observer receives an exchange after its response, so the client never waits for it. It gets no
exchanges with shared memory, because the client may reuse the memory before the exchange is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Protocol

from infergate.core.exchange import Exchange
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.gateway.observation import Observation
from infergate.gateway.route_layers import RouteInferences
from infergate.gateway.shared_memory import uses_shared_memory


class ExchangeObserver(Protocol):
    """Receives exchanges of the routes that it observes."""

    def selects(self, request: InferRequest, context: RequestContext) -> bool:
        """Return whether to observe the exchange of ``request``. The gateway calls this method
        before it sends the request, so that it keeps responses only of streams that are
        observed."""
        ...

    def observe(self, exchange: Exchange, memory: MemoryAccount) -> None:
        """Receive a finished exchange. The method runs on the event loop, must return immediately,
        and must not raise. ``memory`` is the account of the request; an observer that keeps the
        exchange reserves memory for it with ``memory.detach_optional``."""
        ...

    def count_lost(self) -> None:
        """Count an exchange that was selected, but whose responses do not fit into memory."""
        ...


class ObservedRoute:
    """Runs the inferences of ``inner``, and passes them to ``observers`` (at least one)."""

    def __init__(self, inner: RouteInferences, observers: Sequence[ExchangeObserver]) -> None:
        self._inner: Final = inner
        self._observers: Final = tuple(observers)

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        observers = self._select_observers(request, context)
        if not observers:
            return await self._inner.infer(request, context)
        observation = Observation(request, context, is_stream=False)
        try:
            response = await self._inner.infer(request, context)
            observation.responses.append(response)
        except BaseException as error:
            observation.fail(error)
            raise
        else:
            return response
        finally:
            _report(observation, observers, context)

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        observers = self._select_observers(request, context)
        observation = Observation(request, context, is_stream=True)
        try:
            async with aclosing(self._inner.stream(request, context)) as responses:
                async for response in responses:
                    if observers and not observation.add(response):
                        for observer in observers:
                            observer.count_lost()
                        observers = ()
                    yield response
        except BaseException as error:
            observation.fail(error)
            raise
        finally:
            _report(observation, observers, context)

    def _select_observers(
        self, request: InferRequest, context: RequestContext
    ) -> tuple[ExchangeObserver, ...]:
        if uses_shared_memory(request):
            return ()
        return tuple([each for each in self._observers if each.selects(request, context)])


def _report(
    observation: Observation, observers: Sequence[ExchangeObserver], context: RequestContext
) -> None:
    """Pass the exchange to ``observers``, then release ``observation``."""
    if observers:
        exchange = observation.exchange()
        for observer in observers:
            observer.observe(exchange, context.memory)
    observation.release()

"""Passes the inferences of a route to observers, such as a recorder.

An observer receives an exchange at the end of the inference, and must return immediately so that
the response is not delayed. Observers receive no exchanges with shared memory, because the client
may reuse the memory before an observer reads the exchange.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, Protocol

from infergate.core.exchange import Exchange
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.request_context import RequestContext
from infergate.gateway.observation import Observation
from infergate.gateway.route_layers import RouteInferences
from infergate.gateway.shared_memory import uses_shared_memory


class ExchangeObserver(Protocol):
    """Receives exchanges of routes."""

    def selects(self, request: InferRequest, context: RequestContext) -> bool:
        """Return whether to observe the exchange of ``request``. The gateway calls this method
        before it sends the request, so that it does not keep responses that are not observed."""
        ...

    def observe(self, exchange: Exchange, memory: MemoryAccount) -> None:
        """Receive a finished exchange. This method runs on the event loop and must not raise.
        ``memory`` is the account of the request. An observer that keeps the exchange charges it
        with ``memory.detach_optional``."""
        ...

    def count_lost(self) -> None:
        """Count a selected exchange that is lost because its responses do not fit into memory."""
        ...


class ObservedRoute:
    """Runs inferences on ``inner``, and passes them to one or more ``observers``."""

    def __init__(self, inner: RouteInferences, observers: Sequence[ExchangeObserver]) -> None:
        self._inner: Final = inner
        self._observers: Final = tuple(observers)

    async def infer(self, request: InferRequest, context: RequestContext) -> InferResponse:
        observers = self._select_observers(request, context)
        if not observers:
            return await self._inner.infer(request, context)
        observation = Observation(request, context, is_stream=False)
        with _reported(observation, observers):
            response = await self._inner.infer(request, context)
            observation.responses.append(response)
            return response

    async def stream(
        self, request: InferRequest, context: RequestContext
    ) -> AsyncGenerator[InferResponse, None]:
        observers = self._select_observers(request, context)
        observation = Observation(request, context, is_stream=True)
        with _reported(observation, observers):
            async with aclosing(self._inner.stream(request, context)) as responses:
                async for response in responses:
                    if observers and not observation.add(response):
                        for observer in observers:
                            observer.count_lost()
                        observers.clear()
                    yield response

    def _select_observers(
        self, request: InferRequest, context: RequestContext
    ) -> list[ExchangeObserver]:
        if uses_shared_memory(request):
            return []
        return [each for each in self._observers if each.selects(request, context)]


@contextmanager
def _reported(observation: Observation, observers: Sequence[ExchangeObserver]) -> Iterator[None]:
    """Run the inference of ``observation`` within the block, then pass the exchange to
    ``observers``."""
    try:
        yield
    except BaseException as error:
        observation.fail(error)
        raise
    finally:
        if observers:
            exchange = observation.exchange()
            for observer in observers:
                observer.observe(exchange, observation.context.memory)
        observation.release()

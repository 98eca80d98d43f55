"""Sends inferences as CloudEvents to a sink, which is an HTTP server or files.

- Requests never wait for the log. Exchanges wait in a queue with limits on their number and bytes;
  their memory counts as optional work in ``limits.in_flight_bytes``. Exchanges beyond a limit are
  dropped and counted.
- Helper processes encode large events, because orjson holds the interpreter lock.
- Failures of the sink are counted, and logged when they begin and when they end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange
from infergate.core.json_size import json_size_bounds
from infergate.core.limits import KIB, MIB
from infergate.core.log_events import BUG, PAYLOAD_LOG_BACK, PAYLOAD_LOG_FAILS
from infergate.core.memory import DetachedMemoryAccount, MemoryAccount
from infergate.core.messages import InferRequest
from infergate.core.offload import Offload
from infergate.core.request_context import RequestContext
from infergate.recording.cloud_events import (
    CloudEvent,
    EventAttributes,
    Mode,
    event_count,
    event_id,
    make_events,
)
from infergate.recording.held_bytes import held_bytes
from infergate.recording.redaction import Redaction
from infergate.recording.sampling import RouteObserver, is_sampled

SENT, REJECTED, FAILED = "sent", "rejected", "failed"
"""Results of a delivery: the events arrived, the receiver rejected them, or the delivery failed."""
DROPPED, TOO_LARGE = "dropped", "too_large"
"""Reasons why events were not sent. DROPPED: the log is closing, or the queue, the memory or the
helper processes are exhausted. TOO_LARGE: the exchange is too large."""
RESULTS: Final = (SENT, REJECTED, FAILED, DROPPED, TOO_LARGE)

_MAX_INLINE_BYTES: Final = 32 * KIB
"""Maximum size of an exchange's tensors that the event loop encodes, which takes about 1 ms."""
_MAX_BATCH_BYTES: Final = 8 * MIB
_CLOSE_TIMEOUT_SECONDS: Final = 1.5
_CLIENT: Final = ("payload log", "")
"""The payload log counts as one client in the queue of the helper processes."""
_log: Final = logging.getLogger(__name__)

WireEvent = tuple[dict[str, str], bytes]
"""The HTTP headers and the body of an encoded event."""


class EventSink(Protocol):
    """Delivers events."""

    max_batch: int
    """Maximum number of exchanges whose events are sent together."""
    max_wait: float
    """Seconds to wait for a batch to fill up."""
    max_concurrent: int
    error: str
    """The last failure, for the log."""

    @property
    def encode(self) -> Callable[[CloudEvent], WireEvent]:
        """The function that encodes events. Helper processes call it, so it must be a module-level
        function."""
        ...

    async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
        """Deliver ``events`` and return the number of events for each result. Raises only
        CancelledError."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PayloadLogSettings:
    """``redaction`` removes data that must not be logged. ``max_queue`` (exchanges) and
    ``max_queue_bytes`` limit the queue, and ``max_exchange_bytes`` limits the tensors of one
    exchange."""

    attributes: EventAttributes
    redaction: Redaction = field(default_factory=Redaction)
    max_queue: int = 1000
    max_queue_bytes: int = 64 * MIB
    max_exchange_bytes: int = 8 * MIB


@dataclass(slots=True)
class _Waiting:
    exchange: Exchange
    mode: Mode
    id: str
    event_count: int
    size: int
    memory: DetachedMemoryAccount


class PayloadLog:
    """Sends the events of exchanges to ``sink``. ``count`` is called with a result and a number of
    events. Without ``offload``, a thread encodes large exchanges."""

    def __init__(
        self,
        settings: PayloadLogSettings,
        sink: EventSink,
        offload: Offload | None,
        count: Callable[[str, int], None],
    ) -> None:
        self._settings: Final = settings
        self._sink: Final = sink
        self._offload: Final = offload
        self._count: Final = count
        self._queue: Final[deque[_Waiting]] = deque()
        self._bytes = 0
        """The bytes of all exchanges that are queued or being sent."""
        self._filled: Final = asyncio.Event()
        self._batch_ready: Final = asyncio.Event()
        self._senders: list[asyncio.Task[None]] = []
        self._is_closing = False
        self._is_failing = False

    def observer(self, route: str, percent: float, mode: Mode, *, errors: bool) -> RouteObserver:
        """Return an observer that logs ``percent`` of the inferences of ``route``. Without
        ``errors``, the observer skips inferences that end with an error."""

        def selects(request: InferRequest, context: RequestContext) -> bool:
            return is_sampled(percent, route, request, context.request_id)

        def observe(exchange: Exchange, memory: MemoryAccount) -> None:
            if errors or exchange.outcome.error is None:
                self.add(exchange, mode, memory)

        return RouteObserver(selects, observe, lambda: self._count(DROPPED, 1))

    def add(self, exchange: Exchange, mode: Mode, memory: MemoryAccount) -> None:
        """Queue ``exchange``, or count its events as dropped or too large. ``memory`` is the
        account of the request. Never blocks."""
        settings = self._settings
        number = event_count(exchange, mode)
        id_ = event_id(exchange.headers)
        exchange, _, _ = settings.redaction.apply(exchange)
        size = held_bytes(exchange)
        if size is None or exchange.size > settings.max_exchange_bytes:
            self._count(TOO_LARGE, number)
            return
        if (
            self._is_closing
            or len(self._queue) >= settings.max_queue
            or self._bytes + size > settings.max_queue_bytes
        ):
            self._count(DROPPED, number)
            return
        try:
            account = memory.detach_optional(size)
        except GatewayError:
            self._count(DROPPED, number)
            return
        self._queue.append(_Waiting(exchange, mode, id_, number, size, account))
        self._bytes += size
        self._filled.set()
        if len(self._queue) >= self._sink.max_batch or self._bytes >= _MAX_BATCH_BYTES:
            self._batch_ready.set()
        if not self._senders:
            self._senders = [
                asyncio.create_task(self._run()) for _ in range(self._sink.max_concurrent)
            ]

    async def close(self) -> None:
        """Send queued events for at most ``_CLOSE_TIMEOUT_SECONDS``, then drop the remaining
        events."""
        self._is_closing = True
        self._filled.set()
        self._batch_ready.set()
        if self._senders:
            _, late = await asyncio.wait(self._senders, timeout=_CLOSE_TIMEOUT_SECONDS)
            for sender in late:
                sender.cancel()
            await asyncio.gather(*self._senders, return_exceptions=True)
        for waiting in self._queue:
            self._count(DROPPED, waiting.event_count)
            waiting.memory.close()
        self._queue.clear()
        await self._sink.close()

    async def _run(self) -> None:
        while batch := await self._next_batch():
            try:
                await self._send(batch)
            except asyncio.CancelledError:
                self._count(DROPPED, sum(each.event_count for each in batch))
                raise
            except Exception:  # noqa: BLE001 - logged; fails one batch only
                self._count(FAILED, sum(each.event_count for each in batch))
                _log.exception("internal error in the payload log", extra=BUG)
            finally:
                for waiting in batch:
                    waiting.memory.close()
                    self._bytes -= waiting.size

    async def _next_batch(self) -> list[_Waiting]:
        """Wait for the next batch. Return an empty list if the log is closing and the queue is
        empty."""
        queue, sink = self._queue, self._sink
        while not queue:
            if self._is_closing:
                return []
            self._filled.clear()
            await self._filled.wait()
        if sink.max_wait and len(queue) < sink.max_batch and not self._is_closing:
            self._batch_ready.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(sink.max_wait):
                    await self._batch_ready.wait()
        batch = [queue.popleft()]
        size = batch[0].size
        while queue and len(batch) < sink.max_batch:
            size += queue[0].size
            if size > _MAX_BATCH_BYTES:
                break
            batch.append(queue.popleft())
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        events: list[WireEvent] = []
        for waiting in batch:
            try:
                events += await self._encode(waiting)
            except GatewayError as error:
                result = DROPPED if error.kind in _SHORTAGE else FAILED
                self._count(result, waiting.event_count)
        results = await self._sink.send(events) if events else Counter[str]()
        for result, number in results.items():
            self._count(result, number)
        if results[FAILED] and not self._is_failing:
            self._is_failing = True
            _log.warning("payload log: %s", self._sink.error, extra=PAYLOAD_LOG_FAILS)
        elif results[SENT] and self._is_failing:
            self._is_failing = False
            _log.info("the payload log works again", extra=PAYLOAD_LOG_BACK)

    async def _encode(self, waiting: _Waiting) -> list[WireEvent]:
        """Return the encoded events. Raises OVERLOADED, TIMEOUT and UNSUPPORTED."""
        settings, exchange, memory = self._settings, waiting.exchange, waiting.memory
        tensor_bytes = exchange.size
        responses = exchange.outcome.responses
        tensors = chain(exchange.request.inputs, *(response.outputs for response in responses))
        # Charge the events and the pickled copy of the tensors together. If encoders charged the
        # events later, concurrent encoders could reach the memory limit and all fail.
        max_bytes = waiting.size + tensor_bytes + json_size_bounds(tensors)[1]
        arguments = self._sink.encode, settings.attributes, exchange, waiting.mode, waiting.id
        memory.grow(max_bytes)
        if tensor_bytes <= _MAX_INLINE_BYTES:
            events = encode_exchange(*arguments)
        elif self._offload is None:
            events = await asyncio.to_thread(encode_exchange, *arguments)
        else:
            events = await self._offload.run(
                None, encode_exchange, *arguments, client=_CLIENT, cost=tensor_bytes
            )
        memory.shrink(max(0, max_bytes - sum(len(body) for _, body in events)))
        return events


_SHORTAGE: Final = frozenset({Kind.OVERLOADED, Kind.TIMEOUT})
"""The kinds of errors that occur when memory or helper processes are scarce."""


def encode_exchange(
    encode: Callable[[CloudEvent], WireEvent],
    attributes: EventAttributes,
    exchange: Exchange,
    mode: Mode,
    id_: str,
) -> list[WireEvent]:
    """Return the encoded events of ``exchange``. Raises UNSUPPORTED."""
    return [encode(event) for event in make_events(attributes, exchange, mode, id_)]

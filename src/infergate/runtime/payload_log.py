"""Builds the payload log of a configuration, and sends events over HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate.assembly.engines import load_engine
from infergate.config import compile as compiled
from infergate.config.payload_log import PayloadLogConfig
from infergate.core.errors import GatewayError
from infergate.core.limits import MIB, Limits
from infergate.core.offload import Offload
from infergate.core.wire import HttpRequest
from infergate.observe.metrics import Metrics
from infergate.recording.cloud_events import (
    BATCH_TYPE,
    STRUCTURED_TYPE,
    CloudEvent,
    EventAttributes,
    binary_message,
    structured_json,
)
from infergate.recording.event_files import EventFiles
from infergate.recording.payload_log import (
    FAILED,
    REJECTED,
    SENT,
    EventSink,
    PayloadLog,
    PayloadLogSettings,
    WireEvent,
)
from infergate.recording.redaction import Redaction
from infergate.transport.base import Endpoint, HttpUpstream

_MAX_BATCH: Final = 100
_BATCH_WAIT_SECONDS: Final = 0.2
_MAX_CONCURRENT: Final = 4
_MAX_RESPONSE_BYTES: Final = 1 * MIB
_FIRST_DELAY_SECONDS: Final = 0.1
_MAX_DELAY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class HttpDelivery:
    """The target of events, and ``timeout`` in seconds for each of ``1 + retries`` attempts."""

    endpoint: Endpoint
    path: str
    timeout: float
    retries: int


class HttpEventSink:
    """An ``EventSink`` that posts each event over ``upstream``."""

    max_batch: int = 1
    max_wait: float = 0.0
    max_concurrent: int = _MAX_CONCURRENT

    def __init__(
        self,
        upstream: HttpUpstream,
        delivery: HttpDelivery,
        encode: Callable[[CloudEvent], WireEvent],
    ) -> None:
        self.encode: Callable[[CloudEvent], WireEvent] = encode
        self.error = ""
        self._upstream: Final = upstream
        self._delivery: Final = delivery

    async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
        results = Counter[str]()
        for headers, body in events:
            results[await self._deliver(headers, body)] += 1
        return results

    async def close(self) -> None:
        await self._upstream.close()

    async def _deliver(self, headers: dict[str, str], body: bytes) -> str:
        """Send a message and return the result of its events."""
        delivery, delay = self._delivery, _FIRST_DELAY_SECONDS
        wire = HttpRequest("POST", delivery.path, "", headers, [body])
        for attempt in range(delivery.retries + 1):
            if attempt:
                await asyncio.sleep(delay)
                delay = min(_MAX_DELAY_SECONDS, 4 * delay)
            try:
                response = await self._upstream.exchange(wire, delivery.endpoint, delivery.timeout)
            except GatewayError as error:
                self.error = f"cannot send events to {delivery.endpoint}: {error.public}"
                continue
            if 200 <= response.status < 300:
                return SENT
            self.error = f"{delivery.endpoint} responded with HTTP {response.status}"
            if response.status != 429 and response.status < 500:
                return REJECTED
        return FAILED


class HttpBatchSink(HttpEventSink):
    """An ``EventSink`` that posts the events of several exchanges together."""

    max_batch = _MAX_BATCH
    max_wait = _BATCH_WAIT_SECONDS
    max_concurrent = 1

    async def send(self, events: Sequence[WireEvent]) -> Counter[str]:
        body = b"[" + b",".join([event for _, event in events]) + b"]"
        result = await self._deliver({"content-type": BATCH_TYPE}, body)
        return Counter({result: len(events)})


def structured_message(event: CloudEvent) -> WireEvent:
    """Return the headers and the body of a message with ``event`` in structured mode."""
    return {"content-type": STRUCTURED_TYPE}, structured_json(event)


def make_payload_log(
    section: PayloadLogConfig,
    engine: str,
    limits: Limits,
    offload: Offload | None,
    metrics: Metrics,
) -> PayloadLog:
    """Return the payload log of ``section``. Raises OSError if its folder or its certificates
    cannot be used."""

    def count(result: str, number: int) -> None:
        metrics.payload_events.labels(result).inc(number)

    settings = PayloadLogSettings(
        EventAttributes(section.source, section.service, section.namespace, section.component),
        Redaction(section.headers, section.redact.remove, section.redact.zero),
        section.max_queue,
        section.queue_bytes,
        section.inference_bytes,
    )
    return PayloadLog(settings, _make_sink(section, engine, limits), offload, count)


def _make_sink(section: PayloadLogConfig, engine: str, limits: Limits) -> EventSink:
    if section.file is not None:
        return EventFiles(section.file.path, section.file.file_bytes, section.file.total_bytes)
    http = section.http
    assert http is not None
    upstream = load_engine(engine).make_http_upstream(
        replace(limits, body=_MAX_RESPONSE_BYTES, connect_time=http.timeout),
        compiled.client_tls(http),
    )
    endpoint = compiled.endpoint(http.url)
    delivery = HttpDelivery(
        endpoint._replace(path=""), endpoint.path or "/", http.timeout, http.retries
    )
    if http.encoding == "batch":
        return HttpBatchSink(upstream, delivery, structured_message)
    encode = binary_message if http.encoding == "binary" else structured_message
    return HttpEventSink(upstream, delivery, encode)

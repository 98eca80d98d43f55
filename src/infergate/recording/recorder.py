"""Records the inferences of routes.

If the queue or the memory is full, an exchange is dropped and counted. If a file cannot be written,
recording stops, but requests are still served."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from infergate.core.counters import RecordingCounters
from infergate.core.errors import GatewayError
from infergate.core.exchange import Exchange
from infergate.core.limits import MIB
from infergate.core.log_events import RECORDING_STOPPED
from infergate.core.memory import MemoryAccount
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.recording.background_writer import (
    NOT_WRITTEN,
    RECORDED,
    UNRECORDABLE,
    BackgroundWriter,
    BatchReport,
    WriteJob,
)
from infergate.recording.directory import DirectorySettings, RecordingDirectory
from infergate.recording.held_bytes import held_bytes
from infergate.recording.redaction import Redaction
from infergate.recording.sampling import RouteObserver, is_sampled

QUEUE_FULL: Final = "queue_full"
MEMORY_SHORT: Final = "memory_short"
RESULTS: Final = (RECORDED, QUEUE_FULL, MEMORY_SHORT, UNRECORDABLE, NOT_WRITTEN)
"""The possible results for an inference that was selected for recording."""
MAX_QUEUED: Final = 10_000
MAX_QUEUED_BYTES: Final = 256 * MIB
"""Maximum memory in bytes of the exchanges in the queue. An empty queue accepts a larger exchange
if the memory for optional work suffices."""
NOT_RESPONDING: Final = "the disk does not respond"
_STOP_TIMEOUT_SECONDS: Final = 3.0
_log = logging.getLogger("infergate")


class Recorder:
    """Writes exchanges to files. Call the methods on the event loop, except ``close``, which
    blocks: call ``close`` in another thread or after the loop has ended. The owner must call
    ``close`` to stop the writer thread."""

    def __init__(
        self,
        settings: DirectorySettings,
        redaction: Redaction,
        counters: RecordingCounters,
        *,
        is_active: bool = True,
    ) -> None:
        self._settings: Final = settings
        self._redaction: Final = redaction
        self._counters: Final = counters
        counters.exchanges.update(dict.fromkeys(RESULTS, 0))
        self._queued = self._queued_bytes = 0
        self._problem = ""
        """The failure that stopped recording, or an empty string."""
        self._file = ""
        self._late_stop: asyncio.Future[None] | None = None
        """The last stop that did not complete within the timeout, or None."""
        self._writer: Final = BackgroundWriter(RecordingDirectory(settings), self._on_report)
        self.is_active = is_active
        """Whether exchanges are recorded."""

    def start(self) -> None:
        """Start recording, and clear the problem that stopped it."""
        self._problem = ""
        self.is_active = True
        self._writer.resume()

    async def stop(self) -> None:
        """Stop recording, and wait a few seconds for the disk. Afterwards, either the files are
        complete or ``status`` reports a problem."""
        self.is_active = False
        stopped = self._writer.close_file()
        await asyncio.wait([stopped], timeout=_STOP_TIMEOUT_SECONDS)
        self._late_stop = None if stopped.done() else stopped

    def close(self) -> None:
        """Stop recording and the writer thread. Blocks for up to a few seconds."""
        self.is_active = False
        self._writer.close()

    def status(self) -> dict[str, Any]:
        """Return the state and the counters as JSON data."""
        is_late = self._late_stop is not None and not self._late_stop.done()
        return {
            "active": self.is_active,
            "problem": self._problem or (NOT_RESPONDING if is_late else ""),
            "path": str(self._settings.path),
            "file": self._file,
            "bytes": self._counters.bytes,
            "exchanges": {result: self._counters.exchanges[result] for result in RESULTS},
            "queued": self._queued,
        }

    def count_lost(self) -> None:
        """Count an exchange that was dropped because its responses do not fit into memory."""
        self._counters.exchanges[MEMORY_SHORT] += 1

    def observer(self, route: str, percent: float) -> RouteObserver:
        """Return an observer that records ``percent`` of the inferences of ``route``."""

        def selects(request: InferRequest, context: RequestContext) -> bool:
            return self.is_active and is_sampled(percent, route, request, context.request_id)

        return RouteObserver(selects, self.record, self.count_lost)

    def record(self, exchange: Exchange, memory: MemoryAccount) -> None:
        """Queue ``exchange`` for the writer, or count the reason why it is not recorded. ``memory``
        is the account of the request."""
        if not self.is_active:
            self._counters.exchanges[NOT_WRITTEN] += 1
            return
        exchange = self._redaction.select_headers(exchange)
        size = held_bytes(exchange)
        if size is None:
            self._counters.exchanges[UNRECORDABLE] += 1
            return
        if self._queued >= MAX_QUEUED or (
            self._queued and self._queued_bytes + size > MAX_QUEUED_BYTES
        ):
            self._counters.exchanges[QUEUE_FULL] += 1
            return
        try:
            account = memory.detach_optional(size)
        except GatewayError:
            self._counters.exchanges[MEMORY_SHORT] += 1
            return
        self._queued += 1
        self._queued_bytes += size
        self._writer.put(WriteJob(exchange, self._redaction, size, account))

    def _on_report(self, report: BatchReport) -> None:
        for job in report.jobs:
            job.memory.close()
            self._queued_bytes -= job.size
        self._queued -= len(report.jobs)
        report.jobs.clear()
        self._counters.exchanges.update(report.results)
        self._counters.bytes += report.written_bytes
        self._file = report.file
        if report.failure and self.is_active:
            self.is_active = False
            self._problem = report.failure
            self._counters.failures += 1
            _log.error("recording stopped: %s", report.failure, extra=RECORDING_STOPPED)

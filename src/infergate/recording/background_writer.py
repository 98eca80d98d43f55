"""The thread that encodes, compresses and writes exchanges.

*Rule.* The thread reports each batch to the event loop, and touches nothing that the loop uses. The
loop counts the results, and releases the memory of the batch."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from infergate.core.exchange import Exchange
from infergate.core.limits import MIB
from infergate.core.log_events import BUG
from infergate.core.memory import DetachedMemoryAccount
from infergate.core.records import record
from infergate.recording.directory import DirectoryFullError, RecordingDirectory
from infergate.recording.encoding import UnrecordableError, encode_exchange
from infergate.recording.redaction import Redaction

RECORDED: Final = "recorded"
UNRECORDABLE: Final = "unrecordable"
NOT_WRITTEN: Final = "not_written"
_COLLECT_SECONDS: Final = 0.005
"""Seconds for which the thread collects exchanges after the first. Waking the thread for each
exchange would cost more than writing the exchange."""
_BATCH: Final = 64
_BATCH_BYTES: Final = 8 * MIB
_JOBS_PER_PAUSE: Final = 8
"""Exchanges that are encoded before a pause while the queue is long. Otherwise, the thread pauses
after each. Releasing the interpreter for less time than another thread needs to wake up would let
that thread wait for up to 5 ms."""
_LONG_QUEUE: Final = 100
_PAUSE_SECONDS: Final = 0.00005
_CLOSE_TIMEOUT_SECONDS: Final = 3.0
_log = logging.getLogger("infergate")


@record
class WriteJob:
    """An exchange to redact and write. ``memory`` holds ``size`` bytes."""

    exchange: Exchange
    redaction: Redaction
    size: int
    memory: DetachedMemoryAccount


@dataclass(slots=True)
class BatchReport:
    """The end of a batch of jobs. The event loop closes the memory of the jobs and removes them
    from the list, so that the loop can reuse the memory of their messages."""

    jobs: list[WriteJob]
    results: Counter[str] = field(default_factory=Counter)
    written_bytes: int = 0
    failure: str = ""
    """The reason why the thread stopped writing, or empty."""
    file: str = ""
    """The name of the file that is being written, or empty."""


_Control = Callable[[], object]
"""A function for the thread to call."""


class BackgroundWriter:
    """Writes jobs to ``directory``. ``on_report`` runs on the event loop. After a failure, jobs are
    not written until ``resume``."""

    def __init__(
        self, directory: RecordingDirectory, on_report: Callable[[BatchReport], object]
    ) -> None:
        self._directory: Final = directory
        self._on_report: Final = on_report
        self._loop: Final = asyncio.get_running_loop()
        self._queue: Final[SimpleQueue[WriteJob | _Control | None]] = SimpleQueue()
        self._has_failed = False
        self._is_closing = False
        self._thread: Final = threading.Thread(
            target=self._run, name="infergate-recorder", daemon=True
        )
        self._thread.start()

    def put(self, job: WriteJob) -> None:
        """Add ``job`` to the queue, which is not bounded."""
        self._queue.put(job)

    def resume(self) -> None:
        """Write jobs again after a failure."""

        def resume() -> None:
            self._has_failed = False

        self._queue.put(resume)

    def close_file(self) -> asyncio.Future[None]:
        """Write all jobs in the queue, and complete the current file. The result is done after
        that, which takes as long as the disk does not respond."""
        done: asyncio.Future[None] = self._loop.create_future()

        def finish() -> None:
            if not done.done():  # The future is done if a caller cancelled it.
                done.set_result(None)

        def close() -> None:
            report = BatchReport([])
            self._close_file(report)
            self._report(report)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(finish)

        self._queue.put(close)
        return done

    def close(self) -> None:
        """Write the jobs in the queue, for at most a few seconds, complete the file and stop. This
        blocks."""
        self._is_closing = True
        self._queue.put(None)
        self._thread.join(_CLOSE_TIMEOUT_SECONDS)

    # ---- the thread

    def _run(self) -> None:
        is_running = True
        while is_running:
            jobs: list[WriteJob] = []
            controls = self._collect(jobs)
            if jobs:
                self._write_batch(jobs)
            for control in controls:
                if control is None:
                    is_running = False
                else:
                    control()
        self._close_file(BatchReport([]))

    def _collect(self, jobs: list[WriteJob]) -> list[_Control | None]:
        """Wait for an item, and add jobs to ``jobs`` until the batch is complete. Return the item
        that ended the batch, if it is no job."""
        size, item = 0, self._queue.get()
        if isinstance(item, WriteJob) and self._queue.empty() and not self._is_closing:
            time.sleep(_COLLECT_SECONDS)
        while isinstance(item, WriteJob):
            jobs.append(item)
            size += item.size
            if len(jobs) == _BATCH or size >= _BATCH_BYTES or self._queue.empty():
                return []
            item = self._queue.get()
        return [item]

    def _write_batch(self, jobs: list[WriteJob]) -> None:
        report = BatchReport(jobs)
        if self._has_failed:
            report.results[NOT_WRITTEN] = len(jobs)
        else:
            self._write(jobs, report)
        self._report(report)

    def _write(self, jobs: Sequence[WriteJob], report: BatchReport) -> None:
        results = report.results
        try:
            try:
                for number, job in enumerate(jobs, 1):
                    if number % _JOBS_PER_PAUSE == 0 or self._queue.qsize() < _LONG_QUEUE:
                        _pause()
                    content = job.redaction.apply(job.exchange)
                    try:
                        size = self._directory.append(encode_exchange(*content, _pause))
                    except UnrecordableError as error:
                        results[UNRECORDABLE] += 1
                        _log.debug("an inference was not recorded: %s", error)
                    else:
                        results[RECORDED] += 1
                        report.written_bytes += size
            finally:
                self._directory.flush()
            report.file = self._directory.current
        except DirectoryFullError as error:
            self._fail(str(error), report)
        except OSError as error:
            # The file ends with the records of the previous batch.
            report.results, report.written_bytes = Counter(), 0
            self._fail(str(error), report)
        except Exception:  # noqa: BLE001 - logged; ends the recording, not the process
            _log.exception("bug while writing a recording", extra=BUG)
            report.results, report.written_bytes = Counter(), 0
            self._fail("internal error, see the log", report)
        report.results[NOT_WRITTEN] += len(jobs) - report.results.total()

    def _fail(self, reason: str, report: BatchReport) -> None:
        self._has_failed = True
        report.failure = reason
        self._close_file(report)

    def _close_file(self, report: BatchReport) -> None:
        try:
            self._directory.close_file()
        except OSError as error:
            self._has_failed = True
            report.failure = report.failure or str(error)

    def _report(self, report: BatchReport) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_report, report)


def _pause() -> None:
    """Let the event loop run."""
    time.sleep(_PAUSE_SECONDS)

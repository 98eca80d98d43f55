"""The thread that encodes, compresses and writes exchanges.

*Rule.* The thread and the event loop never use a job at the same time. The thread reports each
finished batch to the loop, which counts the results and releases the memory of the batch."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
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
"""Seconds for which the thread collects further exchanges after the first exchange of a batch.
Waking the thread for each exchange would cost more than writing the exchange."""
_BATCH: Final = 64
_BATCH_BYTES: Final = 8 * MIB
_JOBS_PER_PAUSE: Final = 8
"""Number of exchanges that are encoded between two pauses while the queue is long. With a short
queue, the thread pauses before each exchange. During a pause, the thread releases the interpreter
lock long enough for the event loop to wake up. Without pauses, the event loop would wait for up to
5 ms."""
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
    """The report about a finished batch of jobs. The event loop closes the memory accounts of the
    jobs, and clears ``jobs`` to free the messages."""

    jobs: list[WriteJob]
    results: Counter[str] = field(default_factory=Counter)
    written_bytes: int = 0
    failure: str = ""
    """The reason why the thread stopped writing, or an empty string."""
    file: str = ""
    """The name of the file that is being written, or an empty string."""


_Command = Callable[[], object]
"""A function that the thread calls."""


class BackgroundWriter:
    """Writes jobs to ``directory``. ``on_report`` runs on the event loop. After a failure, jobs are
    discarded until ``resume`` is called."""

    def __init__(
        self, directory: RecordingDirectory, on_report: Callable[[BatchReport], object]
    ) -> None:
        self._directory: Final = directory
        self._on_report: Final = on_report
        self._loop: Final = asyncio.get_running_loop()
        self._queue: Final[SimpleQueue[WriteJob | _Command | None]] = SimpleQueue()
        self._has_failed = False
        self._is_closing = False
        self._thread: Final = threading.Thread(
            target=self._run, name="infergate-recorder", daemon=True
        )
        self._thread.start()

    def put(self, job: WriteJob) -> None:
        """Add ``job`` to the queue. The caller limits the length of the queue."""
        self._queue.put(job)

    def resume(self) -> None:
        """Write jobs again after a failure."""

        def resume() -> None:
            self._has_failed = False

        self._queue.put(resume)

    def close_file(self) -> asyncio.Future[None]:
        """Write all jobs in the queue, and complete the current file. The future is done when the
        file is complete, which can take a long time if the disk does not respond."""
        done: Future[None] = Future()

        def close() -> None:
            report = BatchReport([])
            self._close_file(report)
            self._report(report)
            if done.set_running_or_notify_cancel():
                done.set_result(None)

        self._queue.put(close)
        return asyncio.wrap_future(done)

    def close(self) -> None:
        """Write the jobs in the queue, for at most a few seconds, complete the file, and stop the
        thread. This method blocks."""
        self._is_closing = True
        self._queue.put(None)
        self._thread.join(_CLOSE_TIMEOUT_SECONDS)

    # ---- the thread

    def _run(self) -> None:
        is_running = True
        while is_running:
            jobs: list[WriteJob] = []
            commands = self._collect(jobs)
            if jobs:
                report = BatchReport(jobs)
                if not self._has_failed:
                    self._write(report)
                report.results[NOT_WRITTEN] += len(jobs) - report.results.total()
                self._report(report)
            for command in commands:
                if command is None:
                    is_running = False
                else:
                    command()
        self._close_file(BatchReport([]))

    def _collect(self, jobs: list[WriteJob]) -> list[_Command | None]:
        """Wait for an item, and add jobs to ``jobs`` until the batch is complete. Return a list
        with the command that ended the batch (None stops the thread), or an empty list if no
        command ended the batch."""
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

    def _write(self, report: BatchReport) -> None:
        results = report.results
        try:
            try:
                for number, job in enumerate(report.jobs, 1):
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
    """Release the interpreter lock, so that the event loop can run."""
    time.sleep(_PAUSE_SECONDS)

"""The recorder: sampling, limits, memory, starting, stopping, and failures to write files."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exchange_samples import comparable, sample_exchange
from infergate.core.counters import RecordingCounters
from infergate.core.datatypes import Datatype
from infergate.core.errors import backend_garbage
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import MIB, Limits
from infergate.core.memory import UNLIMITED
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import OpaqueParameters, Tensor
from infergate.recording import background_writer
from infergate.recording import recorder as module
from infergate.recording.directory import DirectorySettings, RecordingDirectory
from infergate.recording.encoding import RecordedExchange
from infergate.recording.held_bytes import held_bytes
from infergate.recording.reader import read_recording
from infergate.recording.recorder import Recorder
from infergate.recording.redaction import Redaction
from infergate.recording.sampling import is_sampled
from infergate.transport.server.admission import Admission, RequestAccount
from memory_budget import Budget
from waiting import until


class Recording:
    """A recorder with its counters and its files."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.path = path / "records"
        self.counters = RecordingCounters()
        settings = replace(DirectorySettings(self.path, 1 << 20, 1 << 24), **fields)
        self.recorder = Recorder(settings, Redaction(), self.counters)

    @property
    def results(self) -> dict[str, int]:
        return {result: count for result, count in self.counters.exchanges.items() if count}

    async def wait_idle(self) -> None:
        """Wait until the queue is empty."""
        await until(lambda: not self.recorder.status()["queued"])

    def exchanges(self) -> list[Exchange]:
        parts = [part for file in sorted(self.path.iterdir()) for part in read_recording(file)]
        assert all(isinstance(part, RecordedExchange) for part in parts)
        return [part.exchange for part in parts if isinstance(part, RecordedExchange)]


@asynccontextmanager
async def running_recorder(path: Path, **fields: Any) -> AsyncIterator[Recording]:
    recording = Recording(path, **fields)
    try:
        yield recording
    finally:
        await asyncio.to_thread(recording.recorder.close)


class Disk:
    """Blocks the writer's thread until ``released`` is set, and then raises ``error``, if set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._append = RecordingDirectory.append
        self.released = threading.Event()
        self.reached = threading.Event()
        self.error: Exception | None = None
        disk = self

        def append(directory: RecordingDirectory, parts: Any) -> int:
            disk.reached.set()
            disk.released.wait(60)
            if disk.error is not None:
                raise disk.error
            return disk._append(directory, parts)

        monkeypatch.setattr(RecordingDirectory, "append", append)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.released.set()


async def test_exchanges_are_recorded_in_order_and_the_memory_is_released(tmp_path: Path) -> None:
    memory = Budget(1 << 20)
    async with running_recorder(tmp_path) as recording:
        originals = [sample_exchange(number) for number in range(500)]
        for exchange in originals:
            recording.recorder.record(exchange, memory)
        await recording.recorder.stop()
        assert comparable(recording.exchanges()) == comparable(originals)
        assert recording.results == {"recorded": 500}
        sizes = [file.stat().st_size - 24 for file in recording.path.iterdir()]
        assert recording.counters.bytes == sum(sizes)
    assert memory.held == 0
    assert memory.peak == held_bytes(originals[0])


async def test_memory_is_held_until_the_exchange_is_written(tmp_path: Path, disk: Disk) -> None:
    admission = Admission(Limits())
    account = RequestAccount(admission)
    account.admit(0)
    async with running_recorder(tmp_path) as recording:
        exchange = sample_exchange(size=1000)
        recording.recorder.record(exchange, account)
        account.release()
        await asyncio.to_thread(disk.reached.wait, 60)
        assert admission.bytes == held_bytes(exchange)
        disk.released.set()
        await recording.wait_idle()
        assert admission.bytes == 0


async def test_an_idle_recorder_keeps_nothing_and_messages_are_freed_on_the_event_loop(
    tmp_path: Path,
) -> None:
    freed: list[threading.Thread] = []
    async with running_recorder(tmp_path) as recording:
        for _ in range(3):
            message = np.zeros(1000, "u1")
            weakref.finalize(message, lambda: freed.append(threading.current_thread()))
            tensor = Tensor("x", Datatype.UINT8, (1000,), message.data)
            request = InferRequest("m", inputs=(tensor,))
            recording.recorder.record(replace(sample_exchange(), request=request), UNLIMITED)
            del message, tensor, request
        await recording.wait_idle()
        await asyncio.sleep(0)
        assert freed == [threading.main_thread()] * 3


async def test_redacted_data_counts_as_memory_because_its_message_is_kept(
    tmp_path: Path, disk: Disk
) -> None:
    memory = Budget(100_000)
    recorder = Recorder(
        DirectorySettings(tmp_path, 1 << 20, 1 << 20), Redaction(removed=["*"]), RecordingCounters()
    )
    recorder.record(sample_exchange(size=1000), memory)
    assert memory.peak == held_bytes(sample_exchange(size=1000))
    disk.released.set()
    await asyncio.to_thread(recorder.close)


async def test_a_disk_that_hangs_leaves_three_quarters_of_the_memory_to_requests(
    tmp_path: Path, disk: Disk
) -> None:
    admission = Admission(Limits(in_flight_bytes=16 * MIB))
    account = RequestAccount(admission)
    async with running_recorder(tmp_path) as recording:
        for number in range(100):
            recording.recorder.record(sample_exchange(number, size=MIB // 4), account)
        assert 2 * MIB < admission.bytes <= 4 * MIB
        account.admit(11 * MIB)  # a sixteenth is reserved for short requests
        account.release()
        disk.released.set()
        await recording.wait_idle()
        assert recording.results.keys() == {"recorded", "memory_short"}
        assert sum(recording.results.values()) == 100
    assert admission.bytes == 0


async def test_the_queue_is_bounded_by_count(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 3)
    async with running_recorder(tmp_path) as recording:
        for number in range(5):
            recording.recorder.record(sample_exchange(number), UNLIMITED)
        disk.released.set()
        await recording.wait_idle()
        assert recording.results == {"recorded": 3, "queue_full": 2}


async def test_the_queue_is_bounded_by_bytes_but_holds_any_single_exchange(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 10_000)
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(size=50_000), UNLIMITED)
        recording.recorder.record(sample_exchange(), UNLIMITED)
        disk.released.set()
        await recording.wait_idle()
        assert recording.results == {"recorded": 1, "queue_full": 1}
        recording.recorder.record(sample_exchange(), UNLIMITED)
        await recording.wait_idle()
        assert recording.results == {"recorded": 2, "queue_full": 1}


async def test_exchanges_and_streams_that_do_not_fit_into_memory_are_counted(
    tmp_path: Path,
) -> None:
    memory = Budget(100)
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(size=1000), memory)
        assert recording.results == {"memory_short": 1}
        recording.recorder.observer("m", 100).count_lost()
        assert recording.results == {"memory_short": 2}
    assert memory.held == 0


async def test_other_exchanges_are_recorded_after_an_unrecordable_one(tmp_path: Path) -> None:
    async with running_recorder(tmp_path) as recording:
        for parameters in ({}, {"p": object()}, {}):
            recording.recorder.record(sample_exchange(**parameters), UNLIMITED)
        await recording.wait_idle()
        assert recording.results == {"recorded": 2, "unrecordable": 1}
        assert recording.recorder.is_active


def test_held_bytes_include_tensors_parameters_headers_errors_and_bodies() -> None:
    plain = held_bytes(sample_exchange())
    assert plain is not None
    part = Tensor("x", Datatype.UINT8, (1,), memoryview(bytes(10_000))[:1])
    text = "x" * 10_000
    larger = (
        sample_exchange(size=10_016),
        replace(sample_exchange(), request=InferRequest("m", inputs=(part,))),
        sample_exchange(p=text),
        sample_exchange(p=[{"a": [text]}]),
        sample_exchange(**{text: 1}),
        sample_exchange(p=[0] * 1000),
        replace(sample_exchange(), headers={"x": text}),
        replace(sample_exchange(), outcome=Outcome((), backend_garbage(text))),
        replace(sample_exchange(), outcome=Outcome((), backend_garbage("", text))),
        replace(
            sample_exchange(),
            request=InferRequest("m", parameters=OpaqueParameters({}, (), text.encode())),
        ),
    )
    for exchange in larger:
        assert (held_bytes(exchange) or 0) - plain > 9000


@pytest.mark.parametrize("value", [[0] * 10_001, {str(n): 0 for n in range(10_001)}])
async def test_too_many_parameters_are_not_recorded(tmp_path: Path, value: Any) -> None:
    assert held_bytes(sample_exchange(p=value)) is None
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(p=value), UNLIMITED)
        assert recording.results == {"unrecordable": 1}


async def test_queued_exchanges_do_not_hold_headers_that_are_not_recorded(
    tmp_path: Path, disk: Disk
) -> None:
    memory = Budget(100_000)
    async with running_recorder(tmp_path) as recording:
        exchange = replace(sample_exchange(), headers={"x-large": "x" * 16_000})
        recording.recorder.record(exchange, memory)
        assert memory.peak == held_bytes(sample_exchange())
        disk.released.set()


# ---- stopping and starting


async def test_after_a_stop_the_file_is_complete_and_nothing_is_recorded(tmp_path: Path) -> None:
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(), UNLIMITED)
        await recording.recorder.stop()
        assert len(recording.exchanges()) == 1
        assert not recording.recorder.status()["file"]
        recording.recorder.record(sample_exchange(), UNLIMITED)  # the request ended late
        assert recording.results == {"recorded": 1, "not_written": 1}
        recording.recorder.start()
        recording.recorder.record(sample_exchange(), UNLIMITED)
        await recording.wait_idle()
        assert recording.results == {"recorded": 2, "not_written": 1}
        assert len(list(recording.path.iterdir())) == 2


async def test_close_writes_queued_exchanges(tmp_path: Path) -> None:
    async with running_recorder(tmp_path) as recording:
        for number in range(200):
            recording.recorder.record(sample_exchange(number), UNLIMITED)
    assert len(recording.exchanges()) == 200


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_closing_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setattr(module, "_STOP_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(background_writer, "_CLOSE_TIMEOUT_SECONDS", 0.01)
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(), UNLIMITED)
        await asyncio.to_thread(disk.reached.wait, 60)
        if is_stopped:
            await recording.recorder.stop()
    assert not disk.released.is_set()


async def test_a_stop_reports_a_disk_that_hangs_until_the_file_is_complete(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(), UNLIMITED)
        await asyncio.to_thread(disk.reached.wait, 60)
        with monkeypatch.context() as patched:
            patched.setattr(module, "_STOP_TIMEOUT_SECONDS", 0.01)
            await recording.recorder.stop()
        status = recording.recorder.status()
        assert (status["active"], status["problem"]) == (False, "the disk does not respond")
        disk.released.set()
        await until(lambda: not recording.recorder.status()["problem"])
        assert len(recording.exchanges()) == 1
        assert not recording.recorder.status()["file"]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "Input/output error"),
        (RuntimeError("a bug"), "internal error, see the log"),
    ],
)
async def test_a_failure_stops_recording_with_one_log_line(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, error: Exception, problem: str
) -> None:
    memory = Budget(1 << 20)
    disk.released.set()
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(1), memory)
        await recording.wait_idle()
        disk.error = error
        for number in range(100):
            recording.recorder.record(sample_exchange(number), memory)
        await recording.wait_idle()
        assert not recording.recorder.is_active
        assert problem in recording.recorder.status()["problem"]
        assert recording.results == {"recorded": 1, "not_written": 100}
        assert [exchange.request.id for exchange in recording.exchanges()] == ["id-1"]
        events = [getattr(entry, "event", "") for entry in caplog.records]
        assert events.count("recording_stopped") == recording.counters.failures == 1
        disk.error = None
        recording.recorder.start()
        recording.recorder.record(sample_exchange(2), memory)
        await recording.wait_idle()
        assert recording.recorder.status()["problem"] == ""
        assert [exchange.request.id for exchange in recording.exchanges()] == ["id-1", "id-2"]
    assert memory.held == 0


async def test_a_full_folder_stops_recording_and_keeps_every_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_recorder(tmp_path, total_bytes=20_000) as recording:
        while recording.recorder.is_active:
            recording.recorder.record(sample_exchange(size=1000), UNLIMITED)
            await recording.wait_idle()
        assert "share of the maximum total size of 20000 bytes" in caplog.text
        assert len(recording.exchanges()) == recording.results["recorded"] > 10
        assert recording.results["not_written"] == 1


async def test_a_folder_that_cannot_be_created_stops_recording(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file")
    async with running_recorder(tmp_path) as recording:
        recording.recorder.record(sample_exchange(), UNLIMITED)
        await recording.wait_idle()
        assert not recording.recorder.is_active
        assert "records" in recording.recorder.status()["problem"]


# ---- sampling


@pytest.mark.parametrize("percent", [0.5, 10, 50, 100])
def test_a_percentage_of_the_requests_is_selected(percent: float) -> None:
    request = InferRequest("m")
    share = sum(is_sampled(percent, "m", request, f"id-{number}") for number in range(2000)) / 20
    assert share == pytest.approx(percent, abs=3)


def test_a_sequence_is_selected_as_a_whole() -> None:
    selected = set()
    for sequence in range(200):
        request = InferRequest("m", parameters={"sequence_id": sequence + 1})
        results = {is_sampled(50, "m", request, f"id-{number}") for number in range(20)}
        assert len(results) == 1
        selected |= results
    assert selected == {False, True}


async def test_a_route_selects_nothing_while_recording_is_stopped(tmp_path: Path) -> None:
    async with running_recorder(tmp_path) as recording:
        observer = recording.recorder.observer("m", 100)
        context = RequestContext("", request_id="id")
        assert observer.selects(InferRequest("m"), context)
        await recording.recorder.stop()
        assert not observer.selects(InferRequest("m"), context)


async def test_an_observed_exchange_is_recorded(tmp_path: Path) -> None:
    async with running_recorder(tmp_path) as recording:
        recording.recorder.observer("m", 50).observe(sample_exchange(3), UNLIMITED)
        await recording.wait_idle()
        assert [exchange.request.id for exchange in recording.exchanges()] == ["id-3"]


async def test_the_writer_thread_reports_many_exchanges_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = 0
    on_report = Recorder._on_report

    def count(recorder: Recorder, report: Any) -> None:
        nonlocal reports
        reports += 1
        on_report(recorder, report)

    monkeypatch.setattr(Recorder, "_on_report", count)
    async with running_recorder(tmp_path) as recording:
        for number in range(6400):
            recording.recorder.record(sample_exchange(number), UNLIMITED)
        await recording.wait_idle()
        assert recording.results == {"recorded": 6400}
    assert reports <= 110

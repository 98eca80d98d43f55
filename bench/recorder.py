"""``python -m bench.recorder [FOLDER]`` loads a recorder with 10,000 small inferences a second, and
with 1 GB/s of tensors, and measures the delays of the event loop.

The exchanges come from the same process, so the event loop, the recorder's thread and this program
share one interpreter, as in a gateway. Each load is run without and with the recorder, alternately.
The delay is measured with a timer that fires every millisecond."""

import argparse
import asyncio
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from infergate.core.counters import RecordingCounters
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.limits import MIB, Limits
from infergate.core.messages import InferRequest, InferResponse
from infergate.core.tensor import Tensor
from infergate.recording.directory import DirectorySettings
from infergate.recording.reader import DamagedPart, read_recording
from infergate.recording.recorder import MAX_QUEUED_BYTES, Recorder
from infergate.recording.redaction import Redaction
from infergate.transport.server.admission import Admission, RequestAccount

SECONDS = 3.0
REPEATS = 2
TICK = 0.001
GIB = 1024 * MIB


def small(number: int) -> Exchange:
    """Return an inference with 64 floats and 10 scores."""
    image = Tensor("image", Datatype.FP32, (1, 64), np.full(64, number, "f4").tobytes())
    scores = Tensor("scores", Datatype.FP32, (1, 10), bytes(40))
    request = InferRequest("digits", "", str(number), {"priority": 1}, (image,))
    outcome = Outcome((InferResponse("digits", "1", str(number), {}, (scores,)),), None, 0.001)
    return Exchange(request, outcome, "v2-grpc", "digits", "triton", f"id-{number}", {}, 1e9)


def large(size: int) -> Callable[[int], Exchange]:
    """Return a function that makes inferences with ``size`` random bytes, which hardly compress."""
    # All inferences use the same memory, because filling new memory would itself delay the event
    # loop.
    data = np.random.default_rng(1).normal(size=size // 4).astype("f4").tobytes()
    tensor = Tensor("image", Datatype.FP32, (size // 4,), data)

    def make(number: int) -> Exchange:
        return Exchange(InferRequest("m", "", str(number), {}, (tensor,)), Outcome())

    return make


class Load:
    """A load of ``rate`` inferences a second, which are recorded in ``folder``."""

    def __init__(self, folder: Path, make: Callable[[int], Exchange], rate: float) -> None:
        self.folder, self.make, self.rate = folder, make, rate
        self.counters = RecordingCounters()
        self.admission = Admission(Limits(in_flight_bytes=2 * GIB))
        self.delays: list[float] = []
        self.sent = 0
        self.peak = 0

    async def run(self, *, recorded: bool) -> None:
        settings = DirectorySettings(self.folder, 256 * MIB, 100 * GIB)
        recorder = Recorder(settings, Redaction(), self.counters) if recorded else None
        begin = time.monotonic()
        ticks = asyncio.create_task(self._tick(begin))
        while (elapsed := time.monotonic() - begin) < SECONDS:
            while self.sent < elapsed * self.rate:
                exchange = self.make(self.sent)
                if recorder is not None:
                    account = RequestAccount(self.admission)
                    account.admit(0)
                    recorder.record(exchange, account)
                    account.release()
                self.sent += 1
                self.peak = max(self.peak, self.admission.bytes)
                await asyncio.sleep(0)
            await asyncio.sleep(TICK)
        await ticks
        if recorder is not None:
            await recorder.stop()
            await asyncio.to_thread(recorder.close)

    async def _tick(self, begin: float) -> None:
        while time.monotonic() - begin < SECONDS:
            planned = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            self.delays.append(time.monotonic() - planned)

    def report(self, name: str) -> str:
        p50, p99, worst = np.percentile(self.delays, [50, 99, 100]) * 1000
        results = {key: count for key, count in self.counters.exchanges.items() if count}
        return (
            f"{name:<22} sent {self.sent:>6}  {results or 'not recorded'}  "
            f"written {self.counters.bytes / MIB:.0f} MiB  "
            f"queue at most {self.peak / MIB:.0f} MiB  "
            f"loop late by p50 {p50:.2f} p99 {p99:.2f} max {worst:.1f} ms"
        )


async def compare(name: str, parent: Path, make: Callable[[int], Exchange], rate: float) -> None:
    for repeat in range(REPEATS):
        for recorded in (False, True):
            folder = parent / f"{name}-{repeat}"
            load = Load(folder, make, rate)
            before = time.process_time()
            await load.run(recorded=recorded)
            cpu = time.process_time() - before
            print(load.report(f"{name}{' recorded' if recorded else ''}"), f"cpu {cpu:.2f} s")
            assert load.peak <= MAX_QUEUED_BYTES + 32 * MIB
            if recorded:
                parts = [part for file in folder.iterdir() for part in read_recording(file)]
                assert not any(isinstance(part, DamagedPart) for part in parts)
                assert len(parts) == load.counters.exchanges["recorded"]
                shutil.rmtree(folder)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where files are written")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        await compare("10,000 small/s", Path(temporary), small, 10_000)
        await compare("1 GB/s of 1 MiB", Path(temporary), large(MIB), 1e9 / MIB)
        await compare("1 GB/s of 16 MiB", Path(temporary), large(16 * MIB), 1e9 / (16 * MIB))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process: {peak:.0f} MiB; processors: {os.cpu_count()}")


if __name__ == "__main__":
    asyncio.run(main())

"""Checks of a process from outside: its liveness, resources and counters, and whether a fault
caused by one client or server affects others."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

from e2e.running import ENGINE, Infergate

P = ParamSpec("P")
SECONDS = 60.0
"""The time limit for a condition."""
MIB = 1 << 20
MAX_RETAINED = {"own": 24, "compat": 64}[ENGINE] * MIB
"""Bytes that may remain in use, because allocators release memory in large pieces and grpcio keeps
buffers."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PAUSE = 0.1
"""Seconds between two requests of the client in ``others_unaffected``."""


@dataclass
class CheckCounters:
    """Counters with which conftest verifies that each test watches the gateway and reads
    metrics."""

    begun: int = 0
    """The number of watched blocks that have begun."""
    open: int = 0
    """The number of watched blocks that are still running."""
    metrics: int = 0
    """The number of metrics that were read."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.begun += 1
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


checks = CheckCounters()


def until(condition: Callable[[], bool], description: str, seconds: float = SECONDS) -> None:
    """Wait until ``condition`` returns true, by polling. Fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {description}"
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def tried_repeatedly(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test up to five times until it passes, because its slow client must stay just within a
    time limit, and may miss the limit on a busy machine."""

    @functools.wraps(test)
    def attempts(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(4):
            with suppress(Exception):
                test(*args, **kwargs)
                return
        test(*args, **kwargs)

    return attempts


def open_files(pid: int) -> list[str]:
    """Return the target of each open descriptor of a process."""
    targets = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.append(str(each.readlink()))
    return targets


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def resident(pid: int) -> int:
    return _memory(pid, "VmRSS")


@contextmanager
def limited_growth(pid: int, size: int) -> Iterator[None]:
    """Check that memory grows by at most ``size`` bytes while the block runs."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # reset the peak
    before = resident(pid)
    yield
    grown = _memory(pid, "VmHWM") - before
    assert grown <= size, f"memory grew by {grown} bytes; the limit is {size}"


def children(pid: int) -> list[int]:
    """Return the ids of the child processes."""
    pids: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # the thread may end meanwhile
            pids += map(int, (task / "children").read_text().split())
    return pids


@contextmanager
def closes_descriptors(pid: int) -> Iterator[None]:
    """Check that descriptors that the process opens in the block are closed soon afterwards."""
    before = descriptors(pid)
    yield
    until(lambda: descriptors(pid) <= before, f"descriptors are back to {before}")


def logged_bugs(gateway: Infergate) -> str:
    """Return the log lines that report bugs, except request lines, which may report errors of a
    backend."""
    log = gateway.log.read_text(errors="replace")
    lines = [
        line
        for line in log.splitlines()
        if not line.startswith("{") or '"event":"request"' not in line
    ]
    return "\n".join(
        line
        for line in lines
        if "Traceback" in line or '"level":"ERROR"' in line or "never retrieved" in line
    )


def alive(gateway: Infergate) -> bool:
    """Return whether the started process still runs and is not a zombie."""
    stat = Path(f"/proc/{gateway.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def metric(gateway: Infergate, name: str, **labels: str) -> float:
    """Return the sum of the samples of a metric with these labels, or 0 if there are no samples."""
    return sample(gateway.metrics(), name, **labels)


def sample(scrape: str, name: str, **labels: str) -> float:
    checks.metrics += 1
    total = 0.0
    for line in scrape.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            labelled, _, value = line.removeprefix(name).rpartition(" ")
            fields = dict(_LABEL.findall(labelled))
            if all(fields.get(key) == label for key, label in labels.items()):
                total += float(value)
    return total


def counted(gateway: Infergate, **labels: str) -> float:
    """Return the number of requests with these labels in ``infergate_requests_total``."""
    return metric(gateway, "infergate_requests_total", **labels)


# ---- checks for every fault


@contextmanager
def rises(gateway: Infergate, name: str, by: float = 1, **labels: str) -> Iterator[None]:
    """Check that a metric is at least ``by`` higher soon after the block."""
    before = metric(gateway, name, **labels)
    yield
    until(lambda: metric(gateway, name, **labels) >= before + by, f"{name}{labels} rises by {by}")


def refused_by(
    gateway: Infergate, limit: str, count: int = 1
) -> contextlib.AbstractContextManager[None]:
    """Check that the block causes at least ``count`` requests to be rejected by ``limit`` (see
    docs/limits.md)."""
    return rises(gateway, "infergate_refused_requests_total", count, limit=limit)


@contextmanager
def releases_connections(gateway: Infergate, listener: str) -> Iterator[None]:
    """Check that, soon after the block, clients that disconnected in it are no longer counted.
    (The gRPC library does not count its connections.)"""
    name = "infergate_open_connections"
    before = metric(gateway, name, listener=listener)
    yield
    until(
        lambda: metric(gateway, name, listener=listener) <= before,
        "closed connections are no longer counted",
    )


@contextmanager
def others_unaffected(good: Callable[[], object]) -> Iterator[None]:
    """While the block runs, let another client call ``good`` repeatedly. ``good`` sends a request,
    and raises or returns False on a wrong response."""
    is_over = threading.Event()

    def send_requests() -> None:
        while True:
            assert good() is not False
            if is_over.wait(_PAUSE):
                return

    with ThreadPoolExecutor(1) as another:
        requests = another.submit(send_requests)
        try:
            yield
        finally:
            is_over.set()
        requests.result()


def at_rest(gateway: Infergate) -> bool:
    """Return whether no request is in progress."""
    metrics = gateway.metrics()
    return (
        "infergate_in_flight_requests 0.0" in metrics and "infergate_in_flight_bytes 0.0" in metrics
    )


HELPERS = 12
"""Descriptors of the helper processes that read long text. The processes start on first use and
keep running."""


@contextmanager
def unharmed(
    gateway: Infergate,
    good: Callable[[], object],
    max_growth: int = 64 * MIB,
    max_retained: int = MAX_RETAINED,
    max_new_descriptors: int = 0,
) -> Iterator[None]:
    """Run a fault in the block while another client is served without errors.

    Memory grows by at most ``max_growth`` bytes. Soon afterwards, the process uses at most
    ``max_retained`` bytes more than before and has no requests in flight. It then has at most
    ``max_new_descriptors`` more descriptors, for persistent connections to backends.
    """
    held, memory = descriptors(gateway.pid) + max_new_descriptors, resident(gateway.pid)
    with checks.watching(), limited_growth(gateway.pid, max_growth), others_unaffected(good):
        yield
    until(lambda: descriptors(gateway.pid) <= held, f"descriptors are back to {held}")
    until(lambda: at_rest(gateway), "no request is in progress")
    until(lambda: resident(gateway.pid) <= memory + max_retained, f"memory is back to {memory}")
    assert alive(gateway)


def assert_healthy(gateway: Infergate) -> None:
    """Check that the process runs and has reported no bug."""
    assert alive(gateway)
    assert logged_bugs(gateway) == ""
    assert counted(gateway, outcome="internal") == 0

"""Observes a process from outside: its liveness, resources and counters, and that a fault caused
by one client or server affects no other."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.running import ENGINE, Infergate

SECONDS = 60.0
"""How long a condition may take to come true before the test gives up on it."""
MIB = 1 << 20
KEEPS = {"own": 24, "compat": 64}[ENGINE] * MIB
"""Memory comes back in large pieces, and grpcio keeps some of what its messages took."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PAUSE = 0.1
"""Seconds between two requests of who is there as well."""


@dataclass
class Done:
    """The number of faults so far, by which conftest checks that each test has one."""

    begun: int = 0
    """How often something was to be as before."""
    open: int = 0
    """How many of those times are not over."""
    metrics: int = 0
    """How often a metric was asked for."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check the block as every fault is checked."""
        self.begun += 1
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


done = Done()


def until(met: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for a condition that nothing tells us of."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while not met():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def open_files(pid: int) -> list[str]:
    """The target of each open descriptor of a process."""
    held = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.append(str(each.readlink()))
    return held


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def resident(pid: int) -> int:
    """Bytes of memory held now."""
    return _memory(pid, "VmRSS")


@contextmanager
def limited_growth(pid: int, size: int) -> Iterator[None]:
    """The process never holds ``size`` bytes more than it does now while the block runs."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from here on
    before = resident(pid)
    yield
    grown = _memory(pid, "VmHWM") - before
    assert grown <= size, f"grew by {grown} bytes"


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it may end while it is looked at
            found += map(int, (task / "children").read_text().split())
    return found


@contextmanager
def descriptors_come_back(pid: int) -> Iterator[None]:
    """Descriptors that the process opens in the block are closed soon afterwards."""
    before = descriptors(pid)
    yield
    until(lambda: descriptors(pid) <= before, f"descriptors are back to {before}")


def complaints(gateway: Infergate) -> str:
    """Bugs that the log reports: none is expected. Request lines may report a backend's."""
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
    """The process that was started still runs (and is no zombie)."""
    stat = Path(f"/proc/{gateway.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def metric(gateway: Infergate, name: str, **labels: str) -> float:
    """The sum of those samples of a metric that have these labels; 0 where there is none."""
    return sample(gateway.metrics(), name, **labels)


def sample(scrape: str, name: str, **labels: str) -> float:
    """The same of what a scrape has read."""
    done.metrics += 1
    total = 0.0
    for line in scrape.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            labelled, _, value = line.removeprefix(name).rpartition(" ")
            fields = dict(_LABEL.findall(labelled))
            if all(fields.get(key) == wanted for key, wanted in labels.items()):
                total += float(value)
    return total


def counted(gateway: Infergate, **labels: str) -> float:
    """How many requests with these labels ``infergate_requests_total`` has."""
    return metric(gateway, "infergate_requests_total", **labels)


# ---- what every fault is held to


@contextmanager
def rises(gateway: Infergate, name: str, by: float = 1, **labels: str) -> Iterator[None]:
    """A metric is at least ``by`` higher soon after the block."""
    before = metric(gateway, name, **labels)
    yield
    until(lambda: metric(gateway, name, **labels) >= before + by, f"{name}{labels} rises by {by}")


def refused_by(gateway: Infergate, limit: str) -> contextlib.AbstractContextManager[None]:
    """A request is refused in the block because of a limit, by its name in docs/limits.md."""
    return rises(gateway, "infergate_refused_requests_total", limit=limit)


@contextmanager
def lets_go(gateway: Infergate, listener: str) -> Iterator[None]:
    """Clients in the block leave, and soon after it are not counted as connected. They asked for
    nothing, so that no request is. (The gRPC library does not count its connections.)"""
    name = "infergate_open_connections"
    before = metric(gateway, name, listener=listener)
    yield
    until(lambda: metric(gateway, name, listener=listener) <= before, "they are let go")


@contextmanager
def others_unaffected(good: Callable[[], object]) -> Iterator[None]:
    """While the block runs another client asks again and again: ``good`` raises, or is False, where
    it is not answered as it should be."""
    over = threading.Event()

    def ask() -> None:
        while True:
            assert good() is not False
            if over.wait(_PAUSE):
                return

    with ThreadPoolExecutor(1) as another:
        request = another.submit(ask)
        try:
            yield
        finally:
            over.set()
        request.result()


def at_rest(gateway: Infergate) -> bool:
    """Whether nothing is under way."""
    result = gateway.metrics()
    return (
        "infergate_in_flight_requests 0.0" in result and "infergate_in_flight_bytes 0.0" in result
    )


HELPERS = 12
"""Descriptors of the helper processes that read long text: they start when they are first needed,
and stay."""


@contextmanager
def unharmed(
    gateway: Infergate,
    good: Callable[[], object],
    grows: int = 64 * MIB,
    keeps: int = KEEPS,
    opens: int = 0,
) -> Iterator[None]:
    """Run a fault in the block while another client is served without errors.

    The process never holds ``grows`` bytes more memory than before; soon afterwards it has at most
    ``keeps`` more, no more descriptors than before plus ``opens`` (lasting connections to
    backends), and no requests in flight.
    """
    held, memory = descriptors(gateway.pid) + opens, resident(gateway.pid)
    with done.watching(), limited_growth(gateway.pid, grows), others_unaffected(good):
        yield
    until(lambda: descriptors(gateway.pid) <= held, f"descriptors are back to {held}")
    until(lambda: at_rest(gateway), "nothing is under way")
    until(lambda: resident(gateway.pid) <= memory + keeps, f"memory is back to {memory}")
    assert alive(gateway)


def well(gateway: Infergate) -> None:
    """Whatever was done to it, it had no bug."""
    assert alive(gateway)
    assert complaints(gateway) == ""
    assert counted(gateway, outcome="internal") == 0

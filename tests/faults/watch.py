"""A process seen from outside: whether it lives, what it holds, what it counted."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.running import Infergate

SECONDS = 60.0
"""How long a condition may take to come true before the test gives up on it."""
_SAMPLE = re.compile(r"infergate_requests_total\{(.*)\} ([0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def until(met: Callable[[], bool], what: str) -> None:
    """Wait for a condition that nothing tells us of."""
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.01)


def open_files(pid: int) -> list[str]:
    """What each descriptor of a process stands for, but for those that close meanwhile."""
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
def growing_at_most(pid: int, size: int) -> Iterator[None]:
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
    """What the block makes the process open is closed again soon after."""
    before = descriptors(pid)
    yield
    until(lambda: descriptors(pid) <= before, f"descriptors are back to {before}")


def complaints(gateway: Infergate) -> str:
    """What the log tells of bugs: nothing, one hopes. (Lines of requests may tell of a
    backend's.)"""
    log = gateway.log.read_text(errors="replace")
    lines = [
        line for line in log.splitlines() if not line.startswith("{") or '"event":"log"' in line
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


def counted(gateway: Infergate, **labels: str) -> float:
    """How many requests with these labels ``infergate_requests_total`` has."""
    total = 0.0
    for labelled, value in _SAMPLE.findall(gateway.metrics()):
        told = dict(_LABEL.findall(labelled))
        if all(told.get(key) == wanted for key, wanted in labels.items()):
            total += float(value)
    return total

"""CPU time and memory of processes, from /proc."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_TICK = 1_000_000 / os.sysconf("SC_CLK_TCK")
"""Microseconds of CPU per unit of a stat file."""
_PEAK_IS_NOW = "5"
"""Written to clear_refs: resets the peak of resident memory (proc(5))."""


def cpu(session: int) -> float:
    """Return the microseconds of CPU of a session's processes so far; 0 for session 0."""
    return sum(_spent(fields) for _, fields in _stats(session))


def main_threads_cpu(session: int) -> float:
    """Return the same for the first thread of each process."""
    return sum(
        _spent(fields)
        for pid, _ in _stats(session)
        for fields in _read(_PROC / str(pid) / "task" / str(pid) / "stat")
    )


def reset_peak(pid: int) -> None:
    """Reset the peak."""
    (_PROC / str(pid) / "clear_refs").write_text(_PEAK_IS_NOW)


def peak(pid: int) -> int:
    """Return the peak of resident memory in bytes since the process began or ``reset_peak``."""
    return _status(pid, "VmHWM")


def resident(pid: int) -> int:
    """Return the resident memory in bytes."""
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", (_PROC / str(pid) / "status").read_text(), re.MULTILINE
    )
    assert found, field
    return int(found[1]) * 1024


def _stats(session: int) -> Iterator[tuple[int, list[str]]]:
    """Yield process id and stat fields (from the third) of each process of the session."""
    for stat in _PROC.glob("[0-9]*/stat") if session else ():
        for fields in _read(stat):
            if int(fields[3]) == session:
                yield int(stat.parent.name), fields


def _read(stat: Path) -> Iterator[list[str]]:
    """Return a stat file's fields from the third on, or none if the process has ended."""
    try:
        yield stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return


def _spent(fields: list[str]) -> float:
    return (int(fields[11]) + int(fields[12])) * _TICK

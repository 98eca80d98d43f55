"""What the kernel says of processes: CPU time and memory, from /proc."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_TICK = 1_000_000 / os.sysconf("SC_CLK_TCK")
"""Microseconds of CPU in one unit of a stat file."""
_PEAK_IS_NOW = "5"
"""Written to clear_refs: the peak of resident memory begins anew (proc(5))."""


def cpu(session: int) -> float:
    """Microseconds of CPU that the processes of a session have used so far; 0 for session 0."""
    return sum(_spent(fields) for _, fields in _stats(session))


def main_threads_cpu(session: int) -> float:
    """The same of the first thread of each process alone."""
    return sum(
        _spent(fields)
        for pid, _ in _stats(session)
        for fields in _read(_PROC / str(pid) / "task" / str(pid) / "stat")
    )


def reset_peak(pid: int) -> None:
    """From now on the peak is counted anew."""
    (_PROC / str(pid) / "clear_refs").write_text(_PEAK_IS_NOW)


def peak(pid: int) -> int:
    """Bytes of the most resident memory since the process began or ``reset_peak``."""
    return _status(pid, "VmHWM")


def resident(pid: int) -> int:
    """Bytes of resident memory now."""
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", (_PROC / str(pid) / "status").read_text(), re.MULTILINE
    )
    assert found, field
    return int(found[1]) * 1024


def _stats(session: int) -> Iterator[tuple[int, list[str]]]:
    """Process id and stat fields (from the third) of each process of the session."""
    for stat in _PROC.glob("[0-9]*/stat") if session else ():
        for fields in _read(stat):
            if int(fields[3]) == session:
                yield int(stat.parent.name), fields


def _read(stat: Path) -> Iterator[list[str]]:
    """One stat file's fields from the third on; nothing where the process is gone."""
    try:
        yield stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return


def _spent(fields: list[str]) -> float:
    return (int(fields[11]) + int(fields[12])) * _TICK

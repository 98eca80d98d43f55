"""CPU time and memory of processes, from the kernel's clocks and /proc."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_PROCESS_CLOCK = 0b010
"""The low bits of the identifier of another process's CPU clock (clock_getcpuclockid(3))."""
_PEAK_IS_NOW = "5"
"""The value that resets the peak of resident memory when written to clear_refs (proc(5))."""


def cpu(session: int) -> float:
    """Return the microseconds of CPU of a session's processes so far, or 0 for session 0. Clocks
    are read instead of stat files, which count only hundredths of a second."""
    return sum(process_cpu(pid) for pid in _members(session))


def main_thread_cpu(pid: int) -> float:
    """Return the microseconds of CPU of the first thread of a process."""
    path = _PROC / str(pid) / "task" / str(pid) / "schedstat"
    return sum(int(text.split()[0]) / 1000 for text in _read(path))


def reset_peak(pid: int) -> None:
    (_PROC / str(pid) / "clear_refs").write_text(_PEAK_IS_NOW)


def peak(pid: int) -> int:
    """Return the peak of resident memory in bytes since the last ``reset_peak`` or, without a
    reset, since the process began."""
    return _status(pid, "VmHWM")


def resident(pid: int) -> int:
    return _status(pid, "VmRSS")


def _status(pid: int, field: str) -> int:
    match = re.search(
        rf"^{field}:\s+(\d+) kB$", (_PROC / str(pid) / "status").read_text(), re.MULTILINE
    )
    assert match, field
    return int(match[1]) * 1024


def _members(session: int) -> Iterator[int]:
    """Yield the ids of the session's processes."""
    for stat in _PROC.glob("[0-9]*/stat") if session else ():
        for text in _read(stat):
            if int(text.rpartition(")")[2].split()[3]) == session:
                yield int(stat.parent.name)


def _read(path: Path) -> Iterator[str]:
    """Yield the text of a file, or nothing if the process has ended."""
    try:
        yield path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return


def process_cpu(pid: int) -> float:
    """Return the microseconds of CPU of one process so far, or 0 if it has ended."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _PROCESS_CLOCK) / 1000
    except OSError:  # the process has ended
        return 0

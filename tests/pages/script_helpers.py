"""Helpers that a page's script calls between its commands:
``python -m pages.script_helpers listens PID``, and ``… printed OUTPUT EXPECTED SECONDS``, with two
files and the time to wait for the output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_TIMEOUT_SECONDS: Final = 60.0
_POLL: Final = 0.05
_STABLE_POLLS: Final = {True: 2, False: 10}
"""Polls without a new socket after which a server counts as started, by whether it printed its
banner. The server is not contacted, because its log and metrics would show that."""
_BANNER: Final = re.compile(rb"^infergate \S+ serves ", re.MULTILINE)
_LISTEN: Final = "0A"
_ACCEPTS: Final = 0x10000
_ANY: Final = "…"


def wait_listening(pid: int) -> None:
    """Wait until the process ``pid`` or a descendant is ready, has all its listeners, or has
    ended."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    seen: set[int] = set()
    same = 0
    while time.monotonic() < deadline:
        if not _is_alive(pid):
            return
        family = _family(pid)
        held = {inode for each in family for inode in _sockets_of(each)} & _listening()
        same = same + 1 if held == seen else 0
        seen = held
        if held and same >= _STABLE_POLLS[any(map(_has_banner, family))]:
            return
        time.sleep(_POLL)
    sys.exit(f"process {pid} does not listen")


def wait_printed(output: Path, expected: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not printed(output.read_text(errors="replace"), expected):
        if time.monotonic() > deadline:
            sys.exit(f"\n*** differs from the output on the page:\n{expected}")
        time.sleep(_POLL)


def printed(output: str, expected: str) -> bool:
    """Return whether the output matches completely. Trailing spaces, and empty lines at both ends,
    are ignored."""
    lines = [line.rstrip() for line in expected.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?"
        if line.strip() == _ANY
        else ".*".join(map(re.escape, line.split(_ANY))) + r"\n"
        for line in lines
    )
    trimmed = "".join(f"{line.rstrip()}\n" for line in output.strip("\n").splitlines())
    return re.fullmatch(pattern, trimmed) is not None


def _is_alive(pid: int) -> bool:
    try:
        return _status(pid)[0] != "Z"
    except OSError:
        return False


def _status(pid: int) -> Sequence[str]:
    """Return the fields after the name, which may contain spaces: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _family(pid: int) -> set[int]:
    """Return the process and all its descendants."""
    parents = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(each.name)] = int(_status(int(each.name))[1])
        except OSError:
            continue
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _sockets_of(pid: int) -> Iterator[int]:
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(each.readlink())):
                yield int(found[1])
    except OSError:  # the process has ended
        return


def _listening() -> set[int]:
    tables = [row for name in ("tcp", "tcp6") for row in _rows(name)]
    found = {int(row[9]) for row in tables if row[3] == _LISTEN}
    return found | {int(row[6]) for row in _rows("unix") if int(row[3], 16) & _ACCEPTS}


def _rows(table: str) -> list[list[str]]:
    file = Path("/proc/net") / table
    return [row.split() for row in file.read_text().splitlines()[1:]] if file.exists() else []


def _has_banner(pid: int) -> bool:
    """Return whether the file that infergate writes to contains its banner."""
    try:
        output = Path(f"/proc/{pid}/fd/1").resolve()
        return output.is_file() and _BANNER.search(output.read_bytes()) is not None
    except OSError:
        return False


_CALLS: Final[dict[str, Callable[..., None]]] = {
    "listens": lambda pid: wait_listening(int(pid)),
    "printed": lambda output, expected, seconds: wait_printed(
        Path(output), Path(expected).read_text(), float(seconds)
    ),
}

if __name__ == "__main__":
    _CALLS[sys.argv[1]](*sys.argv[2:])

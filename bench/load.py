"""The load: h2load, which is C, drives HTTP/1.1 and gRPC alike and logs every request's time.

A generator in Python would be what limits a tiny request on a small machine. h2load does not read
gRPC's trailers, so every run is checked by its bytes: as many as the right answer has, times the
requests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RUN_SECONDS = 300
_TICK = 1_000_000 / os.sysconf("SC_CLK_TCK")
"""Microseconds of CPU in one unit of /proc/PID/stat."""


@dataclass(frozen=True)
class Request:
    """One request, sent over and over, and the size of its right answer's body."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    answer_size: int
    grpc: bool = False


@dataclass(frozen=True)
class Contender:
    """Someone who answers. ``proxy`` and ``server`` are process ids, each standing for its whole
    session; ``proxy`` is 0 where nothing stands in front of the server."""

    name: str
    request: Request
    proxy: int
    server: int


@dataclass(frozen=True)
class Measured:
    """One run. CPU is microseconds a request: of the proxy, and of all servers together."""

    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    proxy_cpu: float
    all_cpu: float


class LoadError(RuntimeError):
    """The run was not what it should have been; its numbers mean nothing."""


def required_tool() -> str:
    """The path of h2load. Raises LoadError that says how to get it."""
    if found := shutil.which("h2load"):
        return found
    raise LoadError("h2load is missing: sudo apt install nghttp2-client (Debian, Ubuntu)")


def run(contender: Contender, count: int, connections: int, folder: Path) -> Measured:
    """Send the contender's request ``count`` times, one at a time on each connection."""
    request = contender.request
    body, log = folder / "body", folder / "log"
    body.write_bytes(request.body)
    log.unlink(missing_ok=True)
    headers = [f"-H{name}: {value}" for name, value in request.headers.items()]
    before = {pid: cpu(pid) for pid in (contender.proxy, contender.server)}
    done = subprocess.run(
        [
            required_tool(), f"-n{count}", f"-c{connections}", "-m1", "-t1", f"-d{body}",
            f"--log-file={log}", *([] if request.grpc else ["--h1"]), *headers, request.url,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
    )  # fmt: skip
    spent = {pid: cpu(pid) - before[pid] for pid in before}
    said = done.stdout + done.stderr
    _check(said, request, count)
    # start in microseconds, status, duration in microseconds
    rows = [tuple(map(int, line.split("\t")[:3])) for line in log.read_text().splitlines()]
    seconds = (max(row[0] + row[2] for row in rows) - min(row[0] for row in rows)) / 1e6
    times = sorted(row[2] for row in rows)
    return Measured(
        requests=count,
        per_second=count / seconds,
        p50_ms=times[len(times) // 2] / 1000,
        p99_ms=times[min(len(times) - 1, len(times) * 99 // 100)] / 1000,
        proxy_cpu=spent[contender.proxy] / count,
        all_cpu=sum(spent.values()) / count,
    )


def _check(said: str, request: Request, count: int) -> None:
    """Raises LoadError unless every answer came, complete."""
    good = re.search(r"status codes: (\d+) 2xx", said)
    data = re.search(r"\((\d+)\) data", said)
    if not (good and data):
        raise LoadError(f"h2load said:\n{said}")
    if int(good[1]) != count:
        raise LoadError(f"{request.url}: only {good[1]} of {count} answers were good:\n{said}")
    if int(data[1]) != count * request.answer_size:
        raise LoadError(
            f"{request.url}: {data[1]} bytes came where {count} answers of "
            f"{request.answer_size} were due"
        )


def cpu(session: int) -> float:
    """Microseconds of CPU that the processes of a session have used so far; 0 for session 0."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat") if session else ():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total * _TICK

"""The load: h2load, which is C, drives HTTP/1.1 and gRPC alike and logs every request's time.

A generator in Python would be what limits a tiny request on a small machine. h2load does not read
gRPC's trailers, so every run is checked by its bytes: as many as the right answer has, times the
requests.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .proc import cpu

PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 100)
_RUN_SECONDS = 300
_UNDER_WAY = 100
"""Most requests of an open loop that are under way at once: none waits for another's answer."""


@dataclass(frozen=True)
class Request:
    """One request, sent over and over, and the size of its right answer's body."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    answer_size: int
    grpc: bool = False
    counted: int = 0
    """Bytes by which an answer may be longer: those of a number that is another each time."""

    @cached_property
    def digest(self) -> str:
        """Tells its body from others."""
        return hashlib.sha1(self.body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Contender:
    """Someone who answers. ``proxy`` and ``server`` are process ids, each standing for its whole
    session; ``proxy`` is 0 where nothing stands in front of the server. ``engine`` is infergate's;
    empty for all others."""

    name: str
    request: Request
    proxy: int
    server: int
    engine: str = ""


@dataclass(frozen=True)
class Pace:
    """One request at a time on each of ``connections``; or, where there is a ``rate`` (a second),
    one at its appointed time on the only connection, whether the last was answered or not: an open
    loop. See ``waited``."""

    connections: int = 4
    rate: int = 0

    def arguments(self) -> tuple[str, ...]:
        """h2load's."""
        if self.rate:
            return ("-c1", f"-m{_UNDER_WAY}", f"--rps={self.rate}")
        return (f"-c{self.connections}", "-m1")


@dataclass(frozen=True)
class Measured:
    """One run. ``times_ms`` are the requests' durations at PERCENTILES. CPU is microseconds a
    request: of the proxy, and of all servers together."""

    requests: int
    per_second: float
    times_ms: tuple[float, ...]
    proxy_cpu: float
    all_cpu: float

    @property
    def p50_ms(self) -> float:
        return self.times_ms[PERCENTILES.index(50)]

    @property
    def p99_ms(self) -> float:
        return self.times_ms[PERCENTILES.index(99)]


class LoadError(RuntimeError):
    """The run was not what it should have been; its numbers mean nothing."""


def required_tool() -> str:
    """The path of h2load. Raises LoadError that says how to get it."""
    if found := shutil.which("h2load"):
        return found
    raise LoadError("h2load is missing: sudo apt install nghttp2-client (Debian, Ubuntu)")


def run(contender: Contender, count: int, pace: Pace, folder: Path) -> Measured:
    """Send the contender's request ``count`` times. Files are kept in ``folder``."""
    request = contender.request
    body, log = folder / request.digest, folder / "log"
    if not body.exists():
        body.write_bytes(request.body)
    log.unlink(missing_ok=True)
    headers = [f"-H{name}: {value}" for name, value in request.headers.items()]
    before = {pid: cpu(pid) for pid in (contender.proxy, contender.server)}
    done = subprocess.run(
        [
            required_tool(), f"-n{count}", "-t1", f"-d{body}", f"--log-file={log}",
            *pace.arguments(), *([] if request.grpc else ["--h1"]), *headers, request.url,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
    )  # fmt: skip
    spent = {pid: cpu(pid) - before[pid] for pid in before}
    _check(done.stdout + done.stderr, request, count)
    # start in microseconds, status, duration in microseconds
    rows = [tuple(map(int, line.split("\t")[:3])) for line in log.read_text().splitlines()]
    times = [(start, start + duration) for start, _, duration in sorted(rows)]
    seconds = (max(end for _, end in times) - times[0][0]) / 1e6
    return Measured(
        requests=count,
        per_second=count / seconds,
        times_ms=percentiles(waited(times, pace.rate)),
        proxy_cpu=spent[contender.proxy] / count,
        all_cpu=sum(spent.values()) / count,
    )


def percentiles(times: Sequence[float]) -> tuple[float, ...]:
    """``times`` at PERCENTILES: each the least that so many are not above."""
    ordered = sorted(times)
    maximum = len(ordered) - 1
    return tuple(ordered[min(maximum, int(len(ordered) * each / 100))] for each in PERCENTILES)


def _check(said: str, request: Request, count: int) -> None:
    """Raises LoadError unless every answer came, complete."""
    good = re.search(r"status codes: (\d+) 2xx", said)
    data = re.search(r"\((\d+)\) data", said)
    if not (good and data):
        raise LoadError(f"h2load said:\n{said}")
    if int(good[1]) != count:
        raise LoadError(f"{request.url}: only {good[1]} of {count} answers were good:\n{said}")
    due = count * request.answer_size
    if not due <= int(data[1]) <= due + count * request.counted:
        raise LoadError(
            f"{request.url}: {data[1]} bytes came where {count} answers of "
            f"{request.answer_size} were due"
        )


def waited(times: Sequence[tuple[int, int]], rate: int) -> list[float]:
    """Milliseconds that each request took, of starts and ends in microseconds, in order. At a
    ``rate``, one that had to wait for the answer before it (over HTTP/1.1 h2load does not send it)
    counts from its appointed time. So being slow now and then is not hidden; that h2load's own
    clock was late is left out."""
    found = []
    first, answered = times[0][0], 0
    for number, (start, end) in enumerate(times):
        due = first + round(number * 1e6 / rate) if rate else start
        found.append((end - (min(due, start) if answered > due else start)) / 1000)
        answered = max(answered, end)
    return found

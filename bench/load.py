"""The load generator: h2load, written in C, sends HTTP/1.1 and gRPC and logs every request's time.

A generator in Python would be the bottleneck for tiny requests. h2load does not read gRPC's
trailers, so every run is verified by its number of bytes.

Real clients run instead where their headers matter: programs with the arguments ADDRESS METHOD
BODY_FILE ANSWER_SIZE COUNT CONNECTIONS RATE LOG_FILE. Each prints a line when it has started,
waits for one, sends COUNT requests at scheduled times on each connection in turn, verifies the
responses' sizes, and writes a log like h2load's.
"""

import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from .proc import cpu

PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 100)
_RUN_SECONDS = 300
SETTLE_SECONDS = 0.25
"""The time for connections to be opened at a rate."""
_UNDER_WAY = 100
"""The maximum number of concurrent requests in an open loop."""


@dataclass(frozen=True)
class Request:
    """A request that is sent repeatedly, and the size of its response's body."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    answer_size: int
    grpc: bool = False
    counted: int = 0
    """Bytes by which a response may be longer, for numbers that vary."""

    @cached_property
    def digest(self) -> str:
        """Identifies its body."""
        return hashlib.sha1(self.body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Contender:
    """A server or proxy under test. ``proxy`` and ``server`` are process ids, each for a whole
    session; ``proxy`` is 0 without a proxy. ``variant`` is infergate's, and empty for others.
    ``client`` is the command of a real client; h2load is used if it is empty."""

    name: str
    request: Request
    proxy: int
    server: int
    variant: str = ""
    client: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pace:
    """One request at a time on each of ``connections``; or, with a ``rate`` (per second, over all
    connections), one at each scheduled time, whether or not the last one got its response: an open
    loop. h2load's clock ticks 100 times a second, so a connection cannot send more often."""

    connections: int = 4
    rate: int = 0

    def arguments(self) -> tuple[str, ...]:
        """h2load's options."""
        if not self.rate:
            return (f"-c{self.connections}", "-m1")
        paced = (
            f"-c{self.connections}",
            f"-m{_UNDER_WAY}",
            f"--rps={self.rate / self.connections:g}",
        )
        if self.connections == 1:
            return paced
        # begin with the connections one after the other, or all would send at the same time
        return (*paced, "-r1", f"--rate-period={max(1, 1000 // self.rate)}ms")


@dataclass(frozen=True)
class Measured:
    """The result of one run. ``times_ms`` are the requests' durations at PERCENTILES. CPU is in
    microseconds per request: of the proxy, and of all servers together."""

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
    """A run was invalid, so its results are meaningless."""


def required_tool() -> str:
    """Return the path of h2load, or raise LoadError with installation advice."""
    if found := shutil.which("h2load"):
        return found
    raise LoadError("h2load is missing: sudo apt install nghttp2-client (Debian, Ubuntu)")


def run(contender: Contender, count: int, pace: Pace, folder: Path) -> Measured:
    """Send the contender's request ``count`` times; temporary files are in ``folder``. At a rate,
    the CPU of the first requests, which open the connections, does not count."""
    request = contender.request
    body, log = folder / request.digest, folder / "log"
    if not body.exists():
        body.write_bytes(request.body)
    log.unlink(missing_ok=True)
    pids = (contender.proxy, contender.server)
    with subprocess.Popen(
        _command(contender, count, pace, str(body), str(log)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        said = process.stdout.readline() if contender.client else ""
        before = settled = [cpu(pid) for pid in pids]
        since = 0.0
        if said:
            process.stdin.write("\n")
            process.stdin.flush()
        if pace.rate:
            time.sleep(SETTLE_SECONDS)
            settled, since = [cpu(pid) for pid in pids], time.time()
        said += process.communicate(timeout=_RUN_SECONDS)[0]
        after = [cpu(pid) for pid in pids]
    if process.returncode:
        raise LoadError(f"the load generator failed:\n{said}")
    if not contender.client:
        _check(said, request, count)
    # start in microseconds since 1970, status, duration in microseconds
    rows = [tuple(map(int, line.split("\t")[:3])) for line in log.read_text().splitlines()]
    times = [(start, start + duration) for start, _, duration in sorted(rows)]
    seconds = (max(end for _, end in times) - times[0][0]) / 1e6
    counted = sum(start >= since * 1e6 for start, _ in times)
    if counted < count / 4:  # the machine was too busy to begin in time
        counted, settled = count, before
    spent = [late - early for late, early in zip(after, settled, strict=True)]
    return Measured(
        requests=count,
        per_second=count / seconds,
        times_ms=percentiles(waited(times, pace.rate)),
        proxy_cpu=spent[0] / counted,
        all_cpu=sum(spent) / counted,
    )


def _command(contender: Contender, count: int, pace: Pace, body: str, log: str) -> list[str]:
    """Return the command line of the load generator."""
    request = contender.request
    if contender.client:
        url = urlsplit(request.url)
        numbers = (request.answer_size, count, pace.connections, pace.rate)
        return [*contender.client, url.netloc, url.path, body, *map(str, numbers), log]
    headers = [f"-H{name}: {value}" for name, value in request.headers.items()]
    return [
        required_tool(), f"-n{count}", "-t1", f"-d{body}", f"--log-file={log}",
        *pace.arguments(), *([] if request.grpc else ["--h1"]), *headers, request.url,
    ]  # fmt: skip


def percentiles(times: Sequence[float]) -> tuple[float, ...]:
    """Return ``times`` at PERCENTILES (nearest rank)."""
    ordered = sorted(times)
    maximum = len(ordered) - 1
    return tuple(ordered[min(maximum, int(len(ordered) * each / 100))] for each in PERCENTILES)


def _check(said: str, request: Request, count: int) -> None:
    """Raise LoadError unless every response arrived completely."""
    good = re.search(r"status codes: (\d+) 2xx", said)
    data = re.search(r"\((\d+)\) data", said)
    if not (good and data):
        raise LoadError(f"h2load said:\n{said}")
    if int(good[1]) != count:
        raise LoadError(f"{request.url}: only {good[1]} of {count} answers were good:\n{said}")
    due = count * request.answer_size
    if not due <= int(data[1]) <= due + count * request.counted:
        raise LoadError(
            f"{request.url}: received {data[1]} bytes, expected {count} answers of "
            f"{request.answer_size} bytes"
        )


def waited(times: Sequence[tuple[int, int]], rate: int) -> list[float]:
    """Return each request's milliseconds from starts and ends in microseconds, in order.

    At a ``rate``, a request that waited for an earlier response (over HTTP/1.1, h2load does not
    send it) counts from its scheduled time, so that occasional delays are not hidden; delays of
    h2load's own clock do not count.
    """
    found = []
    first, answered = times[0][0], 0
    for number, (start, end) in enumerate(times):
        due = first + round(number * 1e6 / rate) if rate else start
        found.append((end - (min(due, start) if answered > due else start)) / 1000)
        answered = max(answered, end)
    return found

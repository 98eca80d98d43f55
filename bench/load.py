"""Generates load with h2load, a compiled program that sends HTTP/1.1 and gRPC, and logs the time of
every request.

A generator in Python would be the bottleneck for tiny requests. h2load does not read gRPC's
trailers, so the number of received bytes verifies a run.

Where the headers of real clients matter, programs with gRPC libraries replace h2load. They take
ADDRESS METHOD BODY_FILE RESPONSE_SIZE COUNT CONNECTIONS RATE LOG_FILE. Each program prints a line
when it has started, waits until it reads a line, sends COUNT requests at scheduled times over the
connections in turn, verifies the responses' sizes, and writes a log in h2load's format."""

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
"""Seconds at the start of a paced run in which connections are opened."""
_MAX_CONCURRENT = 100
"""The maximum number of concurrent requests in an open loop."""


@dataclass(frozen=True)
class Request:
    """A request that is sent repeatedly, and the size of its response's body."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    response_size: int
    grpc: bool = False
    max_extra_bytes: int = 0
    """The number of bytes by which a response may be longer, because it contains a varint."""

    @cached_property
    def digest(self) -> str:
        """Return a digest of the body."""
        return hashlib.sha1(self.body, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Contender:
    """A server or proxy under test. ``proxy`` and ``server`` are ids of process sessions; ``proxy``
    is 0 without a proxy. ``variant`` is the variant of infergate, and empty for other contenders.
    ``client`` is the command of a real client. If it is empty, h2load is used."""

    name: str
    request: Request
    proxy: int
    server: int
    variant: str = ""
    client: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pace:
    """The pace of a run. Without ``rate``, each of ``connections`` sends one request at a time.
    With a ``rate`` (per second, over all connections), a request is sent at each scheduled time,
    whether or not the previous response has arrived (an open loop). h2load's clock ticks 100 times
    a second, so a connection cannot send more often."""

    connections: int = 4
    rate: int = 0

    def arguments(self) -> tuple[str, ...]:
        """Return h2load's options."""
        if not self.rate:
            return (f"-c{self.connections}", "-m1")
        paced = (
            f"-c{self.connections}",
            f"-m{_MAX_CONCURRENT}",
            f"--rps={self.rate / self.connections:g}",
        )
        if self.connections == 1:
            return paced
        # Start the connections one after the other, because they would otherwise all send at the
        # same time.
        return (*paced, "-r1", f"--rate-period={max(1, 1000 // self.rate)}ms")


@dataclass(frozen=True)
class Measured:
    """The result of one run. ``times_ms`` are the requests' durations at PERCENTILES. CPU is in
    microseconds per request: of the proxy, and of the proxy and the server together."""

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
    """Return the path of h2load. Raises LoadError with installation advice if it is missing."""
    if path := shutil.which("h2load"):
        return path
    raise LoadError("h2load is missing: sudo apt install nghttp2-client (Debian, Ubuntu)")


def run(contender: Contender, count: int, pace: Pace, folder: Path) -> Measured:
    """Send the contender's request ``count`` times. Temporary files are in ``folder``. In a paced
    run, the CPU of the first requests is not counted, because they open the connections. Raises
    LoadError."""
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
        output = process.stdout.readline() if contender.client else ""
        before = settled = [cpu(pid) for pid in pids]
        since = 0.0
        if output:
            process.stdin.write("\n")
            process.stdin.flush()
        if pace.rate:
            time.sleep(SETTLE_SECONDS)
            settled, since = [cpu(pid) for pid in pids], time.time()
        output += process.communicate(timeout=_RUN_SECONDS)[0]
        after = [cpu(pid) for pid in pids]
    if process.returncode:
        raise LoadError(f"the load generator failed:\n{output}")
    if not contender.client:
        _check(output, request, count)
    # The columns are the start in microseconds since 1970, the status, and the duration in
    # microseconds.
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
        times_ms=percentiles(latencies_ms(times, pace.rate)),
        proxy_cpu=spent[0] / counted,
        all_cpu=sum(spent) / counted,
    )


def _command(contender: Contender, count: int, pace: Pace, body: str, log: str) -> list[str]:
    """Return the command line of the load generator."""
    request = contender.request
    if contender.client:
        url = urlsplit(request.url)
        numbers = (request.response_size, count, pace.connections, pace.rate)
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


def _check(output: str, request: Request, count: int) -> None:
    """Raise LoadError unless every response arrived completely."""
    good = re.search(r"status codes: (\d+) 2xx", output)
    data = re.search(r"\((\d+)\) data", output)
    if not (good and data):
        raise LoadError(f"h2load printed no statistics:\n{output}")
    if int(good[1]) != count:
        raise LoadError(f"{request.url}: only {good[1]} of {count} statuses were 2xx:\n{output}")
    expected = count * request.response_size
    if not expected <= int(data[1]) <= expected + count * request.max_extra_bytes:
        raise LoadError(
            f"{request.url}: received {data[1]} bytes, expected {count} responses of "
            f"{request.response_size} bytes"
        )


def latencies_ms(times: Sequence[tuple[int, int]], rate: int) -> list[float]:
    """Return the duration of each request in milliseconds. ``times`` are starts and ends in
    microseconds, in order.

    Over HTTP/1.1, h2load sends a request only after the previous response. In a paced run, the time
    of a request that this delays is measured from its scheduled time, so that occasional delays are
    not hidden. Delays of h2load's own clock are not counted."""
    latencies = []
    first, previous_end = times[0][0], 0
    for number, (start, end) in enumerate(times):
        scheduled = first + round(number * 1e6 / rate) if rate else start
        begin = min(scheduled, start) if previous_end > scheduled else start
        latencies.append((end - begin) / 1000)
        previous_end = max(previous_end, end)
    return latencies

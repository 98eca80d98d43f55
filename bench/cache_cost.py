"""``python -m bench.cache_cost`` measures the cost of a miss and of a hit of the response cache.

A client sends inferences of 600 KB one after the other to one gateway, in alternating rounds, on
routes with and without a cache. The server behind it immediately returns a fixed response of 4 KB.
The table shows the smallest time and the smallest CPU per request of all rounds, and their ratios
to the route that translates without a cache, because routes with a cache translate as well.
"""

import http.client
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import proc, servers
from .requests import flat, image
from .variants import PLAIN

_REQUESTS = 100
_ROUNDS = 15
_CACHE = {"idempotent": True, "cache": {"ttl": "1h"}}
_BASE = "translated"
ROUTES: Mapping[str, Mapping[str, object]] = {
    "passed through": {},
    _BASE: {"fallback": "spare", "idempotent": True},
    "miss": _CACHE,
    "first of two uses": {**_CACHE, "cache": {"ttl": "1h", "min_uses": 2}},
    "hit": _CACHE,
}
"""The routes, by the names of their rows. A route with a fallback translates its requests."""


def main() -> int:
    """Print the table, and return 0."""
    best: dict[str, tuple[float, float]] = {}
    with _gateway() as (address, pid):
        connection = http.client.HTTPConnection(address)
        for number in range(_ROUNDS):
            for row in ROUTES:
                measured = _measure(_sender(connection, row, number), pid)
                previous = best.setdefault(row, measured)
                best[row] = min(previous[0], measured[0]), min(previous[1], measured[1])
    base = best[_BASE]
    print(f"{'600 KB':<20}{'time':>10}{'ratio':>8}{'CPU':>10}{'ratio':>8}")
    for row, (microseconds, cpu) in best.items():
        ratios = microseconds / base[0], cpu / base[1]
        print(f"{row:<20}{microseconds:>7.0f} µs{ratios[0]:>8.2f}{cpu:>7.0f} µs{ratios[1]:>8.2f}")
    return 0


def _measure(send: Callable[[int], None], pid: int) -> tuple[float, float]:
    """Return the time and the gateway's CPU per request, in microseconds."""
    send(0)
    began, used = time.perf_counter(), proc.process_cpu(pid)
    for number in range(1, _REQUESTS + 1):
        send(number)
    used = proc.process_cpu(pid) - used
    return (time.perf_counter() - began) * 1e6 / _REQUESTS, used / _REQUESTS


def _sender(connection: http.client.HTTPConnection, row: str, turn: int) -> Callable[[int], None]:
    headers, template = image(row.replace(" ", "-")).binary()
    body = bytearray(template)
    path = f"/v2/models/{row.replace(' ', '-')}/infer"

    def send(number: int) -> None:
        if row != "hit":
            struct.pack_into("<II", body, len(body) - 8, turn, number)
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        content, cached = response.read(), response.headers.get("cache-status", "")
        if response.status != 200 or (row in {"hit", "miss"} and number and row not in cached):
            raise RuntimeError(f"{row}: {response.status} '{cached}' {content[:200]!r}")

    return send


@contextmanager
def _gateway() -> Iterator[tuple[str, int]]:
    """Yield the gateway's HTTP address and the id of its process."""
    response = flat("echo", 4000).binary_response()
    with (
        tempfile.TemporaryDirectory(prefix="infergate-cache-") as name,
        servers.http_echo(response, Path(name)) as server,
    ):
        url = f"http://{server.addresses[0]}"
        backend = {"protocol": "v2-rest", "profile": "triton", "endpoints": [url]}
        routes = [
            {"model": name.replace(" ", "-"), "backend": "server", **options}
            for name, options in ROUTES.items()
        ]
        config = {
            "backends": {"server": backend, "spare": dict(backend)},
            "routes": routes,
            "log": {"access": False},
        }
        with servers.infergate(config, PLAIN["own"], Path(name)) as proxy:
            yield proxy.http, proxy.pid


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench.cache_cost`` measures what a miss and a hit of the response cache cost.

One gateway serves the same model of a second infergate on several routes, with and without a cache.
A client on the same machine sends inferences of 600 KB one after the other, in alternating rounds.
The tables show the smallest time and CPU of a round per request, and the ratio to the route without
a cache. A route with a cache translates messages, so it is compared with a translating route; the
route that passes messages through is shown as well."""

import http.client
import json
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import proc, servers
from .variants import Variant

_SIZE = 150_528
"""FP32 elements: the elements of an image of 224 by 224 pixels, 602 KB."""
_REQUESTS = 150
_ROUNDS = 7
_VARIANT = Variant("own", "own")
_CACHE = {"ttl": "1h"}
ROUTES: Mapping[str, Mapping[str, object]] = {
    "passed through": {},
    "translated": {"fallback": "spare"},
    "miss": {"fallback": "spare", "idempotent": True, "cache": _CACHE},
    "hit": {"idempotent": True, "cache": _CACHE},
}
"""The routes by the names of the rows. A fallback makes a route translate."""


def main() -> int:
    """Print the table, and return 0."""
    with tempfile.TemporaryDirectory(prefix="infergate-cache-") as name, _gateway(Path(name)) as it:
        address, pid = it
        connection = http.client.HTTPConnection(address)
        best: dict[str, tuple[float, float]] = {}
        for number in range(_ROUNDS):
            for row in ROUTES:
                found = _measure(_sender(connection, row, number), pid)
                known = best.setdefault(row, found)
                best[row] = min(known[0], found[0]), min(known[1], found[1])
    time_, cpu = best["translated"]
    print(f"{'600 KB':<16}{'time':>10}{'ratio':>8}{'CPU':>10}{'ratio':>8}")
    for row, (own_time, own_cpu) in best.items():
        ratios = own_time / time_, own_cpu / cpu
        print(f"{row:<16}{own_time:>7.0f} µs{ratios[0]:>8.2f}{own_cpu:>7.0f} µs{ratios[1]:>8.2f}")
    return 0


def _measure(send: Callable[[int], None], pid: int) -> tuple[float, float]:
    """Return the microseconds of time and of the gateway's CPU per request."""
    send(0)
    began, used = time.perf_counter(), proc.process_cpu(pid)
    for number in range(1, _REQUESTS + 1):
        send(number)
    used = proc.process_cpu(pid) - used
    return (time.perf_counter() - began) * 1e6 / _REQUESTS, used / _REQUESTS


def _sender(connection: http.client.HTTPConnection, row: str, round_: int) -> Callable[[int], None]:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, _SIZE]}
    tensor["parameters"] = {"binary_data_size": 4 * _SIZE}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = bytearray(head + bytes(4 * _SIZE))
    headers = {"Inference-Header-Content-Length": str(len(head))}
    path = f"/v2/models/{row.replace(' ', '-')}/infer"

    def send(number: int) -> None:
        if row != "hit":
            struct.pack_into("<II", body, len(head), round_, number)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200 or len(answer) < 4 * _SIZE:
            raise RuntimeError(f"{row}: {response.status} {answer[:200]!r}")
        status = response.headers.get("cache-status", "")
        if row in {"hit", "miss"} and number and row not in status:
            raise RuntimeError(f"{row}: cache-status is {status!r}")

    return send


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the gateway's HTTP address and the id of its process."""
    everything = {"backends": {"own": {"protocol": "builtin"}}}
    inner = {**everything, "routes": [{"model": "*", "backend": "own"}], "log": {"access": False}}
    (folder / "inner").mkdir()
    (folder / "outer").mkdir()
    with servers.infergate(inner, _VARIANT, folder / "inner") as server:
        backend = {"protocol": "v2-rest", "endpoints": [f"http://{server.http}"]}
        outer = {
            "backends": {"server": backend, "spare": backend},
            "routes": [
                {
                    "model": name.replace(" ", "-"),
                    "backend": "server",
                    "rewrite": {"model": "identity"},
                    **options,
                }
                for name, options in ROUTES.items()
            ],
            "log": {"access": False},
        }
        with servers.infergate(outer, _VARIANT, folder / "outer") as proxy:
            yield proxy.http, proxy.pid


if __name__ == "__main__":
    sys.exit(main())

"""A gateway that measures its callbacks, and checks of a message's cost: CPU time on the event loop
and delay of other clients.

Each row of ``faults.costly.WORST`` is a message: ``posted`` over HTTP, ``called`` over gRPC,
``predicted`` over KServe V1, or ``framed`` on a raw socket. To test a message, add a row."""

from __future__ import annotations

import gzip
import json
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc

from e2e.running import ENGINE, Infergate
from faults.peer import Client, post
from faults.rpc import INFER, Status, call, channel
from peers.support.process import Launch, free_ports, started
from searching import WHOLE

MAX_SECONDS = 0.05
"""Maximum CPU seconds of one callback, on a machine on which ``timed.calibrated`` takes
``UNIT``."""
UNIT = 0.0025
TRIES = 5
"""Number of attempts. A message is too expensive only if every attempt exceeds the limit, because
other load on the machine takes time as well.
"""
MAX_WAIT = 1.0
"""Maximum p99 of a good client in seconds."""
ATTACKS = 2 if WHOLE else 1
"""Number of messages that each attacker sends."""
CONFIG = """
engine: {engine}
listeners:
  admin: {{address: "127.0.0.1:{0}"}}
  grpc: {{address: "127.0.0.1:{1}"}}
  http:
    address: "127.0.0.1:{2}"
    envelopes:
      mlflow: {{model: texts}}
      vertex: {{model: texts, health_route: /ready, predict_route: /predict, body: instances}}
      embeddings: {{models: {{embed: {{input: TEXT, output: EMBEDDING}}}}}}
  graphpipe:
    - {{address: "tcp://127.0.0.1:{3}", model: identity, framing: size-prefixed}}
  additional:
    kserve: {{address: "127.0.0.1:{5}", protocols: [kserve-v1]}}
backends:
  ours: {{protocol: builtin}}
  over-v2-rest: {{protocol: v2-rest, endpoints: ["http://127.0.0.1:{2}"], profile: infergate}}
  over-v2-json: {{protocol: v2-rest, endpoints: ["http://127.0.0.1:{2}"], profile: mlserver}}
  over-v2-grpc: {{protocol: v2-grpc, endpoints: ["grpc://127.0.0.1:{1}"]}}
  over-trtis-http: {{protocol: trtis-http, endpoints: ["http://127.0.0.1:{2}"]}}
  over-trtis-grpc: {{protocol: trtis-grpc, endpoints: ["grpc://127.0.0.1:{1}"]}}
  over-tfs-grpc: {{protocol: tfs-grpc, endpoints: ["grpc://127.0.0.1:{1}"]}}
  over-tfs-rest: {{protocol: tfs-rest, endpoints: ["http://127.0.0.1:{2}"]}}
  over-kserve-v1: {{protocol: kserve-v1, endpoints: ["http://127.0.0.1:{5}"]}}
  over-graphpipe: {{protocol: graphpipe, endpoints: ["tcp://127.0.0.1:{3}"]}}
models:
  texts: &texts
    inputs: [{{name: INPUT0, datatype: BYTES, shape: [-1]}}]
    outputs: [{{name: OUTPUT0, datatype: BYTES, shape: [-1]}}]
  numbers:
    inputs: [{{name: INPUT0, datatype: FP32, shape: [-1, 1]}}]
    outputs: [{{name: OUTPUT0, datatype: FP32, shape: [-1, 1]}}]
  tr.kserve-v1: *texts
routes:
{routes}
  - {{model: texts, backend: ours, rewrite: {{model: identity}}}}
  - {{model: numbers, backend: ours, rewrite: {{model: identity}}}}
  - {{model: "*", backend: ours}}
reload: {{watch: false}}
drain: {{delay: 0s}}
"""
HOPS = (
    "v2-rest", "v2-json", "v2-grpc", "trtis-http", "trtis-grpc", "tfs-grpc", "tfs-rest",
    "kserve-v1", "graphpipe",
)  # fmt: skip
"""The protocols over which the gateway reaches its own model ``texts``, which returns a BYTES
tensor. A message for ``fwd.HOP`` or ``tr.HOP`` passes the codecs of both sides. ``tr`` renames an
input, so that no message is passed through."""


@dataclass(frozen=True)
class Timed(Infergate):
    """A gateway that reports what its callbacks cost. ``raw`` is the address of the raw socket
    of ``identity``, and ``kserve`` that of the listener for KServe's V1 protocol."""

    raw: str
    costs: str
    kserve: str

    def costliest(self) -> Cost:
        """Return the most expensive callback since the last call."""
        with Client(self.costs) as client:
            document = json.loads(client.read_to_end())
        return Cost(document["seconds"] * UNIT / max(document["unit"], UNIT), document["what"])


class Cost(NamedTuple):
    """CPU seconds of the callback ``what``, scaled to a machine that calibrates in ``UNIT``."""

    seconds: float
    what: str


@contextmanager
def started_timed() -> Iterator[Timed]:
    def prepare(folder: Path) -> Launch:
        ports = free_ports(6)
        file = folder / "routes.yaml"
        routes = "".join(
            f"  - {{model: fwd.{hop}, backend: over-{hop}, rewrite: {{model: texts}}}}\n"
            f"  - {{model: tr.{hop}, backend: over-{hop}, "
            f"rewrite: {{model: texts, inputs: {{no: none}}}}}}\n"
            for hop in HOPS
        )
        file.write_text(CONFIG.format(*ports, routes=routes, engine=ENGINE))
        control = str(ports[4])
        argv = [sys.executable, "-m", "faults.timed", control, "--config", str(file)]
        return Launch(
            "infergate",
            argv,
            {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            ports,
            ready="/healthz",
        )

    with started(prepare) as running:
        admin, rpc, http, raw, costs, kserve = running.addresses
        yield Timed(http, rpc, admin, running.pid, running.log, raw, costs, kserve)


def check_callback_time(
    gateway: Timed, send: Callable[[], object], max_seconds: float = MAX_SECONDS
) -> None:
    """Check that no callback of the event loop takes longer than the limit while ``send`` runs."""
    costs: list[Cost] = []
    for _ in range(TRIES):
        gateway.costliest()
        send()
        costs.append(gateway.costliest())
        if costs[-1].seconds <= max_seconds:
            return
    shortest = min(costs)
    taken, limit = 1000 * shortest.seconds, 1000 * max_seconds
    raise AssertionError(f"{shortest.what} took {taken:.0f} ms of CPU; the limit is {limit:.0f} ms")


def check_other_clients(gateway: Timed, worst: Worst, attackers: int) -> None:
    """Check that a good client's p99 stays below ``MAX_WAIT`` while ``attackers`` send ``worst``
    repeatedly."""
    percentiles: list[float] = []
    for _ in range(TRIES):
        with ThreadPoolExecutor(attackers) as threads:
            attacks = [
                threads.submit(lambda: [worst.send(gateway) for _ in range(ATTACKS)])
                for _ in range(attackers)
            ]
            times = [good(gateway)]
            while not all(each.done() for each in attacks):
                times.append(good(gateway))
        for each in attacks:
            each.result()
        percentiles.append(sorted(times)[int(0.99 * len(times))])
        if percentiles[-1] < MAX_WAIT:
            return
    raise AssertionError(f"a good client waited for {min(percentiles):.1f} s")


# ---- rows ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worst:
    """An expensive message. ``send`` sends the message once on a new connection and waits for the
    response."""

    send: Callable[[Timed], object]
    size: int
    """The inflated size of the message."""


def posted(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Worst:
    """Return a message over HTTP."""
    encoded = (headers or {}).get("Content-Encoding")
    size = len(zlib.decompress(body, 47)) if encoded else len(body)
    return Worst(lambda gateway: post(gateway.http, path, body, headers), size)


def predicted(model: str, body: bytes, headers: Mapping[str, str] | None = None) -> Worst:
    """Return a message over KServe's V1 protocol."""
    path = f"/v1/models/{model}:predict"
    return Worst(lambda gateway: post(gateway.kserve, path, body, headers), len(body))


def zipped(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Worst:
    encoded = {"Content-Encoding": "gzip", **(headers or {})}
    return posted(path, gzip.compress(body, 9), encoded)


def called(message: bytes, method: str = INFER, *, gzip: bool = False) -> Worst:
    """Return a message over gRPC."""
    compression = grpc.Compression.Gzip if gzip else None

    def send(gateway: Timed) -> Status:
        with channel(gateway.grpc) as rpc_channel:
            return call(rpc_channel, message, method, compression=compression)

    return Worst(send, len(message))


def framed(message: bytes) -> Worst:
    """Return a message on a raw socket."""

    def send(gateway: Timed) -> None:
        with Client(gateway.raw) as client:
            client.send(struct.pack("<I", len(message)) + message)
            (length,) = struct.unpack("<I", client.exactly(4))
            client.exactly(length)

    return Worst(send, len(message))


def good(gateway: Timed) -> float:
    """Return the seconds that a small request takes on a new connection."""
    began = time.monotonic()
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    ).encode()
    assert post(gateway.http, "/v2/models/identity/infer", body).status == 200
    return time.monotonic() - began

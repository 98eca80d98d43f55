"""A gateway with traffic for the console: backends and clients of many protocols, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from e2e.running import Infergate, started_infergate
from e2e.several import until
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import TransportKind
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.matrix.client_kinds import CLIENT_KINDS, ClientKind
from infergate.matrix.gateways import WITHOUT_METADATA, model_path
from infergate.transport.base import Endpoint
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream

DEMO = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"
LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}"}}
  admin: {{address: "127.0.0.1:{0}", actions: true}}
"""
CONFIG = """
log: {{access: false}}
workers: {workers}
reload: {{watch: false}}
backends:
  triton-fleet:
    protocol: v2-grpc
    endpoints: ["grpc://{first.grpc}", "grpc://{second.grpc}", "grpc://127.0.0.1:9"]
    health: {{interval: 1s}}
  triton-canary: {{protocol: v2-rest, endpoints: ["http://{second.http}"]}}
  legacy-trt: {{protocol: trtis-grpc, endpoints: ["grpc://{first.grpc}"]}}
  legacy-http: {{protocol: trtis-http, endpoints: ["http://{second.http}"]}}
  edge-device: {{protocol: graphpipe, endpoints: ["http://{first.http}/graphpipe/identity"]}}
  retired: {{protocol: v2-rest, endpoints: ["http://127.0.0.1:9"]}}
  embedded: {{protocol: builtin}}
routes:
  - model: bert-base
    backend: triton-fleet
    rewrite: {{model: identity}}
    split: [{{backend: triton-canary, percent: 10}}]
  - {{model: resnet50, backend: triton-canary, rewrite: {{model: identity}}}}
  - {{model: speech-2019, backend: legacy-trt, rewrite: {{model: identity}}}}
  - {{model: ranker-v1, backend: legacy-http, rewrite: {{model: identity}}, fallback: embedded}}
  - {{model: camera-7, backend: edge-device}}
  - {{model: old-model, backend: retired}}
  - {{model: "*", backend: embedded}}
"""
MODELS = ("bert-base", "resnet50", "speech-2019", "ranker-v1", "camera-7", "identity")
_PAUSE_SECONDS = 0.01
"""The pause after each request, which keeps the load on the machine low."""


@dataclass
class Harness:
    """A running gateway and its configuration ``file``."""

    gateway: Infergate
    file: Path

    @property
    def url(self) -> str:
        return f"http://{self.gateway.admin}/console/"

    def serving(self) -> int:
        """Return the number of serving workers."""
        with urllib.request.urlopen(f"{self.url}state") as response:
            return int(json.load(response)["workers"]["serving"])


@contextmanager
def started_harness(workers: int = 1) -> Iterator[Harness]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(started_infergate(DEMO)) for _ in range(2))
        config = CONFIG.format(first=first, second=second, workers=workers)
        gateway = stack.enter_context(started_infergate(config, LISTENERS))
        harness = Harness(gateway, gateway.log.parent / "routes.yaml")
        until(lambda: harness.serving() == workers, "all workers serve")
        yield harness


@contextmanager
def traffic(harness: Harness) -> Iterator[None]:
    """Send requests with clients of many protocols until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_send_requests(harness, stop)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _make_client(kind: ClientKind, endpoint: Endpoint) -> RemoteBackend[Any, Any]:
    plugin = plugins()[kind.protocol]
    is_http = plugin.transport_kind is TransportKind.HTTP
    upstream: Any = (HttpOrFrameUpstream if is_http else GrpcioUpstream)(DEFAULT_LIMITS)
    messages: Any = HTTP_MESSAGES if is_http else RPC_MESSAGES
    settings = BackendSettings(kind.name, (endpoint,), profile=kind.profile)
    codec = kind.codec or plugin.create({})
    return RemoteBackend(settings, codec, upstream, messages, DEFAULT_LIMITS)


async def _send_requests(harness: Harness, stop: threading.Event) -> None:
    kinds = [
        each
        for each in CLIENT_KINDS
        if not each.is_framed and each.protocol not in WITHOUT_METADATA
    ]
    clients = {}
    tensor = tensor_from_array("INPUT0", Datatype.FP32, np.linspace(0, 1, 64, dtype="f4"))
    rng = np.random.default_rng(7)
    while not stop.is_set():
        kind = kinds[int(rng.integers(len(kinds)))]
        model = MODELS[min(int(rng.exponential(1.4)), len(MODELS) - 1)]
        if rng.random() < 0.02:
            model = "old-model"
        address = getattr(harness.gateway, plugins()[kind.protocol].transport_kind.value)
        host, _, port = address.rpartition(":")
        endpoint = Endpoint(host, int(port), path=model_path(kind.protocol, model))
        key = (kind.name, endpoint)
        if key not in clients:
            clients[key] = _make_client(kind, endpoint)
        request = InferRequest(model, inputs=(replace(tensor, name="INPUT0"),))
        with contextlib.suppress(GatewayError):
            await clients[key].perform(request, RequestContext("traffic"))
        await asyncio.sleep(_PAUSE_SECONDS)
    for each in clients.values():
        await each.close()

"""The gateways of the matrix, in this process.

One gateway serves the recording models over every protocol. The gateways in front of it use it as a
backend, over every protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from infergate.backends.remote import RemoteBackend
from infergate.codecs.registry import plugins
from infergate.config.schema import Config
from infergate.matrix import cases
from infergate.matrix.client_kinds import RAW_SOCKETS, ClientKind
from infergate.matrix.recording_backend import RecordingBackend
from infergate.runtime.assemble import assemble
from infergate.transport.base import Address, Endpoint

BUILTIN: Final = "builtin"
BACKENDS: Final = (BUILTIN, "v2-rest", "v2-grpc", "graphpipe", "trtis-http", "trtis-grpc")
"""Backend protocols of the gateways in front."""
_PATH_PREFIXES: Final = {"graphpipe": "/graphpipe/"}
"""Path prefixes of protocols in which an endpoint's URL identifies a model."""
_PROFILES: Final = {"v2-rest": "triton", "v2-grpc": "triton", "graphpipe": "graphpipe-go"}
_FREE_PORT: Final = {"address": "127.0.0.1:0"}


class MatrixGateways:
    """The running gateways and their clients. ``recorder`` records the requests that reach the
    models."""

    def __init__(self, recorder: RecordingBackend) -> None:
        self.recorder: Final = recorder
        self._listeners: Final[dict[str, Address]] = {}
        self._clients: Final[dict[tuple[ClientKind, Endpoint], RemoteBackend[Any, Any]]] = {}
        self._stack: Final = AsyncExitStack()

    async def start(self, config: dict[str, Any], suffix: str = "") -> dict[str, Address]:
        """Start a gateway and return the addresses of its listeners. Clients find them under their
        names and ``suffix``, and those of raw sockets under the name of the model."""
        settings = Config.model_validate({"log": {"access": False}, "helpers": 0, **config})
        running = assemble(settings, lambda _name, _timeout: self.recorder)
        await running.start()
        self._stack.push_async_callback(running.stop, 0)
        addresses = {name: server.address for name, server in running.listeners.items()}
        self._listeners.update({f"{name}{suffix}": at for name, at in addresses.items()})
        for index, listener in enumerate(settings.listeners.graphpipe):
            self._listeners[f"{RAW_SOCKETS} {listener.model}"] = addresses[f"graphpipe[{index}]"]
        return addresses

    def client(self, kind: ClientKind, model: str, version: str) -> RemoteBackend[Any, Any]:
        """Return a client for ``model`` (the name that clients use) and ``version``."""
        framed = kind.listener == RAW_SOCKETS
        address = self._listeners[f"{RAW_SOCKETS} {model}" if framed else kind.listener]
        path = "" if framed else kind.path(model, version)
        endpoint = Endpoint(address.host, address.port, path=path, framed=framed)
        if (kind, endpoint) not in self._clients:
            self._clients[kind, endpoint] = kind.create_client(endpoint)
        return self._clients[kind, endpoint]

    async def stop(self) -> None:
        """Close all clients, then all gateways."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))
        await self._stack.aclose()


def client_model_name(backend: str, model: str) -> str:
    """Return the name that clients use for ``model`` on ``backend``."""
    return f"{backend}.{model}"


@asynccontextmanager
async def run_gateways() -> AsyncGenerator[MatrixGateways, None]:
    """Run the gateways until the context exits."""
    recorder = RecordingBackend(cases.create_models())
    gateways = MatrixGateways(recorder)
    models = [*recorder.models, cases.UNKNOWN_MODEL]
    try:
        inner = await gateways.start(_INNER_CONFIG, " behind")
        await gateways.start(_outer_config(inner, models))
        await gateways.start(_outer_config(inner, models, typed=True), " typed")
        yield gateways
    finally:
        await gateways.stop()


_INNER_CONFIG: Final = {
    "listeners": {"http": _FREE_PORT, "grpc": _FREE_PORT, "admin": None},
    "backends": {BUILTIN: {"protocol": BUILTIN}},
    "routes": ({"model": "*", "backend": BUILTIN},),
}


def _outer_config(
    inner: Mapping[str, Address], models: Sequence[str], *, typed: bool = False
) -> dict[str, Any]:
    """Return a configuration with ``inner`` as backends. With ``typed``, V2 gRPC clients get typed
    contents."""
    backends: dict[str, Any] = {}
    routes, raw_sockets = [], []
    for protocol in BACKENDS:
        for model in models:
            name = client_model_name(protocol, model)
            backend = name if protocol in _PATH_PREFIXES else protocol
            backends[backend] = _backend_config(protocol, model, inner)
            timeout = cases.HANGING_TIMEOUT if model == cases.HANGING_MODEL else None
            rewrite = {"model": model}
            routes.append(
                {"model": name, "backend": backend, "rewrite": rewrite, "timeout": timeout}
            )
            raw_sockets.append({**_FREE_PORT, "model": name, "framing": "size-prefixed"})
    listeners = {
        "http": None if typed else _FREE_PORT,
        "grpc": {**_FREE_PORT, "v2": {"contents": "typed" if typed else "raw"}},
        "admin": None,
        "graphpipe": () if typed else tuple(raw_sockets),
    }
    return {"listeners": listeners, "backends": backends, "routes": tuple(routes)}


def _backend_config(protocol: str, model: str, inner: Mapping[str, Address]) -> dict[str, Any]:
    if protocol == BUILTIN:
        return {"protocol": BUILTIN}
    scheme = plugins()[protocol].transport_kind.value
    path = f"{_PATH_PREFIXES[protocol]}{model}" if protocol in _PATH_PREFIXES else ""
    endpoints = (f"{scheme}://{inner[scheme]}{path}",)
    profile = {"profile": _PROFILES[protocol]} if protocol in _PROFILES else {}
    return {"protocol": protocol, "endpoints": endpoints, **profile}

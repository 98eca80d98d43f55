"""The gateways of the matrix, which run in this process. One gateway serves the recording models
over every protocol, and the gateways in front of it use it as a backend over every protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from infergate.backends.remote import RemoteBackend
from infergate.codecs.registry import plugins
from infergate.config.schema import Config
from infergate.core.messages import ModelMetadata
from infergate.matrix import cases
from infergate.matrix.client_kinds import RAW_SOCKETS, WITHOUT_METADATA, ClientKind
from infergate.matrix.recording_backend import RecordingBackend
from infergate.runtime.assemble import assemble
from infergate.transport.base import Address, Endpoint

BUILTIN: Final = "builtin"
BACKENDS: Final = (
    BUILTIN,
    "v2-rest",
    "v2-grpc",
    "graphpipe",
    "trtis-http",
    "trtis-grpc",
    "tfs-grpc",
    "tfs-rest",
    *WITHOUT_METADATA,
)
_PATH_PREFIXES: Final = {"graphpipe": "/graphpipe/"}
"""The path prefixes of the protocols in which an endpoint's URL identifies a model."""
_PROFILES: Final = {"v2-rest": "triton", "v2-grpc": "triton", "graphpipe": "graphpipe-go"}
_FREE_PORT: Final = {"address": "127.0.0.1:0"}


class MatrixGateways:
    """The running gateways and their clients. ``recorder`` serves the models."""

    def __init__(self) -> None:
        self.recorder: Final = RecordingBackend(cases.create_models())
        self._listeners: dict[str, Address] = {}
        self._clients: Final[dict[tuple[ClientKind, Endpoint], RemoteBackend[Any, Any]]] = {}
        self._stack: Final = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def run(cls) -> AsyncGenerator[MatrixGateways, None]:
        """Run the gateways until the context exits."""
        gateways = cls()
        models = dict(gateways.recorder.models)
        models[cases.UNKNOWN_MODEL] = models["FP32"]
        try:
            inner = await gateways._start(_INNER_CONFIG, " behind")
            await gateways._start(_outer_config(inner, models))
            await gateways._start(_outer_config(inner, models, typed=True), " typed")
            yield gateways
        finally:
            await asyncio.gather(*(client.close() for client in gateways._clients.values()))
            await gateways._stack.aclose()

    async def _start(self, config: dict[str, Any], suffix: str = "") -> dict[str, Address]:
        """Start a gateway and return the addresses of its listeners. Its listeners are registered
        under their names and ``suffix``; raw sockets are registered under the model's name."""
        settings = Config.model_validate({"log": {"access": False}, "helpers": 0, **config})
        running = assemble(settings, lambda _name, _timeout: self.recorder)
        await running.start()
        self._stack.push_async_callback(running.stop, 0)
        addresses = {name: server.address for name, server in running.listeners.items()}
        self._listeners |= {f"{name}{suffix}": address for name, address in addresses.items()}
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


def client_model_name(backend: str, model: str) -> str:
    """Return the name that clients use for ``model`` on ``backend``."""
    return f"{backend}.{model}"


_ADDITIONAL: Final = {name: {**_FREE_PORT, "protocols": (name,)} for name in WITHOUT_METADATA}
"""Listeners for protocols that share their paths with another protocol of the shared listener."""
_INNER_CONFIG: Final = {
    "listeners": {
        "http": _FREE_PORT,
        "grpc": _FREE_PORT,
        "admin": None,
        "additional": _ADDITIONAL,
    },
    "backends": {BUILTIN: {"protocol": BUILTIN}},
    "routes": ({"model": "*", "backend": BUILTIN},),
}


def _outer_config(
    inner: Mapping[str, Address], models: Mapping[str, ModelMetadata], *, typed: bool = False
) -> dict[str, Any]:
    """Return the configuration of a gateway in front of the recording models. With ``typed``, V2
    gRPC clients get typed contents."""
    backends: dict[str, Any] = {}
    declared: dict[str, Any] = {}
    routes, raw_sockets = [], []
    for protocol in BACKENDS:
        for model in models:
            name = client_model_name(protocol, model)
            if protocol in WITHOUT_METADATA:
                declared[name] = _declared(models[model])
            backend = name if protocol in _PATH_PREFIXES else protocol
            backends[backend] = _backend_config(protocol, model, inner)
            timeout = cases.HANGING_TIMEOUT if model == cases.HANGING_MODEL else None
            route = {"model": name, "backend": backend, "timeout": timeout}
            routes.append({**route, "rewrite": {"model": model}})
            raw_sockets.append({**_FREE_PORT, "model": name, "framing": "size-prefixed"})
    listeners = {
        "http": None if typed else _FREE_PORT,
        "grpc": {**_FREE_PORT, "v2": {"contents": "typed" if typed else "raw"}},
        "admin": None,
        "graphpipe": () if typed else tuple(raw_sockets),
        "additional": {} if typed else _ADDITIONAL,
    }
    return {
        "listeners": listeners,
        "backends": backends,
        "routes": tuple(routes),
        "models": declared,
    }


def _declared(model: ModelMetadata) -> dict[str, Any]:
    """Return the entry of ``models`` that declares ``model``."""
    return {
        key: tuple(
            {"name": each.name, "datatype": each.datatype, "shape": each.shape} for each in tensors
        )
        for key, tensors in (("inputs", model.inputs), ("outputs", model.outputs))
    }


def _backend_config(protocol: str, model: str, inner: Mapping[str, Address]) -> dict[str, Any]:
    if protocol == BUILTIN:
        return {"protocol": BUILTIN}
    scheme = plugins()[protocol].transport_kind.value
    listener = f"additional.{protocol}" if protocol in WITHOUT_METADATA else scheme
    path = f"{_PATH_PREFIXES[protocol]}{model}" if protocol in _PATH_PREFIXES else ""
    endpoints = (f"{scheme}://{inner[listener]}{path}",)
    profile = {"profile": _PROFILES[protocol]} if protocol in _PROFILES else {}
    return {"protocol": protocol, "endpoints": endpoints, **profile}

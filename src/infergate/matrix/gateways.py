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
from infergate.runtime.running import RunningGateway
from infergate.transport.base import Address, Endpoint

BUILTIN: Final = "builtin"
BACKENDS: Final = (BUILTIN, "v2-rest", "v2-grpc", "graphpipe", "trtis-http", "trtis-grpc")
"""Backend protocols of the gateways in front."""
_PATH_PREFIXES: Final = {"graphpipe": "/graphpipe/"}
"""Path prefixes of protocols in which an endpoint's URL identifies a model."""
_PROFILES: Final = {"v2-rest": "triton", "v2-grpc": "triton", "graphpipe": "graphpipe-go"}
_FREE_PORT: Final = {"address": "127.0.0.1:0"}
_NO_LOG: Final = {"log": {"access": False}, "helpers": 0}


class MatrixGateways:
    """The running gateways and their clients. ``witness`` records the requests that reach the
    models."""

    def __init__(self, witness: RecordingBackend) -> None:
        self.witness: Final = witness
        self._listeners: Final[dict[str, Address]] = {}
        self._clients: Final[dict[tuple[ClientKind, Endpoint], RemoteBackend[Any, Any]]] = {}

    def add_listeners(self, suffix: str, running: RunningGateway) -> None:
        """Add the listeners of ``running``; ``name`` is a suffix that distinguishes gateways."""
        for listener, server in running.listeners.items():
            self._listeners[f"{listener}{suffix}"] = server.address
        for index, config in enumerate(running.config.listeners.graphpipe):
            address = running.listeners[f"graphpipe[{index}]"].address
            self._listeners[f"{RAW_SOCKETS} {config.model}"] = address

    def client(self, kind: ClientKind, model: str, version: str) -> RemoteBackend[Any, Any]:
        """Return a client for ``model`` (the name that clients use) and ``version``."""
        endpoint = self._endpoint(kind, model, version)
        if (kind, endpoint) not in self._clients:
            self._clients[kind, endpoint] = kind.create_client(endpoint)
        return self._clients[kind, endpoint]

    def _endpoint(self, kind: ClientKind, model: str, version: str) -> Endpoint:
        if kind.listener == RAW_SOCKETS:
            address = self._listeners[f"{RAW_SOCKETS} {model}"]
            return Endpoint(address.host, address.port, framed=True)
        address = self._listeners[kind.listener]
        return Endpoint(address.host, address.port, path=kind.path(model, version))

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))


def client_model_name(backend: str, model: str) -> str:
    """Return the name that clients use for ``model`` on ``backend``."""
    return f"{backend}.{model}"


@asynccontextmanager
async def run_gateways() -> AsyncGenerator[MatrixGateways, None]:
    """Run the gateways until the context exits."""
    witness = RecordingBackend(cases.create_models())
    names = [*witness.models, cases.UNKNOWN_MODEL]
    async with AsyncExitStack() as stack:
        behind = await _start(_inner_config(), witness, stack)
        made = MatrixGateways(witness)
        stack.push_async_callback(made.close)
        ports = {name: server.address for name, server in behind.listeners.items()}
        made.add_listeners("", await _start(_outer_config(ports, names), witness, stack))
        made.add_listeners(
            " typed", await _start(_outer_config(ports, names, typed=True), witness, stack)
        )
        yield made


async def _start(
    config: dict[str, Any], witness: RecordingBackend, stack: AsyncExitStack
) -> RunningGateway:
    running = assemble(
        Config.model_validate({**_NO_LOG, **config}), lambda _name, _timeout: witness
    )
    await running.start()
    stack.push_async_callback(running.stop, 0)
    return running


def _inner_config() -> dict[str, Any]:
    return {
        "listeners": {"http": _FREE_PORT, "grpc": _FREE_PORT, "admin": None},
        "backends": {BUILTIN: {"protocol": BUILTIN}},
        "routes": ({"model": "*", "backend": BUILTIN},),
    }


def _outer_config(
    ports: Mapping[str, Address], models: Sequence[str], *, typed: bool = False
) -> dict[str, Any]:
    """Return a configuration. With ``typed``, V2 gRPC clients get typed contents."""
    backends: dict[str, Any] = {}
    routes: list[dict[str, Any]] = []
    frames = []
    for backend in BACKENDS:
        for name in models:
            key = backend if backend not in _PATH_PREFIXES else client_model_name(backend, name)
            backends[key] = _backend_config(backend, name, ports)
            route = {
                "model": client_model_name(backend, name),
                "backend": key,
                "rewrite": {"model": name},
            }
            routes.append(
                route | ({"timeout": cases.HANGING_TIMEOUT} if name == cases.HANGING_MODEL else {})
            )
            frames.append(
                {
                    **_FREE_PORT,
                    "model": client_model_name(backend, name),
                    "framing": "size-prefixed",
                }
            )
    contents = "typed" if typed else "raw"
    return {
        "listeners": {
            "http": None if typed else _FREE_PORT,
            "grpc": {**_FREE_PORT, "v2": {"contents": contents}},
            "admin": None,
            "graphpipe": () if typed else tuple(frames),
        },
        "backends": backends,
        "routes": tuple(routes),
    }


def _backend_config(protocol: str, model: str, ports: Mapping[str, Address]) -> dict[str, Any]:
    if protocol == BUILTIN:
        return {"protocol": BUILTIN}
    scheme = plugins()[protocol].transport_kind.value
    path = f"{_PATH_PREFIXES[protocol]}{model}" if protocol in _PATH_PREFIXES else ""
    backend = {"protocol": protocol, "endpoints": (f"{scheme}://{ports[scheme]}{path}",)}
    return backend | ({"profile": _PROFILES[protocol]} if protocol in _PROFILES else {})

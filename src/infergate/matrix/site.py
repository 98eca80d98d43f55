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
from infergate.matrix.clients import FRAMES, Speaker
from infergate.matrix.witness import Witness
from infergate.runtime.assemble import assemble
from infergate.runtime.running import RunningGateway
from infergate.transport.base import Address, Endpoint

BUILTIN: Final = "builtin"
BACKENDS: Final = (BUILTIN, "v2-rest", "v2-grpc", "graphpipe", "trtis-http", "trtis-grpc")
"""Backend protocols of the gateways in front."""
_PATHS: Final = {"graphpipe": "/graphpipe/"}
"""Path prefixes of protocols in which an endpoint's URL identifies a model."""
_PROFILES: Final = {"v2-rest": "triton", "v2-grpc": "triton", "graphpipe": "graphpipe-go"}
_FREE: Final = {"address": "127.0.0.1:0"}
_QUIET: Final = {"log": {"access": False}, "helpers": 0}


class Site:
    """The running gateways and their clients. ``witness`` records the requests that reach the
    models."""

    def __init__(self, witness: Witness) -> None:
        self.witness: Final = witness
        self._listeners: Final[dict[str, Address]] = {}
        self._clients: Final[dict[tuple[Speaker, Endpoint], RemoteBackend[Any, Any]]] = {}

    def hear(self, name: str, running: RunningGateway) -> None:
        """Add the listeners of ``running``; ``name`` is a suffix that distinguishes gateways."""
        for listener, server in running.listeners.items():
            self._listeners[f"{listener}{name}"] = server.address
        for index, config in enumerate(running.config.listeners.graphpipe):
            address = running.listeners[f"graphpipe[{index}]"].address
            self._listeners[f"{FRAMES} {config.model}"] = address

    def client(self, speaker: Speaker, model: str, version: str) -> RemoteBackend[Any, Any]:
        """Return a client for ``model`` (the name that clients use) and ``version``."""
        endpoint = self._endpoint(speaker, model, version)
        if (speaker, endpoint) not in self._clients:
            self._clients[speaker, endpoint] = speaker.client(endpoint)
        return self._clients[speaker, endpoint]

    def _endpoint(self, speaker: Speaker, model: str, version: str) -> Endpoint:
        if speaker.listener == FRAMES:
            address = self._listeners[f"{FRAMES} {model}"]
            return Endpoint(address.host, address.port, framed=True)
        address = self._listeners[speaker.listener]
        return Endpoint(address.host, address.port, path=speaker.path(model, version))

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))


def routed(backend: str, model: str) -> str:
    """Return the name that clients use for ``model`` on ``backend``."""
    return f"{backend}.{model}"


@asynccontextmanager
async def site() -> AsyncGenerator[Site, None]:
    """Run the gateways until the context exits."""
    witness = Witness(cases.models())
    names = [*witness.models, cases.UNKNOWN]
    async with AsyncExitStack() as stack:
        behind = await _running(_behind(), witness, stack)
        made = Site(witness)
        stack.push_async_callback(made.close)
        ports = {name: server.address for name, server in behind.listeners.items()}
        made.hear("", await _running(_in_front(ports, names), witness, stack))
        made.hear(" typed", await _running(_in_front(ports, names, typed=True), witness, stack))
        yield made


async def _running(
    config: dict[str, Any], witness: Witness, stack: AsyncExitStack
) -> RunningGateway:
    running = assemble(Config.model_validate({**_QUIET, **config}), lambda _name, _timeout: witness)
    await running.start()
    stack.push_async_callback(running.stop, 0)
    return running


def _behind() -> dict[str, Any]:
    return {
        "listeners": {"http": _FREE, "grpc": _FREE, "admin": None},
        "backends": {BUILTIN: {"protocol": BUILTIN}},
        "routes": ({"model": "*", "backend": BUILTIN},),
    }


def _in_front(
    ports: Mapping[str, Address], names: Sequence[str], *, typed: bool = False
) -> dict[str, Any]:
    """Return a configuration. With ``typed``, V2 gRPC clients get typed contents."""
    backends: dict[str, Any] = {}
    routes: list[dict[str, Any]] = []
    frames = []
    for backend in BACKENDS:
        for name in names:
            key = backend if backend not in _PATHS else routed(backend, name)
            backends[key] = _backend(backend, name, ports)
            route = {"model": routed(backend, name), "backend": key, "rewrite": {"model": name}}
            routes.append(route | ({"timeout": cases.PATIENCE} if name == cases.HANGING else {}))
            frames.append({**_FREE, "model": routed(backend, name), "framing": "size-prefixed"})
    contents = "typed" if typed else "raw"
    return {
        "listeners": {
            "http": None if typed else _FREE,
            "grpc": {**_FREE, "v2": {"contents": contents}},
            "admin": None,
            "graphpipe": () if typed else tuple(frames),
        },
        "backends": backends,
        "routes": tuple(routes),
    }


def _backend(protocol: str, model: str, ports: Mapping[str, Address]) -> dict[str, Any]:
    if protocol == BUILTIN:
        return {"protocol": BUILTIN}
    scheme = plugins()[protocol].transport_kind.value
    path = f"{_PATHS[protocol]}{model}" if protocol in _PATHS else ""
    backend = {"protocol": protocol, "endpoints": (f"{scheme}://{ports[scheme]}{path}",)}
    return backend | ({"profile": _PROFILES[protocol]} if protocol in _PROFILES else {})

"""The demo of the console: it moves the embedded models to servers on this machine, sends traffic
in every protocol, and breaks a server on request.

*Rule.* The demo requires the default backends and routes, no ``access`` section, and only listeners
that no other machine can reach. The demo's servers listen on free ports of 127.0.0.1. The traffic
ends after ``TRAFFIC_SECONDS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np

from infergate.assembly.backends import make_remote_backend
from infergate.backends.builtin.digits import MAX_PIXEL
from infergate.backends.remote import RemoteBackend
from infergate.codecs.base import TransportKind
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config import redacted
from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, bad_request
from infergate.core.hosts import is_ip_address
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.log_events import BUG
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.runtime.config_history import ConfigHistory, ReloadResult
from infergate.runtime.console.sources import ConsoleSource
from infergate.runtime.running import ConfigRejectedError, RunningGateway
from infergate.transport.base import Address

Json = dict[str, Any]
DEMO: Final = "demo"
TRAFFIC_SECONDS: Final = 900.0
_SERVERS: Final = ("one", "two")
_BROKEN: Final = "two"
"""The server that the action ``break`` stops."""
_INTERVAL_SECONDS: Final = 0.04
_TIMEOUT_SECONDS: Final = 2.0
_UNKNOWN_SHARE: Final = 0.02
"""The fraction of requests for a model that does not exist."""
_ROUTES: Final = ("digits", "digits-legacy", "digits-pipe", "digits-tf", "digits-embedded")
_TRIGGER: Final = "demo"
_log = logging.getLogger("infergate")


def is_demo(config: Config) -> bool:
    """Return whether ``config`` has the default backends and routes, no ``access`` section, and
    only listeners that no other machine can reach."""
    default = Config.default()
    return (
        (config.backends, config.routes) == (default.backends, default.routes)
        and config.access is None
        and all(_is_local(address) for address in compiled.addresses(config).values())
    )


def _is_local(address: Address) -> bool:
    return bool(address.unix) or (
        is_ip_address(address.host) and ipaddress.ip_address(address.host).is_loopback
    )


class ConsoleDemo:
    """The servers and the traffic of the demo. ``make`` assembles a gateway, which acts as a
    server."""

    def __init__(
        self,
        source: ConsoleSource,
        history: ConfigHistory,
        make: Callable[[Config], RunningGateway],
    ) -> None:
        self._source: Final = source
        self._history: Final = history
        self._make: Final = make
        self._original = source.config
        """The configuration before the demo, which is restored at the end of the demo."""
        self._active: Config | None = None
        """The configuration that uses the servers, or None if the demo is not running."""
        self._servers: Final[dict[str, RunningGateway]] = {}
        self._ports: Final[dict[str, tuple[int, int]]] = {}
        self._traffic: asyncio.Task[None] | None = None
        self._traffic_ends_at = 0.0
        self._lock: Final = asyncio.Lock()
        self._actions: Final[dict[str, Callable[[], Awaitable[None]]]] = {
            "start": self._start,
            "stop": self._stop,
            "break": self._break,
            "repair": self._repair,
        }

    def belongs_to(self, config: Config) -> bool:
        """Return whether the console has the buttons of the demo while ``config`` is active. The
        buttons disappear when another configuration is loaded."""
        return config == self._active or is_demo(config)

    def as_json(self) -> Json:
        """Return whether the demo and its traffic are running, and the names of the broken
        servers."""
        return {
            "running": bool(self._ports),
            "traffic": self._traffic is not None and not self._traffic.done(),
            "broken": [name for name in self._ports if name not in self._servers],
        }

    async def perform(self, request: Json) -> Json:
        """Perform the ``action`` of ``request``: ``start``, ``stop``, ``break`` or ``repair``.
        Raises GatewayError if the action is unknown or not possible."""
        action = self._actions.get(str(request.get("action")))
        if action is None:
            raise bad_request(f"action must be one of: {', '.join(self._actions)}")
        async with self._lock:
            if not self.belongs_to(self._source.config):
                raise bad_request(
                    "this action needs the configuration of the demo, which is not active"
                )
            await action()
        return self.as_json()

    async def close(self) -> None:
        """Stop the traffic and the servers."""
        async with self._lock:
            await self._stop_traffic()
            await self._stop_servers()

    # ---- actions

    async def _start(self) -> None:
        if self._source.config != self._active:
            self._original = self._source.config
            try:
                for name in _SERVERS:
                    if name not in self._servers:
                        await self._start_server(name)
                self._active = self._demo_config()
                await self._reload(self._active)
            except BaseException:
                self._active = None
                await self._stop_servers()
                raise
        await self._stop_traffic()
        self._traffic_ends_at = time.monotonic() + TRAFFIC_SECONDS
        self._traffic = asyncio.create_task(self._send_requests())
        self._traffic.add_done_callback(_log_failure)

    async def _stop(self) -> None:
        await self._stop_traffic()
        if self._source.config == self._active:
            await self._reload(self._original)
        self._active = None
        await self._stop_servers()

    async def _break(self) -> None:
        if not self._ports:
            raise bad_request("the demo is not running")
        server = self._servers.pop(_BROKEN, None)
        if server is not None:
            await server.stop(0)

    async def _repair(self) -> None:
        if self._ports and _BROKEN not in self._servers:
            await self._start_server(_BROKEN)

    async def _start_server(self, name: str) -> None:
        http, grpc = self._ports.get(name, (0, 0))
        config = Config.model_validate(
            {
                "backends": {"models": {"protocol": "builtin"}},
                "routes": ({"model": "*", "backend": "models"},),
                "listeners": {
                    "http": {"address": f"127.0.0.1:{http}"},
                    "grpc": {"address": f"127.0.0.1:{grpc}"},
                    "admin": None,
                },
                "log": {"access": False},
                "helpers": 0,
            }
        )
        server = self._make(config)
        try:
            await server.start()
        except OSError as error:  # for example, another process uses the port
            raise bad_request(f"the demo's server cannot start: {error}") from error
        self._servers[name] = server
        addresses = {key: each.address for key, each in server.listeners.items()}
        self._ports[name] = addresses["http"].port, addresses["grpc"].port

    async def _stop_servers(self) -> None:
        for server in self._servers.values():
            await server.stop(0)
        self._servers.clear()
        self._ports.clear()

    async def _reload(self, config: Config) -> None:
        before = self._source.config
        try:
            await self._source.reload(config)
        except ConfigRejectedError as error:
            self._history.record(ReloadResult(_TRIGGER, time.time(), str(error)))
            raise bad_request(str(error)) from error
        diff = await asyncio.to_thread(redacted.redacted_diff, before, config, ("before", "after"))
        self._history.record(ReloadResult(_TRIGGER, time.time()), "", diff)

    def _demo_config(self) -> Config:
        (http, grpc), (http_two, grpc_two) = (self._ports[name] for name in _SERVERS)
        url = "http://127.0.0.1"
        backends: Json = {
            "triton": _backend(
                "v2-grpc", f"grpc://127.0.0.1:{grpc}", f"grpc://127.0.0.1:{grpc_two}"
            ),
            "legacy-trt": _backend("trtis-grpc", f"grpc://127.0.0.1:{grpc}"),
            "graphpipe": _backend("graphpipe", f"{url}:{http}/graphpipe/digits"),
            "tf-serving": _backend("tfs-rest", f"{url}:{http_two}"),
            "demo": {"protocol": "builtin"},
        }
        names = dict(zip(_ROUTES, backends, strict=True))
        routes = [
            {"model": model, "backend": name}
            | ({} if model == "digits" or name == "graphpipe" else {"rewrite": {"model": "digits"}})
            for model, name in names.items()
        ]
        changed = Config.model_validate(
            {"backends": backends, "routes": (*routes, {"model": "*", "backend": "demo"})}
        )
        return self._original.model_copy(
            update={"backends": changed.backends, "routes": changed.routes}
        )

    # ---- traffic

    async def _stop_traffic(self) -> None:
        """Stop the traffic after the current request, which takes at most ``_TIMEOUT_SECONDS``.
        Cancelling the request could leave a connecting socket open."""
        task, self._traffic = self._traffic, None
        if task is not None:
            self._traffic_ends_at = 0.0
            await asyncio.gather(task, return_exceptions=True)

    async def _send_requests(self) -> None:
        """Send about 25 requests per second, with clients of every protocol."""
        clients = self._clients()
        numbers = random.Random(7)  # noqa: S311 - the choice of requests needs no secrecy
        try:
            while time.monotonic() < self._traffic_ends_at and self._source.config == self._active:
                model, client = numbers.choice(clients)
                if numbers.random() < _UNKNOWN_SHARE:
                    model = "no-such-model"
                image = bytes(numbers.choices(range(int(MAX_PIXEL) + 1), k=64))
                data = Tensor("IMAGE", Datatype.FP32, (1, 8, 8), _as_fp32(image))
                context = RequestContext(_TRIGGER, time.monotonic() + _TIMEOUT_SECONDS)
                with contextlib.suppress(GatewayError):
                    await client.perform(InferRequest(model, inputs=(data,)), context)
                await asyncio.sleep(_INTERVAL_SECONDS * 2 * numbers.random())
        finally:
            for _, client in clients:
                await client.close()

    def _clients(self) -> Sequence[tuple[str, RemoteBackend[Any, Any]]]:
        """Return pairs of a model and a client: one pair for each route and each protocol of each
        listener."""
        config = self._source.config
        addresses = self._source.addresses
        targets: list[tuple[str, str, str]] = []
        for listener, names in compiled.listener_protocols(config).items():
            for name in names:
                plugin, address = plugins()[name], addresses[listener]
                is_http = plugin.transport_kind is TransportKind.HTTP
                url = f"{'http' if is_http else 'grpc'}://{address}"
                for model in _ROUTES:
                    path = f"/{plugin.claims[0]}/{model}" if plugin.supports_framing else ""
                    targets.append((name, model, url + path))
        clients = Config.model_validate(
            {
                "backends": {
                    f"client-{number}": _backend(protocol, url)
                    for number, (protocol, _, url) in enumerate(targets)
                },
                "routes": ({"model": "*", "backend": "client-0"},),
            }
        )
        return [
            (model, make_remote_backend(f"client-{number}", clients, DEFAULT_LIMITS))
            for number, (_, model, _) in enumerate(targets)
        ]


def demo_of(
    running: RunningGateway,
    source: ConsoleSource,
    history: ConfigHistory,
    make: Callable[[Config], RunningGateway],
) -> ConsoleDemo | None:
    """Return the demo of ``running``, and create it if necessary. Return None if the active
    configuration does not allow the demo."""
    if running.demo is None and is_demo(source.config):
        running.demo = ConsoleDemo(source, history, make)
    demo = running.demo
    return demo if demo is not None and demo.belongs_to(source.config) else None


def _backend(protocol: str, *endpoints: str) -> Json:
    return {"protocol": protocol, "endpoints": endpoints, "timeout": "2s"}


def _as_fp32(image: bytes) -> bytes:
    return np.frombuffer(image, np.uint8).astype("<f4").tobytes()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("bug: the traffic of the demo has stopped", exc_info=error, extra=BUG)

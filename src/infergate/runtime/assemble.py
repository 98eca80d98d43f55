"""From a configuration to the running parts: backends, gateway, frontends, listeners."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from infergate.backends.base import Backend, Watched
from infergate.backends.builtin import BuiltinBackend
from infergate.backends.remote import HTTP_HEADERS, RPC_HEADERS, RemoteBackend
from infergate.backends.remote import Server as RemoteServer
from infergate.codecs.base import Carrier, Codec
from infergate.codecs.profiles import BY_NAME as PROFILES
from infergate.codecs.protos import SCHEMA
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.call import Call
from infergate.core.limits import Limits
from infergate.core.tally import Tally
from infergate.gateway.control import Allowed
from infergate.gateway.dispatch import HttpDispatch, RpcDispatch
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import Gateway
from infergate.gateway.services import own_services
from infergate.gateway.shared_memory import SharedMemory
from infergate.gateway.statistics import Figures
from infergate.observe.access_log import FORMATS, AccessLog
from infergate.observe.metrics import Metrics
from infergate.runtime import balancing
from infergate.runtime.admin import Admin
from infergate.runtime.aside import Pool
from infergate.runtime.engines import ServeHttp, engine
from infergate.runtime.upkeep import Upkeep
from infergate.transport.base import Bind, HttpStreamUpstream, Server
from infergate.transport.frame_client import EitherUpstream
from infergate.transport.frame_server import FrameServer
from infergate.transport.guard import Admission
from infergate.transport.turns import Turns

_COMBINE: Final = {"strict": all, "lenient": any}


@dataclass(frozen=True, slots=True)
class Running:
    """Everything that serves one configuration. ``listeners`` by the config's names."""

    config: Config
    gateway: Gateway
    listeners: Mapping[str, Server]
    log: AccessLog | None
    aside: Pool | None
    upkeep: Upkeep

    async def start(self, bind: Bind | None = None) -> None:
        """Bind every listener (by ``bind``, if given), then accept; or none: raises OSError naming
        the address that is taken."""
        try:
            for name, listener in self.listeners.items():
                await _bind(name, listener, bind)
            for listener in self.listeners.values():
                await listener.start()
            self.upkeep.start()
        except OSError:
            await asyncio.gather(*(each.stop(0) for each in self.listeners.values()))
            await self._close_backends()
            raise

    def drain(self) -> None:
        """Fail readiness, for every protocol; whoever watches it is told at once."""
        self.gateway.readiness.drain()

    async def stop(self, grace: float) -> None:
        """Stop accepting, let requests finish for ``grace`` seconds, close everything."""
        self.drain()
        data = [server for name, server in self.listeners.items() if name != "admin"]
        await asyncio.gather(*(server.stop(grace) for server in data))
        if "admin" in self.listeners:  # last: it tells how the drain goes
            await self.listeners["admin"].stop(0)
        await self._close_backends()
        if self.aside is not None:
            await self.aside.close()
        if self.log is not None:
            await asyncio.to_thread(self.log.close)

    async def _close_backends(self) -> None:
        await self.upkeep.stop()
        await asyncio.gather(*(backend.close() for backend in self.gateway.backends))


async def _bind(name: str, listener: Server, bind: Bind | None) -> None:
    try:
        await listener.bind(bind)
    except OSError as error:
        raise OSError(f"listeners.{name}: cannot listen on {listener.address}: {error}") from error


def _embedded(name: str, timeout: float) -> Backend:
    return BuiltinBackend(name, timeout=timeout)


def assemble(config: Config, builtin: Callable[[str, float], Backend] = _embedded) -> Running:
    """Build, but do not start, what ``config`` describes. Needs a running event loop. ``builtin``
    makes the backend that has no wire, of a name and a timeout in seconds."""
    limits = compiled.limits(config)
    shares = compiled.sharing_backends(config)
    metrics = Metrics()
    backends = {
        name: _backend(
            name, config, limits, builtin, metrics.traffic.of(name), shares=name in shares
        )
        for name in config.backends
    }
    gateway = Gateway(
        compiled.routing_table(config),
        backends,
        compiled.declared_models(config),
        _COMBINE[config.readiness],
        SharedMemory(limits, [backends[name] for name in shares], on=config.control.shared_memory),
        allowed=Allowed(config.control.repository, config.control.settings),
    )
    admission = Admission(limits)
    metrics.in_flight.set_function(lambda: admission.requests)
    metrics.streams.set_function(lambda: admission.streams)
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))
    metrics.in_flight_bytes.set_function(lambda: admission.bytes)
    watched = [each for each in gateway.backends if isinstance(each, Watched)]
    metrics.endpoints.source = lambda: chain.from_iterable(each.figures() for each in watched)
    log = None
    if config.log.access:
        log = AccessLog(FORMATS[config.log.format], metrics.log_dropped.inc)
    record = _recorder(metrics, gateway.figures, log)
    aside = Pool(config.helpers) if config.helpers else None
    addresses = compiled.addresses(config)
    serve_http, serve_grpc, *_ = engine(config.engine)
    listeners: dict[str, Server] = {}
    if "http" in addresses:
        http = HttpDispatch(_frontends(Carrier.HTTP, config, gateway, limits, aside), record)
        listeners["http"] = serve_http(addresses["http"], http, limits, admission)
    for name, bound in compiled.bound_listeners(config).items():
        app = HttpDispatch({"": _bound_frontend(bound, gateway, limits, aside)}, record)
        listeners[name] = _bound_listener(bound, app, limits, admission, serve_http)
    if "grpc" in addresses:
        frontends = _frontends(Carrier.GRPC, config, gateway, limits, aside)
        own = own_services(SCHEMA, tuple(frontends), gateway.readiness)
        rpc = RpcDispatch(frontends, own.unary, own.streams, record)
        listeners["grpc"] = serve_grpc(addresses["grpc"], rpc, limits, admission)
    if "admin" in addresses:
        # Not admitted with the rest: a full gateway must still tell that it is full.
        admin = Admin(metrics, gateway.readiness.ready)
        listeners["admin"] = serve_http(addresses["admin"], admin, limits, Admission(limits))
    return Running(config, gateway, listeners, log, aside, Upkeep(gateway.backends))


def _frontends(
    carrier: Carrier, config: Config, gateway: Gateway, limits: Limits, aside: Pool | None
) -> dict[str, Frontend[Any, Any]]:
    """The frontends of one carrier, by what they claim; first the one that answers the rest."""
    options = compiled.frontend_options(config)
    frontends: dict[str, Frontend[Any, Any]] = {}
    for plugin in sorted(plugins().values(), key=lambda plugin: not plugin.answers_rest):
        if plugin.carrier is carrier:
            codec = plugin.make(options.get(plugin.name, {}))
            frontend = Frontend(codec, gateway, limits, aside)
            frontends.update(dict.fromkeys(plugin.claims, frontend))
    return frontends


def _bound_frontend(
    bound: compiled.Bound, gateway: Gateway, limits: Limits, aside: Pool | None
) -> Frontend[Any, Any]:
    """The one frontend of a listener of one model."""
    return Frontend(plugins()[bound.protocol].make(bound.options), gateway, limits, aside)


def _bound_listener(
    bound: compiled.Bound, app: HttpDispatch, limits: Limits, admission: Admission, serve: ServeHttp
) -> Server:
    if bound.framed:
        return FrameServer(bound.address, app, limits, admission)
    return serve(
        bound.address, app, limits, admission, accept_both_lengths=bound.accept_both_lengths
    )


def _backend(  # noqa: PLR0913 - what backends stand on
    name: str,
    whole: Config,
    limits: Limits,
    builtin: Callable[[str, float], Backend],
    tally: Tally,
    *,
    shares: bool,
) -> Backend:
    config = whole.backends[name]
    plugin = plugins().get(config.protocol)
    if plugin is None:  # the one protocol without a wire
        return builtin(name, config.timeout)
    server = RemoteServer(
        name,
        balancing.sites(config),
        config.timeout,
        PROFILES.get(config.profile),
        config.forward_headers,
        config.return_headers,
        shares,
        balancing.balance(config),
        balancing.watching(config),
        balancing.key(config),
        max_requests=config.limits.max_requests,
        max_queue=config.limits.max_queue,
        retry_share=config.limits.retry_percent / 100,
        retry_least=config.limits.retry_least,
    )
    codec: Codec[Any, Any] = plugin.make({})
    match plugin.carrier:
        case Carrier.HTTP:
            ask_http = engine(whole.engine).ask_http
            upstream: HttpStreamUpstream = EitherUpstream(limits, ask_http)
            if config.connections:
                upstream = Turns(upstream, config.connections)
            return RemoteBackend(server, codec, upstream, HTTP_HEADERS, limits, tally=tally)
        case Carrier.GRPC:
            ask_grpc = engine(whole.engine).ask_grpc
            return RemoteBackend(server, codec, ask_grpc(limits), RPC_HEADERS, limits, tally=tally)


def _recorder(metrics: Metrics, figures: Figures, log: AccessLog | None) -> Callable[[Call], None]:
    def record(call: Call) -> None:
        seconds, now = time.monotonic() - call.started, time.time()
        metrics.record(call, seconds)
        figures.record(call, seconds, now)
        if log is not None:
            log.record(call, seconds, now)

    return record

"""From a configuration to the running parts: backends, gateway, frontends, listeners."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from infergate.backends.base import Backend, Bounded, Watched
from infergate.backends.builtin import BuiltinBackend
from infergate.backends.headers import HeaderRule
from infergate.backends.remote import HTTP_HEADERS, RPC_HEADERS, RemoteBackend
from infergate.backends.remote import Server as RemoteServer
from infergate.backends.traced import TracedUpstream
from infergate.codecs.base import Carrier, Codec
from infergate.codecs.profiles import BY_NAME as PROFILES
from infergate.codecs.protos import SCHEMA
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.aside import Aside
from infergate.core.call import Call
from infergate.core.figures import EndpointFigures, PlaceFigures
from infergate.core.limits import Limits
from infergate.core.tracing import TRACEPARENT, Tracing
from infergate.gateway.control import Allowed
from infergate.gateway.dispatch import HttpDispatch, Record, RpcDispatch, named
from infergate.gateway.frontend import Frontend, Gate, Ways
from infergate.gateway.gateway import Gateway
from infergate.gateway.guarded import GuardedGateway, guarded_services
from infergate.gateway.services import own_services
from infergate.gateway.shared_memory import SharedMemory
from infergate.gateway.statistics import Figures
from infergate.gateway.traced import TracedAside, TracedGateway, TracedGuardedGateway, TracedWays
from infergate.observe.access_log import FORMATS, AccessLog
from infergate.observe.exposition import Exposition
from infergate.observe.names import NOBODY, Names
from infergate.observe.sampled import SampledLog, Sampling
from infergate.runtime import balancing
from infergate.runtime.access import Entrance, entrance, guarded_admin
from infergate.runtime.admin import Admin, Below
from infergate.runtime.aside import Pool
from infergate.runtime.company import Company
from infergate.runtime.console.view import Alone, View
from infergate.runtime.descriptors import for_clients, in_use
from infergate.runtime.doors import Doors
from infergate.runtime.engines import engine
from infergate.runtime.history import History
from infergate.runtime.running import ADMIN, Listening, Parts, Running
from infergate.transport.base import Address, HttpStreamUpstream, Server
from infergate.transport.door import Door
from infergate.transport.frame_client import EitherUpstream
from infergate.transport.frame_server import FrameServer
from infergate.transport.guard import Admission
from infergate.transport.turns import Turns

_CONNECTIONS: Final = "connections"
_TOLD_LIMITS: Final = (_CONNECTIONS, "in_flight", "in_flight_bytes")
"""Limits that metrics tell, for others tell how much of them is used."""
_COMBINE: Final = {"strict": all, "lenient": any}
_HTTP: Final = {"the protocol": "http", "accept_both_lengths": False}
_FRAMES: Final = {"the protocol": "frames"}
_GRPC: Final = {"the protocol": "grpc"}
"""What a listener cannot change, see :class:`Listening`."""
_HTTP_1, _HTTP_2 = "http/1.1", "h2"
"""What listeners speak, as ALPN calls it."""


def _embedded(name: str, timeout: float) -> Backend:
    return BuiltinBackend(name, timeout=timeout)


def assemble(
    config: Config,
    builtin: Callable[[str, float], Backend] = _embedded,
    history: History | None = None,
    company: Company | None = None,
) -> Running:
    """Build, but do not start, what ``config`` describes. Needs a running event loop. ``builtin``
    makes the backend that has no wire, of a name and a timeout in seconds; ``history`` is what the
    admin listener tells of configurations; ``company`` is what it has together with other
    processes, None: there are none."""
    company, limits = company or Company(), compiled.limits(config)
    metrics, admission = company.metrics, Admission(limits)
    metrics.in_flight.set_function(lambda: admission.requests)
    metrics.streams.set_function(lambda: admission.streams)
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))
    metrics.in_flight_bytes.set_function(lambda: admission.bytes)
    metrics.descriptors.set_function(in_use)
    view = company.view or Alone(lambda: running, metrics, company.recent)
    shared = _Shared(company, admission, Doors(metrics), builtin, history or History(), view)
    shared.history.tell(metrics)
    running = Running(config, functools.partial(_parts, shared), metrics.held_up.inc)
    metrics.generations.set_function(lambda: running.generations)
    metrics.doors.source = lambda: running.doors
    metrics.endpoints.source = lambda: _endpoint_figures(running.gateway.backends)
    metrics.traffic.places = lambda: _places(running.gateway.backends)
    metrics.name_by(lambda: _names(running.parts))
    metrics.draining.set_function(lambda: running.gateway.readiness.draining)
    for name in _TOLD_LIMITS:
        metrics.limits.labels(name).set_function(functools.partial(_limit, running, name))
    return running


def _endpoint_figures(backends: Iterable[Backend]) -> Iterator[EndpointFigures]:
    return chain.from_iterable(each.figures() for each in backends if isinstance(each, Watched))


def _places(backends: Iterable[Backend]) -> Iterator[PlaceFigures]:
    found = (each.places for each in backends if isinstance(each, Bounded))
    return (each for each in found if each is not None)


def _names(parts: Iterable[Parts]) -> Names:
    """Those that labels of metrics may have."""
    routes, backends = {NOBODY}, {NOBODY}
    for each in parts:
        routes.update(bound.label for bound in each.gateway.bound)
        backends.update(each.config.backends)
    return Names(routes, backends)


def _limit(running: Running, name: str) -> int:
    """0 of a process that clients do not reach: sums are of those that they do."""
    if running.listeners.keys() <= {ADMIN}:
        return 0
    value: int = getattr(next(iter(running.parts)).limits, name)
    return for_clients(value) if name == _CONNECTIONS else value


@dataclass(frozen=True, slots=True)
class _Shared:
    """What goes on from one configuration to the next."""

    company: Company
    admission: Admission
    doors: Doors
    builtin: Callable[[str, float], Backend]
    history: History
    view: View


def _parts(shared: _Shared, config: Config, before: Parts | None) -> Parts:
    """What serves ``config``. Of what serves ``before`` it, all is taken over that stays as it
    is."""
    limits = compiled.limits(config)
    shares = compiled.sharing_backends(config)
    alike = {} if before is None else _alike(before, config, limits)
    if before is not None and before.config.tracing == config.tracing:
        tracing = before.tracing
    else:
        tracing = _tracing(config)
    if before is not None and before.config.helpers == config.helpers:
        aside = before.aside
    else:
        helpers = shared.company.metrics.traffic.helpers
        aside = Pool(config.helpers, helpers) if config.helpers else None
    backends = {
        name: alike.get(name) or _backend(name, config, limits, shared, tracing, aside)
        for name in config.backends
    }
    gateway = _maker_of_gateways(config, tracing)(
        compiled.routing_table(config),
        backends,
        compiled.declared_models(config),
        _COMBINE[config.readiness],
        SharedMemory(
            limits,
            [backends[name] for name in shares],
            on=config.control.shared_memory,
            before=before.gateway.memory if before else None,
        ),
        allowed=Allowed(config.control.repository, config.control.settings),
        before=before.gateway if before else None,
        tally=shared.company.metrics.traffic.of_route,
        counted=shared.company.counted,
    )
    if before is not None and before.config.log == config.log:
        log = before.log
    else:
        log = _access_log(config, shared.company)
    access = None
    try:
        if isinstance(gateway, GuardedGateway):
            access = entrance(config, gateway.route_of, limits, shared.company, before)
        listening = _listening(config, gateway, aside, log, shared, access, tracing)
    except BaseException:
        if log is not None and (before is None or log is not before.log):
            log.close()  # it has a thread; the rest has begun nothing yet
        if tracing is not None and (before is None or tracing is not before.tracing):
            tracing.close()  # the same
        raise
    return Parts(config, limits, gateway, listening, log, aside, access, tracing)


def _tracing(config: Config) -> Tracing | None:
    """None where it is off, and nothing of it is loaded."""
    if not config.tracing.enabled:
        return None
    from infergate.observe.tracing import tracing  # noqa: PLC0415 - see above

    return tracing()


def _maker_of_gateways(config: Config, tracing: Tracing | None) -> Callable[..., Gateway]:
    if tracing is None:
        return Gateway if config.access is None else GuardedGateway
    traced = TracedGateway if config.access is None else TracedGuardedGateway
    return functools.partial(traced, tracing=tracing)


def _alike(before: Parts, config: Config, limits: Limits) -> dict[str, Backend]:
    """The backends of ``before`` that ``config`` says the same of, by their names."""
    if before.limits != limits or before.config.helpers != config.helpers:
        return {}
    if before.config.tracing != config.tracing:
        return {}  # each of their exchanges is traced, or none
    old, shares = before.config, compiled.sharing_backends(config)
    shared = compiled.sharing_backends(old)
    return {
        each.name: each
        for each in before.gateway.backends
        if old.backends[each.name] == config.backends.get(each.name)
        and (each.name in shares) == (each.name in shared)
    }


def _access_log(config: Config, company: Company) -> AccessLog | None:
    if not config.log.access:
        return None
    line, dropped = FORMATS[config.log.format], company.metrics.log_dropped.inc
    sampling = config.log.sampling
    if sampling is None:
        return AccessLog(line, dropped, turn=company.lines)
    of = Sampling(sampling.first, sampling.thereafter)
    return SampledLog(of, line, dropped, turn=company.lines)


def _listening(  # noqa: PLR0913, PLR0917 - what all listeners share
    config: Config,
    gateway: Gateway,
    aside: Pool | None,
    log: AccessLog | None,
    shared: _Shared,
    access: Entrance | None,
    tracing: Tracing | None,
) -> dict[str, Listening]:
    """What listens, by the config's names, and what it serves."""
    company, limits = shared.company, compiled.limits(config)
    record = _recorder(company, gateway.figures, log, tracing)
    name_call = named if tracing is None else _naming(tracing)
    serving = _Serving(
        gateway,
        limits,
        aside if aside is None or tracing is None else TracedAside(aside, tracing),
        access,
        None if tracing is None else TracedWays(tracing),
    )
    addresses = compiled.addresses(config)
    chosen, tls = engine(config.engine), compiled.server_tls(config)
    listening: dict[str, Listening] = {}

    def listen(  # noqa: PLR0913 - what a listener is
        name: str,
        address: Address,
        app: Any,
        serve: Callable[[Address, Any, Limits, Admission, Door], Server],
        form: Mapping[str, object],
        *protocols: str,
        limits: Limits = limits,
    ) -> None:
        # Not admitted with the rest: a full gateway must still tell that it is full.
        admission = Admission(limits) if name == ADMIN else shared.admission
        door = shared.doors.of(name, limits, tls.get(name), protocols)
        make = functools.partial(serve, address, app, limits, admission, door)
        form = {"mode": address.mode, "TLS": name in tls, **form}
        listening[name] = Listening(address, app, make, door, limits, form)

    if "http" in addresses:
        frontends = _frontends(Carrier.HTTP, config, serving)
        http = HttpDispatch(frontends, record, name_call)
        most = compiled.limits(config, max(p.headers for p in plugins().values()))
        listen("http", addresses["http"], http, chosen.serve_http, _HTTP, _HTTP_1, limits=most)
    for name, bound in compiled.bound_listeners(config).items():
        codec = plugins()[bound.protocol].make(bound.options)
        app = HttpDispatch({"": serving.frontend(codec)}, record, name_call)
        if bound.framed:
            listen(name, bound.address, app, FrameServer, _FRAMES)
        else:
            both = bound.accept_both_lengths
            serve = functools.partial(chosen.serve_http, accept_both_lengths=both)
            form = {**_HTTP, "accept_both_lengths": both}
            listen(name, bound.address, app, serve, form, _HTTP_1)
    if "grpc" in addresses:
        frontends = _frontends(Carrier.GRPC, config, serving)
        own = own_services(SCHEMA, tuple(frontends), gateway.readiness)
        if access is not None:
            own = guarded_services(own, access, next(iter(frontends.values())).codec.build_error)
        rpc = RpcDispatch(frontends, own.unary, own.streams, record, name_call)
        kept = {f"limits.{name}": getattr(limits, name) for name in chosen.fixed}
        if not chosen.changes_tls:
            kept["tls"] = tls.get("grpc")
        listen("grpc", addresses["grpc"], rpc, chosen.serve_grpc, {**_GRPC, **kept}, _HTTP_2)
    if "admin" in addresses:
        scrape = company.scrape or company.metrics.scrape
        ready = company.ready or gateway.readiness.ready
        guarded = guarded_admin(_admin(config, scrape, ready, shared), config, company.metrics)
        listen(ADMIN, addresses["admin"], guarded, chosen.serve_http, _HTTP, _HTTP_1)
    return listening


@dataclass(frozen=True, slots=True)
class _Serving:
    """What all frontends share."""

    gateway: Gateway
    limits: Limits
    aside: Aside | None
    gate: Gate | None
    ways: Ways | None

    def frontend(self, codec: Codec[Any, Any]) -> Frontend[Any, Any]:
        """That of one protocol."""
        return Frontend(codec, self.gateway, self.limits, self.aside, self.gate, self.ways)


def _frontends(
    carrier: Carrier, config: Config, serving: _Serving
) -> dict[str, Frontend[Any, Any]]:
    """The frontends of one carrier, by what they claim; first the one that answers the rest."""
    options = compiled.frontend_options(config)
    frontends: dict[str, Frontend[Any, Any]] = {}
    for plugin in sorted(plugins().values(), key=lambda plugin: not plugin.answers_rest):
        if plugin.carrier is carrier:
            frontend = serving.frontend(plugin.make(options.get(plugin.name, {})))
            frontends.update(dict.fromkeys(plugin.claims, frontend))
    return frontends


def _backend(  # noqa: PLR0913, PLR0917 - what it stands on
    name: str,
    whole: Config,
    limits: Limits,
    shared: _Shared,
    tracing: Tracing | None,
    aside: Aside | None,
) -> Backend:
    config = whole.backends[name]
    plugin = plugins().get(config.protocol)
    if plugin is None:  # the one protocol without a wire
        return shared.builtin(name, config.timeout)
    if config.connect_time is not None:
        limits = replace(limits, connect_time=config.connect_time)
    if plugin.response_header and whole.limits.response_header is None:
        limits = replace(limits, response_header=plugin.response_header)
    server = RemoteServer(
        name,
        balancing.sites(config),
        config.timeout,
        PROFILES.get(config.profile),
        config.forward_headers if tracing is None else (*config.forward_headers, TRACEPARENT),
        config.return_headers,
        balancing.balance(config),
        balancing.watching(config),
        balancing.key(config),
        max_requests=config.limits.max_requests,
        max_queue=config.limits.max_queue,
        retry_share=config.limits.retry_percent / 100,
        retry_least=config.limits.retry_least,
        header_budget=config.limits.forwarded_headers,
    )
    tally = shared.company.metrics.traffic.of(name)
    tells = HeaderRule(config.forward_headers).passes(TRACEPARENT)
    codec: Codec[Any, Any] = plugin.make({})
    tls = compiled.client_tls(config)
    match plugin.carrier:
        case Carrier.HTTP:
            ask_http = engine(whole.engine).ask_http
            upstream: HttpStreamUpstream = EitherUpstream(limits, ask_http, tls)
            if config.connections:
                upstream = Turns(upstream, config.connections)
            if tracing is not None:
                upstream = TracedUpstream(upstream, HTTP_HEADERS, tracing, name, tells=tells)
            return RemoteBackend(
                server, codec, upstream, HTTP_HEADERS, limits, tally=tally, aside=aside
            )
        case Carrier.GRPC:
            ask_grpc = engine(whole.engine).ask_grpc
            asking = ask_grpc(limits, tls)
            if tracing is not None:
                asking = TracedUpstream(asking, RPC_HEADERS, tracing, name, tells=tells)
            return RemoteBackend(
                server, codec, asking, RPC_HEADERS, limits, tally=tally, aside=aside
            )


def _admin(
    config: Config,
    scrape: Callable[[str], Awaitable[Exposition]],
    ready: Callable[[], Awaitable[bool]],
    shared: _Shared,
) -> Admin:
    listener = config.listeners.admin
    assert listener is not None
    reloads = config.reload.post or listener.actions
    refused = shared.company.metrics.refused_requests

    def console() -> Below:
        from infergate.runtime.console.console import Console  # noqa: PLC0415 - see Admin

        return Console(shared.view, ready, shared.history, listener, reloads=reloads)

    return Admin(
        scrape,
        ready,
        shared.history,
        reload=reloads,
        over=lambda limit: refused.labels(limit).inc(),
        console=console if listener.console else None,
        hosts=listener.hosts,
    )


def _naming(tracing: Tracing) -> Record:
    def name(call: Call) -> None:
        named(call)
        tracing.begin(call)

    return name


def _recorder(
    company: Company, figures: Figures, log: AccessLog | None, tracing: Tracing | None
) -> Record:
    metrics, ways, failed = company.metrics, company.recent.ways, company.recent.failed
    count = metrics.record if tracing is None else metrics.record_traced

    def record(call: Call) -> None:
        seconds, now = time.monotonic() - call.started, time.time()
        count(call, seconds)
        if call.way:
            way = call.protocol, call.backend_protocol, call.way
            ways[way] = ways.get(way, 0) + 1
        if call.outcome != "ok":
            failed(call, seconds, now)
        if call.limit:
            metrics.refused_requests.labels(call.limit).inc()
        figures.record(call, seconds, now)
        if log is not None:
            log.record(call, seconds, now)

    if tracing is None:
        return record

    def traced(call: Call) -> None:
        record(call)
        tracing.end(call)

    return traced

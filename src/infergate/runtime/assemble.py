"""Assembles a running gateway from a configuration: backends, gateway, frontends, listeners."""

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
"""Limits whose values are exported as metrics, because other metrics report their use."""
_COMBINE: Final = {"strict": all, "lenient": any}
_HTTP: Final = {"the protocol": "http", "accept_both_lengths": False}
_FRAMES: Final = {"the protocol": "frames"}
_GRPC: Final = {"the protocol": "grpc"}
"""Options that cannot change while a listener listens, see ``ListenerSpec``."""
_HTTP_1, _HTTP_2 = "http/1.1", "h2"
"""Protocols of listeners, by their ALPN names."""


def _embedded(name: str, timeout: float) -> Backend:
    return BuiltinBackend(name, timeout=timeout)


def assemble(
    config: Config,
    builtin: Callable[[str, float], Backend] = _embedded,
    history: History | None = None,
    company: Company | None = None,
) -> Running:
    """Build, but do not start, the gateway that ``config`` describes. Needs a running event loop.

    ``make_builtin`` creates the backend of embedded models from a name and a timeout in seconds.
    ``history`` is the configuration history that the admin listener reports. ``group`` connects the
    process to the other workers; None: there are none.
    """
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
    return chain.from_iterable(
        backend.figures() for backend in backends if isinstance(backend, Watched)
    )


def _places(backends: Iterable[Backend]) -> Iterator[PlaceFigures]:
    all_stats = (item.places for item in backends if isinstance(item, Bounded))
    return (item for item in all_stats if item is not None)


def _names(parts: Iterable[Parts]) -> Names:
    """Return the route and backend names that metric labels may have."""
    routes, backends = {NOBODY}, {NOBODY}
    for generation in parts:
        routes.update(binding.label for binding in generation.gateway.bound)
        backends.update(generation.config.backends)
    return Names(routes, backends)


def _limit(running: Running, name: str) -> int:
    """Return 0 in a process without client listeners, because sums must cover only processes that
    serve clients."""
    if running.listeners.keys() <= {ADMIN}:
        return 0
    value: int = getattr(next(iter(running.parts)).limits, name)
    return for_clients(value) if name == _CONNECTIONS else value


@dataclass(frozen=True, slots=True)
class _Shared:
    """What successive configurations share."""

    company: Company
    admission: Admission
    doors: Doors
    builtin: Callable[[str, float], Backend]
    history: History
    view: View


def _parts(shared: _Shared, config: Config, before: Parts | None) -> Parts:
    """Build the parts that serve ``config``, taking over everything unchanged from ``previous``."""
    limits = compiled.limits(config)
    sharing = compiled.sharing_backends(config)
    unchanged = {} if before is None else _alike(before, config, limits)
    if before is not None and before.config.tracing == config.tracing:
        tracing = before.tracing
    else:
        tracing = _tracing(config)
    if before is not None and before.config.helpers == config.helpers:
        helper_pool = before.aside
    else:
        helpers = shared.company.metrics.traffic.helpers
        helper_pool = Pool(config.helpers, helpers) if config.helpers else None
    backends = {
        name: unchanged.get(name) or _backend(name, config, limits, shared, tracing, helper_pool)
        for name in config.backends
    }
    gateway = _maker_of_gateways(config, tracing)(
        compiled.routing_table(config),
        backends,
        compiled.declared_models(config),
        _COMBINE[config.readiness],
        SharedMemory(
            limits,
            [backends[name] for name in sharing],
            on=config.control.shared_memory,
            before=before.gateway.memory if before else None,
        ),
        allowed=Allowed(config.control.repository, config.control.settings),
        before=before.gateway if before else None,
        tally=shared.company.metrics.traffic.of_route,
        counted=shared.company.counted,
    )
    if before is not None and before.config.log == config.log:
        access_log = before.log
    else:
        access_log = _access_log(config, shared.company)
    authorizer = None
    try:
        if isinstance(gateway, GuardedGateway):
            authorizer = entrance(config, gateway.route_of, limits, shared.company, before)
        listeners = _listening(
            config, gateway, helper_pool, access_log, shared, authorizer, tracing
        )
    except BaseException:
        if access_log is not None and (before is None or access_log is not before.log):
            access_log.close()  # it has a thread; no other part has started anything yet
        if tracing is not None and (before is None or tracing is not before.tracing):
            tracing.close()  # it has a thread too
        raise
    return Parts(config, limits, gateway, listeners, access_log, helper_pool, authorizer, tracing)


def _tracing(config: Config) -> Tracing | None:
    """Return a new tracer; None if tracing is off, in which case its packages are not imported."""
    if not config.tracing.enabled:
        return None
    from infergate.observe.tracing import tracing  # noqa: PLC0415 - only if enabled

    return tracing()


def _maker_of_gateways(config: Config, tracing: Tracing | None) -> Callable[..., Gateway]:
    if tracing is None:
        return Gateway if config.access is None else GuardedGateway
    traced = TracedGateway if config.access is None else TracedGuardedGateway
    return functools.partial(traced, tracing=tracing)


def _alike(before: Parts, config: Config, limits: Limits) -> dict[str, Backend]:
    """Return the backends of ``previous``, by name, whose configuration is the same in
    ``config``."""
    if before.limits != limits or before.config.helpers != config.helpers:
        return {}
    if before.config.tracing != config.tracing:
        return {}  # tracing wraps every upstream
    old, sharing = before.config, compiled.sharing_backends(config)
    previously_sharing = compiled.sharing_backends(old)
    return {
        backend.name: backend
        for backend in before.gateway.backends
        if old.backends[backend.name] == config.backends.get(backend.name)
        and (backend.name in sharing) == (backend.name in previously_sharing)
    }


def _access_log(config: Config, company: Company) -> AccessLog | None:
    if not config.log.access:
        return None
    formatter, dropped = FORMATS[config.log.format], company.metrics.log_dropped.inc
    sampling = config.log.sampling
    if sampling is None:
        return AccessLog(formatter, dropped, turn=company.lines)
    rates = Sampling(sampling.first, sampling.thereafter)
    return SampledLog(rates, formatter, dropped, turn=company.lines)


def _listening(  # noqa: PLR0913, PLR0917 - the parts that all listeners share
    config: Config,
    gateway: Gateway,
    aside: Pool | None,
    log: AccessLog | None,
    shared: _Shared,
    access: Entrance | None,
    tracing: Tracing | None,
) -> dict[str, Listening]:
    """Return the listeners and their applications, by configuration name."""
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
    transports, tls = engine(config.engine), compiled.server_tls(config)
    listeners: dict[str, Listening] = {}

    def listen(  # noqa: PLR0913 - the fields of a listener
        name: str,
        address: Address,
        app: Any,
        make_server: Callable[[Address, Any, Limits, Admission, Door], Server],
        options: Mapping[str, object],
        *protocols: str,
        limits: Limits = limits,
    ) -> None:
        # The admin listener has its own admission, so that a full gateway can report that it is.
        admission = Admission(limits) if name == ADMIN else shared.admission
        gate = shared.doors.of(name, limits, tls.get(name), protocols)
        make = functools.partial(make_server, address, app, limits, admission, gate)
        options = {"mode": address.mode, "TLS": name in tls, **options}
        listeners[name] = Listening(address, app, make, gate, limits, options)

    if "http" in addresses:
        frontends = _frontends(Carrier.HTTP, config, serving)
        http = HttpDispatch(frontends, record, name_call)
        header_limits = compiled.limits(config, max(p.headers for p in plugins().values()))
        listen(
            "http",
            addresses["http"],
            http,
            transports.serve_http,
            _HTTP,
            _HTTP_1,
            limits=header_limits,
        )
    for name, model_listener in compiled.bound_listeners(config).items():
        codec = plugins()[model_listener.protocol].make(model_listener.options)
        app = HttpDispatch({"": serving.frontend(codec)}, record, name_call)
        if model_listener.framed:
            listen(name, model_listener.address, app, FrameServer, _FRAMES)
        else:
            accept_both = model_listener.accept_both_lengths
            make_server = functools.partial(transports.serve_http, accept_both_lengths=accept_both)
            options = {**_HTTP, "accept_both_lengths": accept_both}
            listen(name, model_listener.address, app, make_server, options, _HTTP_1)
    if "grpc" in addresses:
        frontends = _frontends(Carrier.GRPC, config, serving)
        own_rpc = own_services(SCHEMA, tuple(frontends), gateway.readiness)
        if access is not None:
            own_rpc = guarded_services(
                own_rpc, access, next(iter(frontends.values())).codec.build_error
            )
        rpc = RpcDispatch(frontends, own_rpc.unary, own_rpc.streams, record, name_call)
        fixed = {f"limits.{name}": getattr(limits, name) for name in transports.fixed}
        if not transports.changes_tls:
            fixed["tls"] = tls.get("grpc")
        listen("grpc", addresses["grpc"], rpc, transports.serve_grpc, {**_GRPC, **fixed}, _HTTP_2)
    if "admin" in addresses:
        scrape = company.scrape or company.metrics.scrape
        ready = company.ready or gateway.readiness.ready
        guarded = guarded_admin(_admin(config, scrape, ready, shared), config, company.metrics)
        listen(ADMIN, addresses["admin"], guarded, transports.serve_http, _HTTP, _HTTP_1)
    return listeners


@dataclass(frozen=True, slots=True)
class _Serving:
    """The dependencies that all frontends share."""

    gateway: Gateway
    limits: Limits
    aside: Aside | None
    gate: Gate | None
    ways: Ways | None

    def frontend(self, codec: Codec[Any, Any]) -> Frontend[Any, Any]:
        """Return the frontend of ``codec``."""
        return Frontend(codec, self.gateway, self.limits, self.aside, self.gate, self.ways)


def _frontends(
    carrier: Carrier, config: Config, serving: _Serving
) -> dict[str, Frontend[Any, Any]]:
    """Return the frontends of one kind of transport by the paths or services they claim, starting
    with the frontend that answers everything unclaimed."""
    options = compiled.frontend_options(config)
    frontends: dict[str, Frontend[Any, Any]] = {}
    for plugin in sorted(plugins().values(), key=lambda plugin: not plugin.answers_rest):
        if plugin.carrier is carrier:
            frontend = serving.frontend(plugin.make(options.get(plugin.name, {})))
            frontends.update(dict.fromkeys(plugin.claims, frontend))
    return frontends


def _backend(  # noqa: PLR0913, PLR0917 - dependency injection
    name: str,
    whole: Config,
    limits: Limits,
    shared: _Shared,
    tracing: Tracing | None,
    aside: Aside | None,
) -> Backend:
    config = whole.backends[name]
    plugin = plugins().get(config.protocol)
    if plugin is None:  # the embedded models
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
    propagates = HeaderRule(config.forward_headers).passes(TRACEPARENT)
    codec: Codec[Any, Any] = plugin.make({})
    tls = compiled.client_tls(config)
    match plugin.carrier:
        case Carrier.HTTP:
            make_http = engine(whole.engine).ask_http
            upstream: HttpStreamUpstream = EitherUpstream(limits, make_http, tls)
            if config.connections:
                upstream = Turns(upstream, config.connections)
            if tracing is not None:
                upstream = TracedUpstream(upstream, HTTP_HEADERS, tracing, name, tells=propagates)
            return RemoteBackend(
                server, codec, upstream, HTTP_HEADERS, limits, tally=tally, aside=aside
            )
        case Carrier.GRPC:
            make_grpc = engine(whole.engine).ask_grpc
            rpc_upstream = make_grpc(limits, tls)
            if tracing is not None:
                rpc_upstream = TracedUpstream(
                    rpc_upstream, RPC_HEADERS, tracing, name, tells=propagates
                )
            return RemoteBackend(
                server, codec, rpc_upstream, RPC_HEADERS, limits, tally=tally, aside=aside
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
    rejected = shared.company.metrics.refused_requests

    def console() -> Below:
        from infergate.runtime.console.console import Console  # noqa: PLC0415 - on first use

        return Console(shared.view, ready, shared.history, listener, reloads=reloads)

    return Admin(
        scrape,
        ready,
        shared.history,
        reload=reloads,
        over=lambda limit: rejected.labels(limit).inc(),
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
    metrics, pipelines, add_failure = company.metrics, company.recent.ways, company.recent.failed
    count = metrics.record if tracing is None else metrics.record_traced

    def record(call: Call) -> None:
        seconds, now = time.monotonic() - call.started, time.time()
        count(call, seconds)
        if call.way:
            pipeline = call.protocol, call.backend_protocol, call.way
            pipelines[pipeline] = pipelines.get(pipeline, 0) + 1
        if call.outcome != "ok":
            add_failure(call, seconds, now)
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

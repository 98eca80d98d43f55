"""Assembles a running gateway from a configuration: backends, gateway, frontends, listeners."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from infergate.assembly.backends import make_remote_backend
from infergate.assembly.engines import load_engine
from infergate.assembly.transforms import make_transform_layer
from infergate.backends.base import Backend
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.base import TransportKind
from infergate.codecs.registry import by_claim, plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.limits import Limits
from infergate.core.tracing import Tracer
from infergate.gateway.authorized import AuthorizedGateway
from infergate.gateway.canonical_frontend import IN_PROCESS, CanonicalFrontend
from infergate.gateway.dispatch import HttpDispatch, RpcDispatch, assign_request_id
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.server_control import ControlPermissions
from infergate.gateway.shared_memory import SharedMemory
from infergate.gateway.steps import Steps
from infergate.observe.access_log import FORMATS, AccessLog
from infergate.observe.log_sampler import LogSampler
from infergate.runtime import comparisons
from infergate.runtime.access import Authorizer, authorize_admin, make_authorizer
from infergate.runtime.admin import CONSOLE, AdminApp, SubtreeApp
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.connection_gates import ConnectionGates
from infergate.runtime.console.history_sampler import HistorySampler
from infergate.runtime.console.sources import ConsoleSource, SingleProcess
from infergate.runtime.descriptors import count_open
from infergate.runtime.frontends import MakeFrontend, envelope_claims, own_services
from infergate.runtime.in_process import InProcessListener
from infergate.runtime.layers import make_layers
from infergate.runtime.metric_sources import export_state
from infergate.runtime.observers import make_observers, make_payload_log, make_recorder
from infergate.runtime.offload import HelperPool
from infergate.runtime.plugins import NO_PLUGINS, PluginFactory
from infergate.runtime.recording_actions import ControlRecording, control_recorder
from infergate.runtime.request_recorder import make_request_recorder, request_tracing_starter
from infergate.runtime.response_cache import make_cache, make_cache_layer
from infergate.runtime.running import ADMIN, GatewayParts, ListenerSpec, RunningGateway
from infergate.runtime.worker_group import WorkerGroup
from infergate.transport.base import Address, Server
from infergate.transport.framed.server import FrameServer
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import ConnectionGate

if TYPE_CHECKING:
    from infergate.runtime.console.demo import ConsoleDemo  # imported on first use

READINESS_RULES: Final = {"strict": all, "lenient": any}
_FIXED_HTTP: Final = {"the protocol": "http", "accept_both_lengths": False}
_FIXED_FRAMES: Final = {"the protocol": "frames"}
_FIXED_GRPC: Final = {"the protocol": "grpc"}
"""The options that a reload cannot change, for each kind of listener (``ListenerSpec``)."""
_HTTP_1, _HTTP_2 = "http/1.1", "h2"
"""The ALPN names of the listeners' protocols."""


def _make_builtin(name: str, timeout: float) -> Backend:
    return BuiltinBackend(name, timeout=timeout)


def assemble(
    config: Config,
    make_builtin: Callable[[str, float], Backend] = _make_builtin,
    history: ConfigHistory | None = None,
    group: WorkerGroup | None = None,
) -> RunningGateway:
    """Return the gateway that ``config`` describes, without starting it. An event loop must be
    running.

    ``make_builtin`` creates the backend of embedded models from a name and a timeout in seconds.
    The admin listener reports ``history``. ``group`` connects a worker or the supervisor to the
    gateway's other processes, and is None if there are none. Raises PluginError, and OSError if a
    file cannot be used."""
    is_worker = group is not None and group.console_source is None
    group, limits = group or WorkerGroup(), compiled.limits(config)
    metrics, admission = group.metrics, Admission(limits)
    metrics.in_flight.set_function(lambda: admission.requests)
    metrics.streams.set_function(lambda: admission.streams)
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))
    metrics.in_flight_bytes.set_function(lambda: admission.bytes)
    metrics.open_descriptors.set_function(count_open)
    history = history or ConfigHistory()
    source = group.console_source or SingleProcess(lambda: running, metrics, group.recent_requests)
    sampler = HistorySampler(source, history.events)
    factory = PluginFactory(metrics)
    shared = _SharedState(
        group,
        admission,
        ConnectionGates(metrics),
        make_builtin,
        history,
        source,
        sampler,
        group.control_recording
        or (lambda action: control_recorder(running.recorder, action, group.number)),
        lambda: _demo_of(running, source, history),
        factory,
    )
    shared.history.export_to(metrics)
    running = RunningGateway(
        config,
        functools.partial(_build_parts, shared),
        metrics.loop_blocked_seconds.inc,
        functools.partial(_prepare_plugins, factory),
        factory.abandon,
    )
    running.history = None if is_worker else sampler
    export_state(running, metrics)
    return running


def _demo_of(
    running: RunningGateway, source: ConsoleSource, history: ConfigHistory
) -> ConsoleDemo | None:
    from infergate.runtime.console.demo import demo_of  # noqa: PLC0415 - on first use

    return demo_of(running, source, history, assemble)


@dataclass(frozen=True, slots=True)
class _SharedState:
    """The objects that successive configurations share."""

    group: WorkerGroup
    admission: Admission
    gates: ConnectionGates
    make_builtin: Callable[[str, float], Backend]
    history: ConfigHistory
    console_source: ConsoleSource
    sampler: HistorySampler
    control_recording: ControlRecording
    make_demo: Callable[[], ConsoleDemo | None]
    """Returns the console's demo, or None if the active configuration does not allow the
    demo."""
    plugins: PluginFactory


def _prepare_plugins(
    factory: PluginFactory, config: Config, previous: GatewayParts | None
) -> Callable[[], None]:
    """Return the function that creates the plug-ins of ``config``."""
    prepared = factory.begin(config)

    def create() -> None:
        limits = compiled.limits(config)
        kept = (
            NO_PLUGINS if previous is None else previous.plugins.unchanged(previous.config, config)
        )
        factory.prepare(prepared, limits, kept, _unchanged_backends(previous, config, limits))

    return create


def _build_parts(
    shared: _SharedState, config: Config, previous: GatewayParts | None
) -> GatewayParts:
    """Build the parts that serve ``config``. Unchanged parts of ``previous`` are reused."""
    limits = compiled.limits(config)
    sharing = compiled.shared_memory_backends(config)
    unchanged = _unchanged_backends(previous, config, limits)
    tracer = _make_tracer(config, previous)
    if previous is not None and previous.config.helpers == config.helpers:
        helper_pool = previous.helper_pool
    else:
        counters = shared.group.metrics.backends.helpers
        helper_pool = HelperPool(config.helpers, counters) if config.helpers else None

    def make_backend(name: str) -> Backend:
        if config.backends[name].model:
            return shared.plugins.model(name)
        if config.backends[name].protocol not in plugins():  # the embedded models
            return shared.make_builtin(name, config.backends[name].timeout)
        counters = shared.group.metrics.backends.backend_counters(name)
        return make_remote_backend(
            name, config, limits, counters=counters, offload=helper_pool, tracer=tracer
        )

    backends = {name: unchanged.get(name) or make_backend(name) for name in config.backends}
    hosted = shared.plugins.hosted
    recorder = make_recorder(config, shared.group, previous)
    payload_log = make_payload_log(config, limits, helper_pool, shared.group, previous)
    cache = make_cache(config, shared.group, previous)
    table = compiled.routing_table(config)
    counters_of = shared.group.metrics.backends.route_counters
    gateway = RoutingGateway(
        table,
        backends,
        compiled.declared_models(config),
        GatewayOptions(
            READINESS_RULES[config.readiness],
            SharedMemory(
                limits,
                [backends[name] for name in sharing],
                enabled=config.control.shared_memory,
                predecessor=previous.gateway.shared_memory if previous else None,
            ),
            ControlPermissions(config.control.repository, config.control.settings),
            counters_of,
            shared.group.aggregate_statistics,
            Steps(tracer),
            make_observers(config, table, recorder, payload_log),
            make_layers(
                config,
                (
                    hosted.hook_layer(limits),
                    functools.partial(make_cache_layer, config, cache, shared.group),
                    functools.partial(
                        make_transform_layer,
                        limits=limits,
                        offload=helper_pool,
                        runner_of=hosted.runner_of,
                    ),
                ),
            ),
            comparer=comparisons.make_comparer(
                table.routes, counters_of, previous.gateway.comparer if previous else None
            ),
            models_changed=None if cache is None else cache.models_changed,
        ),
        previous.gateway if previous else None,
    )
    access_log = _make_access_log(config, shared.group, previous)
    authorizer = None
    try:
        if config.access is not None:
            authorizer = make_authorizer(
                config, gateway.route_label, limits, shared.group, previous
            )
        listeners = _listener_specs(
            config, gateway, helper_pool, access_log, shared, authorizer, tracer
        )
    except BaseException:
        kept = () if previous is None else (previous.access_log, previous.tracer, previous.recorder)
        for part in (access_log, tracer, recorder):
            if part is not None and part not in kept:
                part.close()  # stops its thread
        raise
    shared.plugins.release_ownership()
    return GatewayParts(
        config,
        limits,
        gateway,
        listeners,
        access_log,
        helper_pool,
        authorizer,
        tracer,
        recorder,
        payload_log,
        cache,
        hosted,
    )


def _make_tracer(config: Config, previous: GatewayParts | None) -> Tracer | None:
    if previous is not None and previous.config.tracing == config.tracing:
        return previous.tracer
    if not config.tracing.enabled:
        return None
    from infergate.observe.tracing import create_tracer  # noqa: PLC0415 - only if enabled

    return create_tracer()


def _unchanged_backends(
    previous: GatewayParts | None, config: Config, limits: Limits
) -> dict[str, Backend]:
    """Return the backends of ``previous`` that ``config`` can reuse, by name."""
    if previous is None or previous.limits != limits or previous.config.helpers != config.helpers:
        return {}
    if previous.config.tracing != config.tracing:
        return {}  # tracing wraps every upstream
    old, sharing = previous.config, compiled.shared_memory_backends(config)
    previously_sharing = compiled.shared_memory_backends(old)
    return {
        backend.name: backend
        for backend in previous.gateway.backends
        if old.backends[backend.name] == config.backends.get(backend.name)
        and (backend.name in sharing) == (backend.name in previously_sharing)
    }


def _make_access_log(
    config: Config, group: WorkerGroup, previous: GatewayParts | None
) -> AccessLog | None:
    if previous is not None and previous.config.log == config.log:
        return previous.access_log
    if not config.log.access:
        return None
    formatter, dropped = FORMATS[config.log.format], group.metrics.log_dropped.inc
    sampling = config.log.sampling
    sampler = None if sampling is None else LogSampler(sampling.first, sampling.thereafter)
    return AccessLog(formatter, dropped, lock=group.log_lock, sampler=sampler)


def _listener_specs(  # noqa: PLR0913, PLR0917 - the parts that all listeners share
    config: Config,
    gateway: RoutingGateway,
    helper_pool: HelperPool | None,
    access_log: AccessLog | None,
    shared: _SharedState,
    authorizer: Authorizer | None,
    tracer: Tracer | None,
) -> dict[str, ListenerSpec]:
    group, limits = shared.group, compiled.limits(config)
    record = make_request_recorder(group, gateway.own_statistics, access_log, tracer, limits)
    assign_id = assign_request_id if tracer is None else request_tracing_starter(tracer)
    relays = tracer is None  # ``assign_id`` may start a trace, so it must run only once
    inference_gateway = gateway if authorizer is None else AuthorizedGateway(gateway)
    make_frontend: MakeFrontend = functools.partial(
        Frontend,
        gateway=inference_gateway,
        limits=limits,
        offload=helper_pool,
        authorizer=authorizer,
        steps=Steps(tracer),
    )
    addresses = compiled.addresses(config)
    transports, tls = load_engine(config.engine), compiled.server_tls(config)
    listeners: dict[str, ListenerSpec] = {}

    def listen(
        name: str,
        app: Any,
        make_server: Callable[[Address, Any, Limits, Admission, ConnectionGate], Server],
        options: Mapping[str, object],
        *protocols: str,
        limits: Limits = limits,
    ) -> None:
        # The admin listener has its own admission, so that it serves requests even when the other
        # listeners have reached their limits.
        admission = Admission(limits) if name == ADMIN else shared.admission
        gate = shared.gates.make_gate(name, limits, tls.get(name), protocols)
        address = addresses[name]
        make = functools.partial(make_server, address, app, limits, admission, gate)
        options = {"mode": address.mode, "TLS": name in tls, **options}
        listeners[name] = ListenerSpec(address, app, make, gate, limits, options)

    options = compiled.frontend_options(config)

    @functools.cache
    def frontend(protocol: str) -> Frontend[Any, Any]:
        return make_frontend(plugins()[protocol].create(options.get(protocol, {})))

    def listen_http(name: str, protocols: Sequence[str]) -> None:
        claims = {**by_claim(protocols, frontend), **envelope_claims(config, name, make_frontend)}
        header_bytes = max(plugins()[each].min_header_bytes for each in protocols)
        listen(
            name,
            HttpDispatch(claims, record, assign_id, relays=relays),
            transports.make_http_server,
            _FIXED_HTTP,
            _HTTP_1,
            limits=compiled.limits(config, header_bytes),
        )

    def listen_grpc(name: str, protocols: Sequence[str]) -> None:
        claims = by_claim(protocols, frontend)
        own_rpc = own_services(claims, gateway, authorizer)
        rpc = RpcDispatch(claims, own_rpc.unary, own_rpc.streams, record, assign_id, relays=relays)
        fixed = {f"limits.{key}": getattr(limits, key) for key in transports.fixed_grpc_limits}
        if not transports.can_change_grpc_tls:
            fixed["tls"] = tls.get(name)
        listen(name, rpc, transports.make_grpc_server, {**_FIXED_GRPC, **fixed}, _HTTP_2)

    for name, protocols in compiled.listener_protocols(config).items():
        is_http = plugins()[protocols[0]].transport_kind is TransportKind.HTTP
        (listen_http if is_http else listen_grpc)(name, protocols)
    for name, model_listener in compiled.model_listeners(config).items():
        codec = plugins()[model_listener.protocol].create(model_listener.options)
        app = HttpDispatch({"": make_frontend(codec)}, record, assign_id, relays=relays)
        if model_listener.framed:
            listen(name, app, FrameServer, _FIXED_FRAMES)
        else:
            fixed = {"accept_both_lengths": model_listener.accept_both_lengths}
            make_server = functools.partial(transports.make_http_server, **fixed)
            listen(name, app, make_server, {**_FIXED_HTTP, **fixed}, _HTTP_1)
    if "admin" in addresses:
        admin_app = authorize_admin(_make_admin(config, gateway, shared), config, group.metrics)
        listen(ADMIN, admin_app, transports.make_http_server, _FIXED_HTTP, _HTTP_1)
    in_process = CanonicalFrontend(inference_gateway, limits, record, assign_id, authorizer)
    make_in_process = functools.partial(InProcessListener, in_process, shared.admission)
    gate = ConnectionGate()  # unused, because the listener has no connections
    listeners[IN_PROCESS] = ListenerSpec(Address(), in_process, make_in_process, gate, limits)
    return listeners


def _make_admin(config: Config, gateway: RoutingGateway, shared: _SharedState) -> AdminApp:
    listener, group = config.listeners.admin, shared.group
    assert listener is not None
    ready = group.check_ready or gateway.readiness.is_ready
    reloads = config.reload.post or listener.actions
    rejected = group.metrics.refused_requests

    def console() -> SubtreeApp:
        from infergate.runtime.console.console import Console  # noqa: PLC0415 - on first use

        return Console(
            shared.console_source,
            ready,
            shared.history,
            shared.sampler,
            listener,
            can_reload=reloads,
            demo=shared.make_demo() if listener.actions else None,
        )

    comparisons_app = comparisons.ComparisonsApp(
        shared.console_source, listener.hosts, allows_reset=listener.actions
    )
    apps: dict[str, Callable[[], SubtreeApp]] = {comparisons.PATH: lambda: comparisons_app}
    if config.recording is not None:
        from infergate.runtime.recording import RecordingAdmin  # noqa: PLC0415 - only if configured

        allows_recording = config.recording.post or listener.actions
        recording = RecordingAdmin(
            shared.control_recording, allows_actions=allows_recording, hosts=listener.hosts
        )
        apps["/recording"] = lambda: recording
    if listener.console:
        apps[CONSOLE] = functools.cache(console)  # created on the first request, to save memory
    return AdminApp(
        group.scrape or group.metrics.scrape,
        ready,
        shared.history,
        allows_reload=reloads,
        count_limit=lambda limit: rejected.labels(limit).inc(),
        hosts=listener.hosts,
        apps=apps,
    )

"""Converts a checked Config into the types that the rest of infergate uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from infergate.codecs.base import TransportKind
from infergate.comparison.rules import DEFAULT_TOLERANCES, ComparisonRules, OutputRule, Tolerance
from infergate.comparison.settings import Baseline, MirrorComparison, MismatchStorage
from infergate.config import protocols, schema
from infergate.config.comparison import CompareConfig, ToleranceConfig
from infergate.config.envelopes import EnvelopesConfig
from infergate.config.listeners import (
    AdditionalListener,
    AdminListener,
    GrpcListener,
    HttpListener,
    SocketListenerConfig,
)
from infergate.config.payload_log import HttpSinkConfig
from infergate.config.rewrite import RewriteConfig
from infergate.config.routes import RouteConfig
from infergate.config.values import Url
from infergate.core.datatypes import DATATYPES_BY_NAME, Datatype
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import ModelMetadata
from infergate.core.name_rules import NameRule
from infergate.core.route_policy import RetryPolicy
from infergate.core.tls_settings import ClientTls, ServerTls
from infergate.routing.table import MirrorTarget, Rewrite, Route, RouteTable, SplitTarget
from infergate.transport.base import Address, Endpoint

ADDITIONAL: Final = "additional."
"""The prefix of the names of additional listeners."""


def routing_table(config: schema.Config) -> RouteTable:
    """Return the table of all routes, in the order of the configuration."""
    return RouteTable(
        map(_route, config.routes), NameRule(allow_slash=config.allow_slash_in_model_names)
    )


def _rewrite(rewrite: RewriteConfig) -> Rewrite:
    return Rewrite(rewrite.model, rewrite.version, rewrite.inputs, rewrite.outputs)


def _route(route: RouteConfig) -> Route:
    return Route(
        pattern=route.model,
        backend=route.backend,
        version=route.version,
        rewrite=_rewrite(route.rewrite),
        timeout=route.timeout,
        idle_timeout=route.idle_timeout,
        retry=RetryPolicy(
            route.retry.times,
            route.idempotent,
            route.retry.per_try_timeout,
            None if route.hedge is None else route.hedge.after,
        ),
        validate=route.validate_,
        labels=route.labels,
        cast={DATATYPES_BY_NAME[name]: substitute for name, substitute in route.cast.items()},
        headers=route.headers,
        split=[
            SplitTarget(target.backend, target.percent, _rewrite(target.rewrite or route.rewrite))
            for target in route.split
        ],
        split_by=route.split_by or "",
        fallback=route.fallback,
        mirror=_mirror(route),
        has_layers=_has_layers(route),
        priority=route.priority,
    )


def _has_layers(route: RouteConfig) -> bool:
    return bool(route.hooks) or any(
        section is not None
        for section in (route.record, route.payload_log, route.cache, route.transforms)
    )


def _mirror(route: RouteConfig) -> MirrorTarget | None:
    mirror = route.mirror
    if mirror is None:
        return None
    comparison = None if mirror.compare is None else _comparison(mirror.compare)
    rewrite = _rewrite(mirror.rewrite or route.rewrite)
    return MirrorTarget(mirror.backend, mirror.percent, mirror.max_requests, comparison, rewrite)


def _comparison(compare: CompareConfig) -> MirrorComparison:
    baseline, keep, storage = compare.baseline, compare.keep, None
    if keep is not None:
        redact = keep.redact
        storage = MismatchStorage(
            keep.path, keep.count, keep.bytes, keep.age, keep.headers, redact.remove, redact.zero
        )
    return MirrorComparison(
        comparison_rules(compare),
        None if baseline is None else Baseline(baseline.backend, baseline.percent),
        storage,
    )


def comparison_rules(compare: CompareConfig) -> ComparisonRules:
    """Return the rules of ``compare``."""
    return ComparisonRules(
        {
            DATATYPES_BY_NAME[name]: _tolerance(DATATYPES_BY_NAME[name], tolerance)
            for name, tolerance in compare.tolerances.items()
        },
        {name: OutputRule(**dict(rule)) for name, rule in compare.outputs.items()},
    )


def _tolerance(datatype: Datatype, config: ToleranceConfig) -> Tolerance:
    default = DEFAULT_TOLERANCES[datatype]
    return Tolerance(
        default.atol if config.atol is None else config.atol,
        default.rtol if config.rtol is None else config.rtol,
    )


def limits(config: schema.Config, headers: int = 0) -> Limits:
    """Return the limits that codecs and transports enforce.

    ``headers`` is the header size that the protocols of a listener need. ``limits.headers`` of the
    configuration takes precedence."""
    values: dict[str, Any] = config.limits.model_dump(by_alias=True)
    if values["headers"] is None:
        values["headers"] = max(headers, DEFAULT_LIMITS.headers)
    if values["response_header"] is None:
        values["response_header"] = DEFAULT_LIMITS.response_header
    return Limits(**values)


def addresses(config: schema.Config) -> dict[str, Address]:
    """Return the address of each enabled listener, keyed by its path below ``listeners``."""
    return {
        name: replace(listener.address, mode=listener.mode)
        if isinstance(listener, SocketListenerConfig)
        else listener.address
        for name, listener in _listeners(config).items()
    }


def server_tls(config: schema.Config) -> dict[str, ServerTls]:
    """Return the TLS settings of listeners with TLS, keyed by the listener's path below
    ``listeners``."""
    return {
        name: ServerTls(**dict(listener.tls))
        for name, listener in _listeners(config).items()
        if listener.tls is not None
    }


def _listeners(
    config: schema.Config,
) -> dict[str, HttpListener | GrpcListener | AdminListener | SocketListenerConfig]:
    listeners = config.listeners
    named = {"http": listeners.http, "grpc": listeners.grpc, "admin": listeners.admin}
    return {
        **{name: listener for name, listener in named.items() if listener is not None},
        **{f"graphpipe[{i}]": listener for i, listener in enumerate(listeners.graphpipe)},
        **{f"{ADDITIONAL}{name}": item for name, item in listeners.additional.items()},
    }


def listener_protocols(config: schema.Config) -> dict[str, tuple[str, ...]]:
    """Return the protocols of each listener that may serve several protocols and models, keyed by
    the listener's path below ``listeners``. If several protocols of a listener claim the same URL
    path, the first of them serves it."""
    listeners = config.listeners
    by_listener: dict[str, tuple[str, ...]] = {}
    if listeners.http is not None:
        by_listener["http"] = protocols.of_transport(TransportKind.HTTP, listeners.http.v1)
    if listeners.grpc is not None:
        by_listener["grpc"] = protocols.of_transport(TransportKind.GRPC)
    return by_listener | {
        f"{ADDITIONAL}{name}": item.protocols for name, item in listeners.additional.items()
    }


def client_tls(server: schema.BackendConfig | HttpSinkConfig) -> ClientTls | None:
    """Return the TLS settings of connections to ``server``, or None for the system's defaults."""
    return None if server.tls is None else ClientTls(**dict(server.tls))


@dataclass(frozen=True, slots=True)
class ModelListener:
    """A listener that serves one model.

    ``protocol`` names the codec and ``options`` configures it. ``framed`` selects size-prefixed
    messages instead of HTTP. ``accept_both_lengths`` is described in ``GraphPipeListener``."""

    protocol: str
    options: Mapping[str, Any]
    framed: bool
    accept_both_lengths: bool


def model_listeners(config: schema.Config) -> dict[str, ModelListener]:
    """Return the listeners that serve one model, keyed by their paths below ``listeners``."""
    listeners: dict[str, ModelListener] = {}
    for i, listener in enumerate(config.listeners.graphpipe):
        framed = listener.framing == "size-prefixed"
        options = {"model": listener.model, "errors": "response" if framed else listener.errors}
        listeners[f"graphpipe[{i}]"] = ModelListener(
            "graphpipe", options, framed, listener.accept_both_lengths
        )
    return listeners


def frontend_options(config: schema.Config) -> dict[str, Mapping[str, Any]]:
    """Return the options of each frontend's codec (``CodecPlugin.create``), keyed by protocol."""
    http = config.listeners.http or HttpListener()
    grpc = config.listeners.grpc or GrpcListener()
    return {
        **config.listeners.codecs,
        "v2-rest": http.v2.model_dump(),
        "trtis-http": http.trtis.model_dump(),
        "graphpipe": http.graphpipe.model_dump(),
        "tfs-rest": config.tensorflow_serving.codec_options(),
        "v2-grpc": grpc.v2.model_dump(),
        "trtis-grpc": grpc.trtis.model_dump(),
        "tfs-grpc": grpc.tfs.model_dump() | config.tensorflow_serving.codec_options(),
    }


def envelope_options(config: schema.Config, listener: str) -> dict[str, Mapping[str, Any]]:
    """Return the codec options of each envelope that a listener serves, keyed by the envelope's
    name. ``listener`` is the listener's path below ``listeners``."""
    section = _listeners(config)[listener]
    if not isinstance(section, HttpListener | AdditionalListener):
        return {}
    v2 = frontend_options(config)["v2-rest"]
    envelopes = {name: getattr(section.envelopes, name) for name in EnvelopesConfig.model_fields}
    return {
        name: {"v2": v2, **envelope.model_dump()}
        for name, envelope in envelopes.items()
        if envelope is not None
    }


def shared_memory_backends(config: schema.Config) -> tuple[str, ...]:
    """Return the names of the backends that access the shared memory of clients."""
    if not config.control.shared_memory:
        return ()
    return tuple(
        name for name, backend in config.backends.items() if backend.shared_memory == "forward"
    )


def endpoints(backend: schema.BackendConfig) -> tuple[Endpoint, ...]:
    """Return the endpoints of ``backend``. An in-process backend has no endpoints."""
    return tuple(map(endpoint, backend.endpoints))


def endpoint(url: Url) -> Endpoint:
    """Return the endpoint that ``url`` refers to."""
    if url.scheme in protocols.UNIX_SCHEMES:
        return Endpoint(unix=url.path, framed=url.scheme in protocols.FRAMED_SCHEMES)
    port = protocols.DEFAULT_PORTS[url.scheme] if url.port is None else url.port
    return Endpoint(
        url.host,
        port,
        tls=url.scheme in protocols.TLS_SCHEMES,
        path=url.path,
        framed=url.scheme in protocols.FRAMED_SCHEMES,
    )


def declared_models(config: schema.Config) -> dict[str, ModelMetadata]:
    """Return the metadata of each declared model, keyed by the name that clients use."""
    return {name: model.metadata(name) for name, model in config.models.items()}

"""A checked Config to what the rest of infergate works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infergate.config import protocols, schema
from infergate.config.listeners import GraphPipeListener
from infergate.config.routes import RewriteConfig, RouteConfig
from infergate.config.tls import ListenerTls
from infergate.config.values import Url
from infergate.core.certificates import ClientTls, ServerTls
from infergate.core.datatypes import BY_NAME as DATATYPES
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.names import NameRule
from infergate.core.retrying import RetryPolicy
from infergate.routing.table import Mirror, Rewrite, Route, RouteTable, Target
from infergate.transport.base import Address, Endpoint


def routing_table(config: schema.Config) -> RouteTable:
    """All routes, in order."""
    return RouteTable(
        map(_route, config.routes), NameRule(allow_slash=config.allow_slash_in_model_names)
    )


def _rewrite(to: RewriteConfig) -> Rewrite:
    return Rewrite(to.model, to.version, to.inputs, to.outputs)


def _route(route: RouteConfig) -> Route:
    return Route(
        pattern=route.model,
        backend=route.backend,
        version=route.version,
        rewrite=_rewrite(route.rewrite),
        timeout=route.timeout,
        idle_timeout=route.idle_timeout,
        retry=_retry_policy(route),
        validate=route.validate_,
        labels=route.labels,
        cast={DATATYPES[datatype]: to for datatype, to in route.cast.items()},
        headers=route.headers,
        split=[
            Target(each.backend, each.percent, _rewrite(each.rewrite or route.rewrite))
            for each in route.split
        ],
        split_by=route.split_by or "",
        fallback=route.fallback,
        mirror=_mirror(route),
    )


def _retry_policy(route: RouteConfig) -> RetryPolicy:
    return RetryPolicy(
        route.retry.times,
        route.idempotent,
        route.retry.per_try_timeout,
        None if route.hedge is None else route.hedge.after,
    )


def _mirror(route: RouteConfig) -> Mirror | None:
    mirror = route.mirror
    return None if mirror is None else Mirror(mirror.backend, mirror.percent, mirror.max_requests)


def limits(config: schema.Config, headers: int = 0) -> Limits:
    """The limits that codecs and transports keep. ``headers`` is what the protocols of a listener
    need of that limit, which they have where ``config`` says nothing of it."""
    told: dict[str, Any] = config.limits.model_dump(by_alias=True)
    if told["headers"] is None:
        told["headers"] = max(headers, DEFAULT_LIMITS.headers)
    if told["response_header"] is None:
        told["response_header"] = DEFAULT_LIMITS.response_header
    return Limits(**told)


def addresses(config: schema.Config) -> dict[str, Address]:
    """Where each listener that is on (``http``, ``grpc``, ``admin``) binds."""
    listeners = config.listeners
    on = {"http": listeners.http, "grpc": listeners.grpc, "admin": listeners.admin}
    return {name: each.address for name, each in on.items() if each is not None}


def server_tls(config: schema.Config) -> dict[str, ServerTls]:
    """The TLS of each listener that has any, by its path in the config."""
    listeners = config.listeners
    on: dict[str, ListenerTls | None] = {
        name: each.tls
        for name, each in (
            ("http", listeners.http),
            ("grpc", listeners.grpc),
            ("admin", listeners.admin),
        )
        if each is not None
    }
    on |= {f"graphpipe[{index}]": each.tls for index, each in enumerate(listeners.graphpipe)}
    return {name: ServerTls(**dict(each)) for name, each in on.items() if each is not None}


def client_tls(backend: schema.BackendConfig) -> ClientTls | None:
    """The TLS towards ``backend``; None: the system's."""
    return None if backend.tls is None else ClientTls(**dict(backend.tls))


@dataclass(frozen=True, slots=True)
class Bound:
    """A listener of one model. ``protocol`` is what its clients speak, ``options`` are those of its
    codec; ``framed``: in size-prefixed frames instead of HTTP."""

    address: Address
    protocol: str
    options: Mapping[str, Any]
    framed: bool
    accept_both_lengths: bool


def bound_listeners(config: schema.Config) -> dict[str, Bound]:
    """The listeners of one model, by their paths in the config."""
    return {
        f"graphpipe[{index}]": _bound(each) for index, each in enumerate(config.listeners.graphpipe)
    }


def _bound(listener: GraphPipeListener) -> Bound:
    framed = listener.framing == "size-prefixed"
    return Bound(
        replace(listener.address, mode=listener.mode),
        "graphpipe",
        {"model": listener.model, "errors": "response" if framed else listener.errors},
        framed,
        listener.accept_both_lengths,
    )


def frontend_options(config: schema.Config) -> dict[str, Mapping[str, Any]]:
    """The options of each frontend's codec (``CodecPlugin.make``) by protocol."""
    http, grpc = config.listeners.http, config.listeners.grpc
    options: dict[str, Mapping[str, Any]] = {}
    if http is not None:
        options["v2-rest"] = http.v2.model_dump()
        options["trtis-http"] = http.trtis.model_dump()
        options["graphpipe"] = http.graphpipe.model_dump()
    if grpc is not None:
        options["v2-grpc"] = grpc.v2.model_dump()
        options["trtis-grpc"] = grpc.trtis.model_dump()
    return options


def sharing_backends(config: schema.Config) -> tuple[str, ...]:
    """The backends that read clients' shared memory themselves."""
    if not config.control.shared_memory:
        return ()
    return tuple(name for name, each in config.backends.items() if each.shared_memory == "forward")


def endpoints(backend: schema.BackendConfig) -> tuple[Endpoint, ...]:
    """The servers of ``backend``, none for builtin."""
    return tuple(map(endpoint, backend.endpoints))


def endpoint(url: Url) -> Endpoint:
    """The server that ``url`` names."""
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
    """The metadata of each declared model, under its client's name."""
    return {
        name: ModelMetadata(
            name=name,
            versions=model.versions,
            platform=model.platform,
            inputs=tuple(map(_tensor, model.inputs)),
            outputs=tuple(map(_tensor, model.outputs)),
            properties={"max_batch_size": str(model.max_batch_size)},
            max_batch_size=model.max_batch_size,
        )
        for name, model in config.models.items()
    }


def _tensor(tensor: schema.TensorConfig) -> TensorMetadata:
    return TensorMetadata(tensor.name, tensor.datatype.value, tensor.shape)

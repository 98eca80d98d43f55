"""What is configured, as a picture needs it: listeners, routes, backends, endpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infergate.codecs.base import Carrier
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import BackendConfig, Config
from infergate.config.values import shown_urls
from infergate.routing.table import Route, Target
from infergate.transport.base import Address

Json = dict[str, Any]


def plan(config: Config, addresses: Mapping[str, Address]) -> Json:
    """``addresses`` are those that listeners really have, by the config's names."""
    routes = compiled.routing_table(config).routes
    return {
        "listeners": _listeners(config, addresses),
        "routes": [_route(index, each) for index, each in enumerate(routes)],
        "backends": [_backend(name, each) for name, each in config.backends.items()],
        "models": sorted({*config.models, *(r.pattern for r in routes if r.is_exact)}),
    }


def _listeners(config: Config, addresses: Mapping[str, Address]) -> list[Json]:
    tls = compiled.server_tls(config)
    bound = compiled.bound_listeners(config)
    models = {f"graphpipe[{i}]": each.model for i, each in enumerate(config.listeners.graphpipe)}
    speak = {
        "http": _protocols(Carrier.HTTP),
        "grpc": _protocols(Carrier.GRPC),
        **{name: [each.protocol] for name, each in bound.items()},
    }
    return [
        {
            "name": name,
            "address": str(address),
            "protocols": speak.get(name, []),
            "tls": name in tls,
            "model": models.get(name, ""),
            "framed": name in bound and bound[name].framed,
        }
        for name, address in addresses.items()
    ]


def _protocols(carrier: Carrier) -> list[str]:
    return sorted(name for name, each in plugins().items() if each.carrier is carrier)


def _route(index: int, route: Route) -> Json:
    return {
        "index": index,
        "label": route.label,
        "model": route.pattern,
        "version": route.version,
        "backend": route.backend,
        "split": [{"backend": t.backend, "percent": t.percent} for t in route.split],
        "fallback": route.fallback,
        "mirror": route.mirror.backend if route.mirror else "",
        "headers": sorted(route.headers),
        "rewrites": _rewrites(route),
        "timeout": route.timeout,
        "exact": route.is_exact,
    }


def _rewrites(route: Route) -> list[str]:
    told: list[str] = []
    targets: Iterable[Route | Target] = (route, *route.split)
    for to in (each.rewrite for each in targets):
        told += [f"model: {to.model}"] if to.model else []
        told += [f"version: {to.version}"] if to.version else []
        told += [f"input {ours}: {theirs}" for ours, theirs in to.inputs.items()]
        told += [f"output {ours}: {theirs}" for ours, theirs in to.outputs.items()]
    told += [f"cast {each.value}: {to.value}" for each, to in route.cast.items()]
    return list(dict.fromkeys(told))


def _backend(name: str, backend: BackendConfig) -> Json:
    return {
        "name": name,
        "protocol": backend.protocol,
        "profile": backend.profile,
        "timeout": backend.timeout,
        "balance": backend.balance.policy,
        "endpoints": shown_urls(backend.endpoints),
    }

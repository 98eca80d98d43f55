"""The configuration as JSON for the traffic graph: listeners, routes, backends and models. This
module has no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from infergate.config import compile as compiled
from infergate.config.schema import BackendConfig, Config
from infergate.config.values import display_names
from infergate.routing.table import Route, SplitTarget
from infergate.transport.base import Address

Json = dict[str, Any]


def plan(config: Config, addresses: Mapping[str, Address]) -> Json:
    """Return the JSON of ``/console/plan``. ``addresses`` are the bound addresses of listeners by
    name."""
    routes = compiled.routing_table(config).routes
    return {
        "listeners": _listeners(config, addresses),
        "routes": [_route(index, route) for index, route in enumerate(routes)],
        "backends": [_backend(name, backend) for name, backend in config.backends.items()],
        "models": sorted({*config.models, *(r.pattern for r in routes if r.is_exact)}),
    }


def _listeners(config: Config, addresses: Mapping[str, Address]) -> list[Json]:
    tls = compiled.server_tls(config)
    model_listeners = compiled.model_listeners(config)
    models = {
        f"graphpipe[{index}]": listener.model
        for index, listener in enumerate(config.listeners.graphpipe)
    }
    protocols = {
        **{name: sorted(names) for name, names in compiled.listener_protocols(config).items()},
        **{name: [listener.protocol] for name, listener in model_listeners.items()},
    }
    return [
        {
            "name": name,
            "address": str(address),
            "protocols": protocols.get(name, []),
            "envelopes": _envelopes(config, name, protocols.get(name, [])),
            "tls": name in tls,
            "model": models.get(name, ""),
            "framed": name in model_listeners and model_listeners[name].framed,
        }
        for name, address in addresses.items()
    ]


def _envelopes(config: Config, listener: str, protocols: Collection[str]) -> list[str]:
    """Return the protocol names that the metrics use for requests in the listener's envelopes,
    without the names in ``protocols``."""
    options = compiled.envelope_options(config, listener) if protocols else {}
    if not options:
        return []
    from infergate.codecs.envelopes import ENVELOPES  # noqa: PLC0415 - only if enabled

    return sorted({ENVELOPES[name](**each).name for name, each in options.items()} - {*protocols})


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
        "compared": bool(route.mirror and route.mirror.comparison),
        "headers": sorted(route.headers),
        "rewrites": _rewrites(route),
        "timeout": route.timeout,
        "exact": route.is_exact,
    }


def _rewrites(route: Route) -> list[str]:
    lines: list[str] = []
    targets: Iterable[Route | SplitTarget] = (route, *route.split)
    for rewrite in (target.rewrite for target in targets):
        lines += [f"model: {rewrite.model}"] if rewrite.model else []
        lines += [f"version: {rewrite.version}"] if rewrite.version else []
        lines += [f"input {name}: {renamed}" for name, renamed in rewrite.inputs.items()]
        lines += [f"output {name}: {renamed}" for name, renamed in rewrite.outputs.items()]
    lines += [f"cast {source.value}: {target.value}" for source, target in route.cast.items()]
    return list(dict.fromkeys(lines))


def _backend(name: str, backend: BackendConfig) -> Json:
    return {
        "name": name,
        "protocol": backend.protocol,
        "profile": backend.profile,
        "timeout": backend.timeout,
        "balance": backend.balance.policy,
        "endpoints": display_names(backend.endpoints),
    }

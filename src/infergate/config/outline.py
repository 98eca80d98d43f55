"""What the cross-checks look at: a whole Config, or what can be read of a broken one.

So that a file with a misspelt key still hears about its other mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from infergate.config.access import AccessConfig
from infergate.config.listeners import FRONTENDS, AdminListener, GraphPipeListener, Listeners
from infergate.config.mistakes import Path
from infergate.config.routes import RouteConfig, named_backends
from infergate.config.schema import BackendConfig, Config, ModelConfig
from infergate.config.section import Section
from infergate.transport.base import Address

AnySection = TypeVar("AnySection", bound=Section)
_TELLING: Final = frozenset({"address", "version"})
"""Keys whose default says something else than the value that could not be read."""
_LISTENERS: Final = {
    name: type(field.default)
    for name, field in Listeners.model_fields.items()
    if isinstance(field.default, Section)
}


@dataclass(frozen=True, slots=True)
class Outline:
    """The entries that can be read, each under the path step it has in the file."""

    listeners: Mapping[Path, Address]
    """Those that are on, each under its path below ``listeners``."""
    bound: Mapping[int, str]
    """The model of each listener that has one."""
    backends: Mapping[str, BackendConfig | None] | None
    """None for a backend that cannot be read; None for all where there is no mapping of them."""
    routes: Mapping[int, RouteConfig]
    models: Mapping[str, ModelConfig | None]
    used: frozenset[str] | None
    """The backends that routes name; None where a route may name one that cannot be read."""
    has_frontend: bool
    """False where it is certain that no listener takes requests."""
    has_all_routes: bool
    """False where a route cannot be read, which might match what no other does."""
    access: AccessConfig | None
    """None also where it cannot be read."""
    has_workers: bool = False
    """Whether several processes serve."""
    shares_memory: bool = False
    acts_openly: bool = False
    """Whether the console acts for whoever reaches it."""
    allows_slash: bool = False
    """Whether the names of models may contain "/"."""


def outline_of(config: Config) -> Outline:
    """All of a Config."""
    listeners = {name: getattr(config.listeners, name) for name in _LISTENERS}
    bound = dict(enumerate(config.listeners.graphpipe))
    return Outline(
        listeners=_addresses(listeners, bound),
        bound={index: each.model for index, each in bound.items()},
        backends=config.backends,
        routes=dict(enumerate(config.routes)),
        models=config.models,
        used=frozenset(name for route in config.routes for _, name in named_backends(route)),
        has_frontend=bool(bound) or any(listeners[name] is not None for name in FRONTENDS),
        has_all_routes=True,
        access=config.access,
        has_workers=config.workers > 1,
        shares_memory=config.control.shared_memory,
        acts_openly=_acts_openly(config.listeners.admin),
        allows_slash=config.allow_slash_in_model_names,
    )


def salvage(data: Any) -> Outline:
    """What can be read of ``data`` that is not a Config."""
    top = data if isinstance(data, dict) else {}
    given = _mapping(top.get("listeners"))
    listeners = {name: _read(section, given.get(name, {})) for name, section in _LISTENERS.items()}
    bound = _entries(given.get("graphpipe"))
    read_bound = {index: _read(GraphPipeListener, entry) for index, entry in bound.items()}
    entries = _entries(top.get("routes"))
    read = {index: _read(RouteConfig, entry) for index, entry in entries.items()}
    backends = top.get("backends")
    return Outline(
        listeners=_addresses(listeners, read_bound),
        bound={index: each.model for index, each in read_bound.items() if each is not None},
        backends={name: _read(BackendConfig, each) for name, each in backends.items()}
        if isinstance(backends, dict) and backends
        else None,
        routes={index: route for index, route in read.items() if route is not None},
        models={
            name: _read(ModelConfig, each) for name, each in _mapping(top.get("models")).items()
        },
        used=_used(list(entries.values())),
        has_frontend=bool(bound)
        or not all(name in given and given[name] is None for name in FRONTENDS),
        has_all_routes=bool(entries) and None not in read.values(),
        access=_whole(AccessConfig, top.get("access")),
        has_workers=top.get("workers", 1) != 1,
        shares_memory=_mapping(top.get("control")).get("shared_memory") is True,
        acts_openly=_acts_openly(_read(AdminListener, given.get("admin", {}))),
        allows_slash=top.get("allow_slash_in_model_names") is True,
    )


def _acts_openly(admin: AdminListener | None) -> bool:
    return admin is not None and admin.actions and not admin.keys


def _addresses(
    named: Mapping[str, Any], bound: Mapping[int, GraphPipeListener | None]
) -> dict[Path, Address]:
    found: dict[Path, Address] = {
        (name,): each.address for name, each in named.items() if each is not None
    }
    for index, listener in bound.items():
        if listener is not None:
            found["graphpipe", index] = listener.address
    return found


def _entries(value: Any) -> dict[int, Any]:
    return dict(enumerate(value)) if isinstance(value, tuple) else {}


def _used(routes: list[Any]) -> frozenset[str] | None:
    told = [_mapping(route).get("backend") for route in routes]
    for route in map(_mapping, routes):
        told += [_mapping(each).get("backend") for each in _entries(route.get("split")).values()]
        told += [_mapping(route["mirror"]).get("backend")] if "mirror" in route else []
        told += [route["fallback"]] if "fallback" in route else []
    return frozenset(map(str, told)) if told and None not in told else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(section: type[AnySection], data: Any) -> AnySection | None:
    """``data`` as a ``section``; None where anything of it is wrong."""
    try:
        return section.model_validate(data)
    except ValidationError:
        return None


def _read(section: type[AnySection], data: Any) -> AnySection | None:
    """``data`` as a ``section``, if need be without keys that are wrong and matter to no check."""
    try:
        return section.model_validate(data)
    except ValidationError as error:
        wrong = {details["loc"][0] for details in error.errors() if details["loc"]}
    if not isinstance(data, dict) or wrong & _TELLING:
        return None
    try:
        return section.model_validate({k: v for k, v in data.items() if k not in wrong})
    except ValidationError:
        return None

"""What the cross-checks look at: a whole Config, or what can be read of a broken one.

So that a file with a misspelt key still hears about its other mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from infergate.config.schema import (
    FRONTENDS,
    BackendConfig,
    Config,
    Listeners,
    ModelConfig,
    RouteConfig,
    Section,
)
from infergate.transport.base import Address

AnySection = TypeVar("AnySection", bound=Section)
_TELLING: Final = frozenset({"address", "version"})
"""Keys whose default says something else than the value that could not be read."""
_LISTENERS: Final = {name: type(field.default) for name, field in Listeners.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Outline:
    """The entries that can be read, each under the path step it has in the file."""

    listeners: Mapping[str, Address]
    """Those that are on."""
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


def outline_of(config: Config) -> Outline:
    """All of a Config."""
    listeners = {name: getattr(config.listeners, name) for name in Listeners.model_fields}
    return Outline(
        listeners={name: each.address for name, each in listeners.items() if each is not None},
        backends=config.backends,
        routes=dict(enumerate(config.routes)),
        models=config.models,
        used=frozenset(route.backend for route in config.routes),
        has_frontend=any(listeners[name] is not None for name in FRONTENDS),
        has_all_routes=True,
    )


def salvage(data: Any) -> Outline:
    """What can be read of ``data`` that is not a Config."""
    top = data if isinstance(data, dict) else {}
    given = _mapping(top.get("listeners"))
    listeners = {name: _read(section, given.get(name, {})) for name, section in _LISTENERS.items()}
    routes = top.get("routes")
    entries = dict(enumerate(routes)) if isinstance(routes, tuple) else {}
    read = {index: _read(RouteConfig, entry) for index, entry in entries.items()}
    backends = top.get("backends")
    return Outline(
        listeners={name: each.address for name, each in listeners.items() if each is not None},
        backends={name: _read(BackendConfig, each) for name, each in backends.items()}
        if isinstance(backends, dict) and backends
        else None,
        routes={index: route for index, route in read.items() if route is not None},
        models={
            name: _read(ModelConfig, each) for name, each in _mapping(top.get("models")).items()
        },
        used=_used(list(entries.values())),
        has_frontend=not all(name in given and given[name] is None for name in FRONTENDS),
        has_all_routes=bool(entries) and None not in read.values(),
    )


def _used(routes: list[Any]) -> frozenset[str] | None:
    named = [_mapping(route).get("backend") for route in routes]
    return frozenset(map(str, named)) if named and None not in named else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


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

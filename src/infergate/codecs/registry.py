"""Finds the plug-ins of all installed codecs by their entry points, and assigns claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from infergate.codecs.base import CodecPlugin

T = TypeVar("T")
ENTRY_POINT_GROUP = "infergate.codecs"


def plugins() -> dict[str, CodecPlugin]:
    """Return the plug-ins of all installed codecs, by protocol name. Raises RuntimeError if two
    plug-ins have the same name."""
    return _installed()[0]


def broken_plugins() -> dict[str, str]:
    """Return the reasons why entry points cannot be used, by entry point name. A broken package
    does not prevent the gateway from serving other protocols."""
    return _installed()[1]


@cache
def _installed() -> tuple[dict[str, CodecPlugin], dict[str, str]]:
    plugins_by_name: dict[str, CodecPlugin] = {}
    broken: dict[str, str] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            plugin: Any = entry.load()
        except Exception as error:  # noqa: BLE001 - a plug-in's module may raise anything
            broken[entry.name] = f"importing {entry.value} failed: {type(error).__name__}: {error}"
            continue
        if not isinstance(plugin, CodecPlugin):
            broken[entry.name] = f"{entry.value} is not a CodecPlugin"
            continue
        if plugin.name in plugins_by_name:
            raise RuntimeError(f"two codecs are installed for protocol '{plugin.name}'")
        plugins_by_name[plugin.name] = plugin
    return plugins_by_name, broken


def by_claim(protocols: Iterable[str], make: Callable[[str], T]) -> dict[str, T]:
    """Return ``make(protocol)`` by claim, for each claim of ``protocols``. If several protocols
    have the same claim, the first protocol gets the claim."""
    results: dict[str, T] = {}
    for name in protocols:
        for claim in plugins()[name].claims:
            if claim not in results:
                results[claim] = make(name)
    return results

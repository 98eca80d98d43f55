"""The registry of installed codecs. It finds the plugin of each protocol by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from infergate.codecs.base import CodecPlugin

T = TypeVar("T")
ENTRY_POINT_GROUP = "infergate.codecs"


@cache
def plugins() -> dict[str, CodecPlugin]:
    """Return all installed protocols by name. Raises RuntimeError for a duplicate protocol."""
    plugins_by_name: dict[str, CodecPlugin] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        plugin: CodecPlugin = entry.load()
        if plugin.name in plugins_by_name:
            raise RuntimeError(f"two codecs are installed for protocol '{plugin.name}'")
        plugins_by_name[plugin.name] = plugin
    return plugins_by_name


def by_claim(protocols: Iterable[str], make: Callable[[str], T]) -> dict[str, T]:
    """Return ``make(protocol)`` for each claim of ``protocols``. If several protocols have a claim,
    it belongs to the first of them."""
    made: dict[str, T] = {}
    for name in protocols:
        for claim in plugins()[name].claims:
            if claim not in made:
                made[claim] = make(name)
    return made

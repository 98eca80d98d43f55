"""The registry of installed codecs. It finds the plugin of each protocol by its entry point."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points

from infergate.codecs.base import CodecPlugin, TransportKind

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


def plugins_by_claim(kind: TransportKind, preferred: Collection[str]) -> dict[str, CodecPlugin]:
    """Return the plugin that serves each claim on a shared listener. Claims of the fallback come
    first.

    If two protocols claim the same path, ``preferred`` must contain the name of one of them, which
    then serves the claim. Raises ValueError if ``preferred`` contains neither or both names, or the
    name of a protocol that is not installed.
    """
    installed = plugins()
    for name in preferred:
        if name not in installed:
            raise ValueError(f"protocol '{name}' is not installed")
    owners: dict[str, CodecPlugin] = {}
    for plugin in sorted(installed.values(), key=lambda plugin: not plugin.is_fallback):
        for claim in plugin.claims if plugin.transport_kind is kind else ():
            owner = owners.setdefault(claim, plugin)
            if owner is plugin:
                continue
            if (owner.name in preferred) == (plugin.name in preferred):
                raise ValueError(f"'{owner.name}' and '{plugin.name}' both claim '{claim}'")
            if plugin.name in preferred:
                owners[claim] = plugin
    return owners

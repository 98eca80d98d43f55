"""Protocol name → codec plugin. The only place that knows which protocols there are."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from infergate.codecs.base import CodecPlugin

GROUP = "infergate.codecs"


@cache
def plugins() -> dict[str, CodecPlugin]:
    """All installed protocols by name. A name claimed twice is a packaging error and raises."""
    found: dict[str, CodecPlugin] = {}
    for entry in entry_points(group=GROUP):
        plugin: CodecPlugin = entry.load()
        if plugin.name in found:
            raise RuntimeError(f"two codecs are installed for protocol '{plugin.name}'")
        found[plugin.name] = plugin
    return found

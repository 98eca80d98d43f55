"""Which protocols a backend may speak in this version: the codec registry's, and builtin."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Carrier
from infergate.codecs.registry import plugins
from infergate.config.mistakes import or_else

BUILTIN: Final = "builtin"
"""The models inside this process: no codec, no endpoint."""
ANNOUNCED: Final = frozenset({"graphpipe"})
"""Agreed names whose codecs come with a later version."""
SCHEMES: Final = {Carrier.HTTP: ("http", "https"), Carrier.GRPC: ("grpc", "grpcs")}
TLS_SCHEMES: Final = frozenset({"https", "grpcs"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""gRPC has no port of its own."""


def carriers() -> dict[str, Carrier | None]:
    """Every protocol of this version with what carries it; None: nothing, it is in-process."""
    return {BUILTIN: None} | {name: plugin.carrier for name, plugin in plugins().items()}


def parse_protocol(name: str) -> str:
    """``name`` where it is a protocol of this version. Raises ValueError."""
    known = carriers()
    if name in known:
        return name
    if name in ANNOUNCED - known.keys():
        there_are = ", ".join(sorted(known))
        raise ValueError(f"protocol '{name}' is not in this version; there are: {there_are}")
    raise ValueError(f"'{name}' is not a protocol{or_else(name, known)}")

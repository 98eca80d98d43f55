"""Which protocols a backend may speak in this version: the codec registry's, and builtin."""

from __future__ import annotations

from typing import Final

from infergate.codecs.base import Carrier
from infergate.codecs.registry import plugins
from infergate.config.mistakes import or_else

BUILTIN: Final = "builtin"
"""The models inside this process: no codec, no endpoint."""
UNIX_HTTP: Final = "http+unix"
UNIX: Final = "unix"
SCHEMES: Final = {Carrier.HTTP: ("http", "https", UNIX_HTTP), Carrier.GRPC: ("grpc", "grpcs")}
FRAMED_SCHEMES: Final = ("tcp", UNIX)
"""What size-prefixed frames go over, for protocols that fit into them."""
UNIX_SCHEMES: Final = frozenset({UNIX, UNIX_HTTP})
TLS_SCHEMES: Final = frozenset({"https", "grpcs"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""gRPC and raw sockets have no port of their own."""


def carriers() -> dict[str, Carrier | None]:
    """Every protocol of this version with what carries it; None: nothing, it is in-process."""
    return {BUILTIN: None} | {name: plugin.carrier for name, plugin in plugins().items()}


def sharing() -> list[str]:
    """The protocols whose servers may read shared memory themselves."""
    return [name for name, plugin in plugins().items() if plugin.shares_memory]


def schemes(protocol: str) -> tuple[str, ...]:
    """What the endpoints of a backend that speaks ``protocol`` may begin with; none: in-process."""
    plugin = plugins().get(protocol)
    if plugin is None:
        return ()
    return SCHEMES[plugin.carrier] + (FRAMED_SCHEMES if plugin.framed else ())


def parse_protocol(name: str) -> str:
    """``name`` where it is a protocol of this version. Raises ValueError."""
    known = carriers()
    if name in known:
        return name
    raise ValueError(f"'{name}' is not a protocol{or_else(name, known)}")

"""The protocols of backends: ``builtin``, ``python``, and the protocol of each installed codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infergate.codecs.base import CodecPlugin, TransportKind
from infergate.codecs.registry import plugins

BUILTIN: Final = "builtin"
"""The protocol of the embedded models, which have no codec and no endpoints."""
PYTHON: Final = "python"
"""The protocol of Python models, which also have no codec and no endpoints."""
IN_PROCESS: Final = (BUILTIN, PYTHON)
UNIX_HTTP: Final = "http+unix"
UNIX: Final = "unix"
SCHEMES: Final = {
    TransportKind.HTTP: ("http", "https", UNIX_HTTP),
    TransportKind.GRPC: ("grpc", "grpcs"),
}
FRAMED_SCHEMES: Final = ("tcp", UNIX)
"""Schemes of raw sockets. Protocols that support framing send size-prefixed messages over them."""
UNIX_SCHEMES: Final = frozenset({UNIX, UNIX_HTTP})
TLS_SCHEMES: Final = frozenset({"https", "grpcs"})
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""Default ports by scheme. The schemes of gRPC and raw sockets have no default port."""


def codec_plugins() -> Mapping[str, CodecPlugin]:
    """Return the plug-ins of all installed codecs, by protocol."""
    return plugins()


def transport_kinds() -> dict[str, TransportKind | None]:
    """Return the transport kind of every protocol, or None for the protocols in ``IN_PROCESS``."""
    return dict.fromkeys(IN_PROCESS) | {
        name: plugin.transport_kind for name, plugin in plugins().items()
    }


def of_transport(kind: TransportKind, preferred: str = "") -> tuple[str, ...]:
    """Return the protocols that use the transport ``kind``. The protocol that responds to requests
    for unknown paths comes first, then the ``preferred`` protocol."""
    matching = [plugin for plugin in plugins().values() if plugin.transport_kind is kind]
    matching.sort(key=lambda plugin: (not plugin.is_fallback, plugin.name != preferred))
    return tuple(plugin.name for plugin in matching)


def shared_memory_protocols() -> list[str]:
    """Return the protocols whose servers can access shared memory, in alphabetical order."""
    return sorted(name for name, plugin in plugins().items() if plugin.supports_shared_memory)


def schemes(protocol: str) -> tuple[str, ...]:
    """Return the URL schemes that endpoints of ``protocol`` may have. The result is empty for
    the protocols in ``IN_PROCESS``, which have no endpoints."""
    plugin = plugins().get(protocol)
    if plugin is None:
        return ()
    return SCHEMES[plugin.transport_kind] + (FRAMED_SCHEMES if plugin.supports_framing else ())

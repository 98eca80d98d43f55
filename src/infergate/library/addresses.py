"""The addresses of a running gateway's listeners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from infergate.codecs.base import TransportKind
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.transport.base import Address

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared
_ADMIN: Final = "admin"


@dataclass(frozen=True, slots=True)
class ListenerAddress(Address):
    """The bound address of a listener: ``host`` and ``port``, or the socket file ``unix``. ``str``
    returns ``host:port`` or ``unix:/path``. ``scheme`` is the scheme of ``url``."""

    scheme: str = "http"

    @property
    def url(self) -> str:
        """A URL that reaches the listener from this machine: ``http://``, ``https://``,
        ``grpc://``, ``grpcs://`` or, for size-prefixed GraphPipe, ``tcp://``. For a socket file,
        the URL is ``http+unix:/path`` or ``unix:/path``. The URL can be the address of a backend in
        another gateway's configuration."""
        if self.unix:
            return f"{'http+unix' if self.scheme == 'http' else 'unix'}:{self.unix}"
        local = Address(_LOOPBACK.get(self.host, self.host), self.port)
        return f"{self.scheme}://{local}"


def listener_addresses(
    config: Config, bound: Mapping[str, Address]
) -> Mapping[str, ListenerAddress]:
    """Return the listeners of ``config`` by name, with their addresses from ``bound``."""
    tls = compiled.server_tls(config)
    return {
        name: ListenerAddress(
            address.host, address.port, address.unix, address.mode, scheme + "s" * (name in tls)
        )
        for name, address in bound.items()
        for scheme in (_scheme(config, name),)
    }


def _scheme(config: Config, name: str) -> str:
    per_model = compiled.model_listeners(config).get(name)
    if per_model is not None:
        return "tcp" if per_model.framed else "http"
    if name == _ADMIN:
        return "http"
    protocol = compiled.listener_protocols(config)[name][0]
    is_http = plugins()[protocol].transport_kind is TransportKind.HTTP
    return "http" if is_http else "grpc"

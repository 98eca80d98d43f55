"""TLS for a grpcio listener. grpcio accepts every client with a valid certificate, so the names
in the certificate are checked for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from infergate.core.errors import GatewayError, Kind
from infergate.transport.tls.server_context import ServerTlsContext

_SAN_KEYS: Final = ("peer_uri", "peer_dns", "peer_email", "peer_ip")
"""The keys of grpcio's authentication context, in the order in which names are reported."""


def bind_port(server: Any, address: str, certificates: ServerTlsContext | None) -> int:
    """Make `server` listen on `address`. Return the bound port. Raises RuntimeError."""
    if certificates is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, _credentials(certificates)))


def identity_reader(certificates: ServerTlsContext | None) -> Callable[[Any], tuple[str, ...]]:
    """Return a function that reads `RequestContext.peer_identity` from a servicer context. The
    function raises UNAUTHENTICATED if no name is allowed."""
    if certificates is None or certificates.settings.client_certificates == "none":
        return lambda _: ()

    def read(context: Any) -> tuple[str, ...]:
        sans = context.auth_context()
        names = tuple(
            san.decode("utf-8", "replace") for key in _SAN_KEYS for san in sans.get(key, ())
        )
        if not certificates.san_matcher.matches(names):
            public = "no name in the client's certificate is allowed"
            raise GatewayError(Kind.UNAUTHENTICATED, public)
        return names

    return read


def _credentials(certificates: ServerTlsContext) -> Any:
    loaded_generation = certificates.generation

    def renew() -> Any:
        """Return new certificates, or None if they are unchanged. grpcio calls this for each
        handshake."""
        nonlocal loaded_generation
        certificates.reload_if_changed()
        if loaded_generation == certificates.generation:
            return None
        configuration = _configuration(certificates)  # after a failure, the next handshake retries
        loaded_generation = certificates.generation
        return configuration

    return grpc.dynamic_ssl_server_credentials(
        _configuration(certificates),
        renew,
        require_client_authentication=certificates.settings.client_certificates == "required",
    )


def _configuration(certificates: ServerTlsContext) -> Any:
    settings = certificates.settings
    pair = (settings.key.read_bytes(), settings.certificate.read_bytes())
    authorities = None if settings.client_ca is None else settings.client_ca.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], authorities)

"""TLS of a listener over grpcio.

*Rule.* The library can require certificates or not ask for them, and speaks 1.2 and 1.3: what else
a listener may want is for the own engine (the configuration says so). It lets in whoever has a good
certificate; each call of one whose names are not allowed is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from infergate.core.errors import GatewayError, Kind
from infergate.transport.tls_server import ServerCertificates


def listen(server: Any, address: str, certificates: ServerCertificates | None) -> int:
    """Have ``server`` listen on ``address``; the port it has then. Raises RuntimeError."""
    if certificates is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, _credentials(certificates)))


def reader(certificates: ServerCertificates | None) -> Callable[[Any], tuple[str, ...]]:
    """What tells of a call's context the names of its client (see Call.peer_identity). That raises
    UNAUTHENTICATED where none of them is allowed."""
    if certificates is None or certificates.settings.client_certificates == "none":
        return lambda _: ()

    def read(context: Any) -> tuple[str, ...]:
        told = context.auth_context().get("x509_subject_alternative_name", ())
        names = sorted((each.decode("utf-8", "replace") for each in told), key=_is_no_uri)
        if not certificates.allowed.lets_in(names):
            raise GatewayError(
                Kind.UNAUTHENTICATED, "the client's certificate is for no name that is allowed"
            )
        return tuple(names)

    return read


def _is_no_uri(name: str) -> bool:
    return "://" not in name


def _credentials(certificates: ServerCertificates) -> Any:
    shown = certificates.generation

    def renewed() -> Any:
        """Called for each handshake; None: what was shown before."""
        nonlocal shown
        certificates.refresh()
        if shown == certificates.generation:
            return None
        made = _configuration(certificates)  # where that fails, the next handshake tries again
        shown = certificates.generation
        return made

    return grpc.dynamic_ssl_server_credentials(
        _configuration(certificates),
        renewed,
        require_client_authentication=certificates.settings.client_certificates == "required",
    )


def _configuration(certificates: ServerCertificates) -> Any:
    of = certificates.settings
    pair = (of.key.read_bytes(), of.certificate.read_bytes())
    authorities = None if of.client_ca is None else of.client_ca.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], authorities)

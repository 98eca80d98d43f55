"""The addresses that ``infergate probe`` examines, and the checks of their ports."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from infergate.codecs.base import TransportKind
from infergate.codecs.registry import plugins
from infergate.config import protocols
from infergate.config.mistakes import suggestion
from infergate.config.values import Url, parse_url
from infergate.core.tls_settings import ClientTls
from infergate.transport.tls.certificates import CertificateError
from infergate.transport.tls.client_context import ClientTlsContext

_SCHEMES: Final = ("http", "https", "grpc", "grpcs", "tcp", "unix", "http+unix")
_TLS_SCHEMES: Final = {TransportKind.HTTP: "https", TransportKind.GRPC: "grpcs"}
_PLAIN_SCHEMES: Final = {TransportKind.HTTP: "http", TransportKind.GRPC: "grpc"}
_FRAMES: Final = "tcp"
_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH})


@dataclass(frozen=True, slots=True)
class PortProblem:
    """The reason why an address cannot be probed, and advice."""

    reason: str
    advice: str


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """An address from the operator. ``url.scheme`` is empty if the address is only ``host:port``;
    the server may then speak any protocol."""

    text: str
    url: Url

    @property
    def port(self) -> int:
        """The TCP port, or 0 for a Unix socket."""
        if not self.url.host:
            return 0
        return self.url.port or protocols.DEFAULT_PORTS[self.url.scheme]

    @property
    def is_tls(self) -> bool:
        return self.url.scheme in protocols.TLS_SCHEMES

    def candidates(self, *, tls: bool) -> Iterator[list[tuple[str, Url]]]:
        """Yield groups of protocols, each protocol with the URL to try. A group is tried only if no
        protocol of the previous groups was detected. The protocols of the URL's scheme come first.
        Framed protocols come last unless the scheme is ``tcp``, because an HTTP server that
        receives a frame waits for more bytes until the timeout. With ``tls``, framed protocols are
        tried only for the scheme ``tcp``. For a Unix socket, the only group is the protocols of the
        scheme."""
        scheme = self.url.scheme
        if not self.url.host:
            yield [(name, self.url) for name in plugins() if scheme in protocols.schemes(name)]
            return
        schemes = _TLS_SCHEMES if tls else _PLAIN_SCHEMES
        first = [kind for kind, name in schemes.items() if name == scheme]
        others = [kind for kind in schemes if kind not in first]
        if scheme == _FRAMES:
            yield self._framed_protocols()
        for kinds in (first, others):
            if group := [
                (name, self._with_scheme(schemes[plugin.transport_kind]))
                for name, plugin in plugins().items()
                if plugin.transport_kind in kinds
            ]:
                yield group
        if not tls and scheme != _FRAMES:
            yield self._framed_protocols()

    def _framed_protocols(self) -> list[tuple[str, Url]]:
        url = self._with_scheme(_FRAMES)
        return [(name, url) for name, plugin in plugins().items() if plugin.supports_framing]

    def _with_scheme(self, scheme: str) -> Url:
        path = self.url.path if scheme in protocols.DEFAULT_PORTS else ""
        return Url(scheme, self.url.host, self.port, path)


def parse_target(text: str) -> ProbeTarget:
    """Parse a URL or ``host:port``. Raises ValueError."""
    is_bare = "://" not in text and not text.startswith(("unix:", "http+unix:"))
    url = parse_url(f"tcp://{text}" if is_bare else text)
    if url.scheme not in _SCHEMES:
        raise ValueError(
            f"'{url.scheme}' is not a supported scheme{suggestion(url.scheme, _SCHEMES)}"
        )
    if url.host and not url.port and url.scheme not in protocols.DEFAULT_PORTS:
        raise ValueError(f"'{text}' needs a port, like {text}:8000")
    if is_bare and url.path:
        raise ValueError(f"'{text}': a path needs a scheme, like http://{text}")
    return ProbeTarget(text, Url("", url.host, url.port) if is_bare else url)


async def port_problem(target: ProbeTarget, timeout: float) -> PortProblem | None:
    """Connect to ``target`` once and disconnect. Return the problem, or None if ``target`` accepts
    connections."""
    try:
        async with asyncio.timeout(timeout):
            with closing(await _connect(target, None)):
                return None
    # TimeoutError is an OSError. UnicodeError means that the host name is invalid.
    except (OSError, UnicodeError) as error:
        return _connect_problem(target, error, timeout)


async def _connect(target: ProbeTarget, context: ssl.SSLContext | None) -> asyncio.StreamWriter:
    host, port = target.url.host, target.port
    if not host:
        return (await asyncio.open_unix_connection(target.url.path))[1]
    name = host if context else None
    return (await asyncio.open_connection(host, port, ssl=context, server_hostname=name))[1]


def _connect_problem(
    target: ProbeTarget, error: OSError | UnicodeError, timeout: float
) -> PortProblem:
    if isinstance(error, TimeoutError):
        return PortProblem(
            f"no connection within {timeout:g} s",
            "a firewall may drop the packets; check the host and the port, or raise --timeout",
        )
    if isinstance(error, socket.gaierror | UnicodeError):
        return PortProblem(
            f"the name '{target.url.host}' cannot be resolved",
            "check the spelling, or use the IP address",
        )
    if isinstance(error, ConnectionRefusedError):
        return PortProblem(
            "connection refused: the port is closed",
            "check that the server runs and listens on this port (Triton: 8000 HTTP, 8001 gRPC; "
            "TensorFlow Serving: 8501 REST, 8500 gRPC) and on this interface",
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = "check the network and the address"
    if isinstance(error, FileNotFoundError | PermissionError):
        advice = "check the path of the socket and its permissions"
    elif error.errno not in _UNREACHABLE:
        advice = "check the address"
    return PortProblem(reason.lower(), advice)


async def tls_problem(target: ProbeTarget, tls: ClientTls, timeout: float) -> PortProblem | None:
    """Complete a TLS handshake with ``target``, configured by ``tls``. Return the problem, or None
    if the server is trusted."""
    try:
        context = ClientTlsContext(tls).context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with asyncio.timeout(timeout):
            with closing(await _connect(target, context)):
                return None
    except CertificateError as error:
        return PortProblem(str(error), "check --ca")
    except ssl.SSLCertVerificationError as error:
        return PortProblem(
            f"the certificate is not trusted: {error.verify_message}",
            "pass the authority's certificate (--ca FILE) or, for a test, --insecure",
        )
    except OSError as error:  # SSLError and TimeoutError are OSErrors
        plain = "grpc" if target.url.scheme == "grpcs" else "http"
        return PortProblem(
            f"no TLS handshake: {getattr(error, 'reason', None) or error or 'no answer'}",
            f"if the port does not use TLS: {plain}://{target.url.host}:{target.port}; the server "
            "may also require a client certificate, which probe cannot present",
        )

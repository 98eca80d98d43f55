"""TLS to backends: one store of trusted certificates for HTTP and gRPC.

*Rule 1.* Trusted is, where a backend has no authorities of its own, whom OpenSSL trusts by default
on this machine: the file and the directory of its build, or those that SSL_CERT_FILE and
SSL_CERT_DIR name. grpcio would ask its own bundled list.
*Rule 2.* Files that have changed are taken anew by the next connection; those that cannot be used
change nothing.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from infergate.core.certificates import ClientTls
from infergate.core.vocabulary import CERTIFICATE_REFUSED
from infergate.transport.tls_certificates import (
    CERTIFICATE_PATTERN,
    CIPHERS,
    CertificateError,
    load_authorities,
    load_certificate_chain,
)
from infergate.transport.tls_files import Watch

log = logging.getLogger(__name__)

NO_TLS: Final = "no TLS connection to the backend could be made"
"""Told to the client where the server is not trusted or does not speak TLS."""
NO_HTTP2: Final = "the backend does not speak HTTP/2 over TLS (ALPN h2)"
"""Told to the client where the server's TLS does not agree on it."""

_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""The files that OpenSSL looks for in a directory (openssl-rehash)."""


class Trust:
    """Whom a backend's connections trust, what they show, and by which name they ask for it."""

    def __init__(self, settings: ClientTls | None, protocol: str = "http/1.1") -> None:
        """``protocol`` is what they are to speak (ALPN). Raises CertificateError."""
        self._settings: Final = settings or ClientTls()
        self._protocol: Final = protocol
        of = self._settings
        self._watch: Final = Watch((of.ca, of.certificate, of.key))
        self._context = self._load()

    def name(self, host: str) -> str:
        """What the certificate of ``host`` has to be for."""
        return self._settings.server_name or host

    def context(self) -> ssl.SSLContext:
        """For the next connection: certificate and host name are checked."""
        if self._watch.has_changed():
            try:
                self._context = self._load()
            except CertificateError as error:
                log.error(  # noqa: TRY400
                    "the certificates from before are kept: %s", error, extra=CERTIFICATE_REFUSED
                )
        return self._context

    def _load(self) -> ssl.SSLContext:
        of = self._settings
        if of.ca is None:
            made = ssl.create_default_context()
        else:
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load_authorities(made, of.ca)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.set_ciphers(CIPHERS)
        made.set_alpn_protocols([self._protocol])
        if of.certificate is not None and of.key is not None:
            load_certificate_chain(made, of.certificate, of.key)
        return made


def authorities() -> bytes:
    """The certificates that are trusted by Rule 1, in PEM; empty where there are none."""
    found: dict[bytes, None] = {}
    for path in _files():
        try:
            found.update(dict.fromkeys(CERTIFICATE_PATTERN.findall(path.read_bytes())))
        except OSError:  # missing or not for us to read: OpenSSL passes over it as well
            continue
    return b"\n".join(found)


def _files() -> Iterator[Path]:
    built = ssl.get_default_verify_paths()
    yield Path(os.environ.get(built.openssl_cafile_env, built.openssl_cafile))
    directories = os.environ.get(built.openssl_capath_env, built.openssl_capath)
    for directory in filter(os.path.isdir, directories.split(os.pathsep)):
        for path in sorted(Path(directory).iterdir()):
            if _HASHED.fullmatch(path.name):
                yield path

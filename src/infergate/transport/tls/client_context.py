"""TLS to backends, for HTTP and gRPC. A backend without configured authorities is verified against
OpenSSL's default authorities on this machine, which SSL_CERT_FILE and SSL_CERT_DIR replace. Changed
files are loaded for the next connection. If they are unusable, the previous certificates remain."""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from infergate.core.log_events import CERTIFICATE_REFUSED
from infergate.core.tls_settings import ClientTls
from infergate.transport.tls import certificates
from infergate.transport.tls.file_watch import FileWatch

log = logging.getLogger(__name__)

NO_TLS: Final = "no TLS connection to the backend could be made"
"""The error text for clients if the backend is not trusted or does not speak TLS."""
NO_HTTP2: Final = "the backend does not speak HTTP/2 over TLS (ALPN h2)"
"""The error text for clients if the backend does not select HTTP/2."""

_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")
"""Matches the file names that OpenSSL looks up in a directory (openssl-rehash)."""


class ClientTlsContext:
    """The TLS settings of connections to one backend."""

    def __init__(self, settings: ClientTls | None, protocol: str = "http/1.1") -> None:
        """``protocol`` is offered in ALPN. Raises CertificateError."""
        self._settings: Final = settings or ClientTls()
        self._protocol: Final = protocol
        tls = self._settings
        self._watch: Final = FileWatch((tls.ca, tls.certificate, tls.key))
        self._context = self._load()

    def server_name(self, host: str) -> str:
        """Return the name for which the certificate of ``host`` must be valid."""
        return self._settings.server_name or host

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection. Changed files are loaded first."""
        if self._watch.has_changed():
            try:
                self._context = self._load()
            except certificates.CertificateError as error:
                text = "keeping the previous certificates: %s"
                log.error(text, error, extra=CERTIFICATE_REFUSED)  # noqa: TRY400
        return self._context

    def _load(self) -> ssl.SSLContext:
        tls = self._settings
        if tls.ca is None:
            context = ssl.create_default_context()
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            certificates.load_authorities(context, tls.ca)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(certificates.CIPHERS)
        context.set_alpn_protocols([self._protocol])
        if tls.certificate is not None and tls.key is not None:
            certificates.load_certificate_chain(context, tls.certificate, tls.key)
        return context


def default_authorities() -> bytes:
    """Return OpenSSL's default authorities in PEM, or empty bytes if there are none."""
    authorities: dict[bytes, None] = {}
    for path in _default_files():
        with suppress(OSError):  # the file is missing or unreadable; OpenSSL also skips it
            file_certificates = certificates.CERTIFICATE_PATTERN.findall(path.read_bytes())
            authorities.update(dict.fromkeys(file_certificates))
    return b"\n".join(authorities)


def _default_files() -> Iterator[Path]:
    defaults = ssl.get_default_verify_paths()
    yield Path(os.environ.get(defaults.openssl_cafile_env, defaults.openssl_cafile))
    directories = os.environ.get(defaults.openssl_capath_env, defaults.openssl_capath)
    for directory in filter(os.path.isdir, directories.split(os.pathsep)):
        for path in sorted(Path(directory).iterdir()):
            if _HASHED_NAME.fullmatch(path.name):
                yield path

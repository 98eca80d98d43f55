"""TLS settings of a listener: its certificate, client authentication, and reloading of changed
files, which are checked at most once a second.

Unusable files (for example, half of a new pair) are ignored until they change again. Clients must
present their certificate on every connection, because a resumed session could outlive the
certificate or its authority."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from infergate.core.log_events import CERTIFICATE_EXPIRED, CERTIFICATE_LOADED, CERTIFICATE_REFUSED
from infergate.core.tls_settings import ServerTls
from infergate.transport.tls import certificates
from infergate.transport.tls.file_watch import FileWatch
from infergate.transport.tls.san_match import SanMatcher

log = logging.getLogger(__name__)

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class ServerTlsContext:
    """The TLS context of the listener ``name``. It is reloaded when its files change."""

    def __init__(
        self,
        name: str,
        settings: ServerTls,
        protocols: Sequence[str],
        on_reload: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``protocols`` are the ALPN names of the listener's protocols. ``on_reload`` is called
        after each change of the files. Its argument is true if the files were loaded. Raises
        CertificateError."""
        self._name: Final = name
        self.settings: Final = settings
        self.san_matcher: Final = SanMatcher(settings.allowed_names)
        self.protocols: Final = list(protocols)
        self._on_reload: Final = on_reload
        self._watch: Final = FileWatch(
            (settings.certificate, settings.key, settings.client_ca), clock
        )
        self.generation = 0
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        self.reload_if_changed()
        return self._context

    def expires(self) -> float:
        """Return the expiry time of the current certificate as Unix time."""
        self.reload_if_changed()
        return self._expires

    def reload_if_changed(self) -> None:
        """Load the files again if they have changed."""
        if not self._watch.has_changed():
            return
        try:
            self._context = self._load()
        except certificates.CertificateError as error:
            text = "%s: keeping the previous certificate: %s"
            log.error(text, self._name, error, extra=CERTIFICATE_REFUSED)  # noqa: TRY400
            self._on_reload(False)  # noqa: FBT003
            return
        self.generation += 1
        text = "%s: loaded a new certificate from %s"
        log.info(text, self._name, self.settings.certificate, extra=CERTIFICATE_LOADED)
        self._on_reload(True)  # noqa: FBT003

    def _load(self) -> ssl.SSLContext:
        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[settings.min_version]
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_ciphers(certificates.CIPHERS)
        if self.protocols:
            context.set_alpn_protocols(self.protocols)
        certificates.load_certificate_chain(context, settings.certificate, settings.key)
        context.verify_mode = _VERIFY_MODES[settings.client_certificates]
        if settings.client_ca is not None:
            certificates.load_authorities(context, settings.client_ca)
        if context.verify_mode != ssl.CERT_NONE:  # disables session resumption
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        self._expires = certificates.read_expiry(settings.certificate)
        if self._expires < time.time():
            text = "%s: the certificate %s has expired"
            log.warning(text, self._name, settings.certificate, extra=CERTIFICATE_EXPIRED)
        return context

"""TLS of a listener: its certificate, whom it lets in, and files that change meanwhile.

*Strategy.* Whoever asks for the context has the files looked at, at most once a second: a
certificate that was renewed is shown to the next client. Connections keep what they were made with.

*Rule 1.* Files that cannot be used (half of a pair is new, say) change nothing; they are looked at
again when they have changed again. That is how cert-manager's and certbot's swaps of symbolic
links are lived through.
*Rule 2.* A client that shows a certificate shows it at each connection: a session that is taken up
again would outlive what its certificate, or its authority, was good for.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final

from infergate.core.certificates import ServerTls
from infergate.core.vocabulary import CERTIFICATE_EXPIRED, CERTIFICATE_REFUSED, CERTIFICATE_TAKEN
from infergate.transport.tls_certificates import (
    CIPHERS,
    CertificateError,
    load_authorities,
    load_certificate_chain,
    read_expiry,
)
from infergate.transport.tls_files import Watch
from infergate.transport.tls_names import Allowed

log = logging.getLogger(__name__)

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_ASKING: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class ServerCertificates:
    """What the listener ``name`` shows. ``reloaded`` is told of each change of the files: whether
    it was taken."""

    def __init__(
        self,
        name: str,
        settings: ServerTls,
        protocols: Sequence[str],
        reloaded: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``protocols``: what is spoken, as ALPN calls it; none: what has no such name. Raises
        CertificateError."""
        self._name: Final = name
        self.settings: Final = settings
        self.allowed: Final = Allowed(settings.allowed_names)
        self.protocols: Final = list(protocols)
        self._reloaded: Final = reloaded
        self._watch: Final = Watch((settings.certificate, settings.key, settings.client_ca), clock)
        self.generation = 0
        """How many times other files were taken."""
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        self.refresh()
        return self._context

    def expires(self) -> float:
        """Until when the certificate that is shown is valid, in seconds since 1970."""
        self.refresh()
        return self._expires

    def refresh(self) -> bool:
        """Take the files anew if they have changed; whether that was done."""
        if not self._watch.has_changed():
            return False
        try:
            self._context = self._load()
        except CertificateError as error:
            log.error(  # noqa: TRY400
                "%s: the certificate from before is kept: %s",
                self._name,
                error,
                extra=CERTIFICATE_REFUSED,
            )
            self._reloaded(False)  # noqa: FBT003
            return False
        self.generation += 1
        log.info(
            "%s: a new certificate is taken from %s",
            self._name,
            self.settings.certificate,
            extra=CERTIFICATE_TAKEN,
        )
        self._reloaded(True)  # noqa: FBT003
        return True

    def _load(self) -> ssl.SSLContext:
        settings = self.settings
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = _VERSIONS[settings.min_version]
        made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        made.set_ciphers(CIPHERS)
        if self.protocols:
            made.set_alpn_protocols(self.protocols)
        load_certificate_chain(made, settings.certificate, settings.key)
        made.verify_mode = _ASKING[settings.client_certificates]
        if settings.client_ca is not None:
            load_authorities(made, settings.client_ca)
        if made.verify_mode != ssl.CERT_NONE:  # Rule 2
            made.options |= ssl.OP_NO_TICKET
            made.num_tickets = 0
        self._expires = read_expiry(settings.certificate)
        if self._expires < time.time():
            log.warning(
                "%s: the certificate %s has expired",
                self._name,
                settings.certificate,
                extra=CERTIFICATE_EXPIRED,
            )
        return made

"""Files of certificates and keys in PEM: loaded for TLS, and what is wrong with them in words.

Whoever starts infergate, and whoever renews a certificate while it runs, is told which file is
wrong and why; OpenSSL tells neither.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

CERTIFICATE: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
"""One certificate of a file."""
_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_ENCRYPTED: Final = re.compile(
    rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE
)
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "KEY_TYPE_MISMATCH": "the key does not belong to the certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short to be safe",
    "CA_MD_TOO_WEAK": "the certificate's signature is too weak to be safe",
}
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""What TLS 1.2 may use, of listeners and towards backends: forward secrecy and AEAD. Neither CBC
(Lucky 13 and what followed) nor RSA key exchange; HTTP/2 forbids both (RFC 9113, 9.2.2)."""
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_EXPLICIT_0: Final = 0xA0


class CertificateError(OSError):
    """A file that cannot be used. The message names it and the reason."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a listener shows its clients, and asks of them. ``allowed_names`` are globs, of which
    one of the names of a client's certificate has to match one; none: any name will do."""

    certificate: Path
    key: Path
    client_certificates: Literal["none", "optional", "required"] = "none"
    client_ca: Path | None = None
    allowed_names: tuple[str, ...] = ()
    min_version: Literal["1.2", "1.3"] = "1.2"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Whom to trust as a backend, and what to show it. ``ca`` None: whom the system trusts;
    ``server_name`` None: it is called by the host that is connected to."""

    ca: Path | None = None
    server_name: str | None = None
    certificate: Path | None = None
    key: Path | None = None


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Have ``context`` show the chain in ``certificate``, and prove it by ``key``. Raises
    CertificateError."""
    _certificates(certificate)
    held = _read(key)
    if not _KEY.search(held):
        raise CertificateError(f"{key}: holds no private key in PEM")
    if _ENCRYPTED.search(held):
        raise CertificateError(f"{key}: the key is encrypted, and nobody is there to be asked")
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        reason = _REASONS.get(error.reason or "", f"cannot be used: {error.reason or error}")
        raise CertificateError(f"{certificate} and {key}: {reason}") from None
    except OSError as error:  # they are read once more, and may be changed meanwhile
        raise CertificateError(f"{certificate} and {key}: {error.strerror}") from None


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Have ``context`` trust the certificates in ``file``. Raises CertificateError."""
    _certificates(file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise CertificateError(f"{file}: cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise CertificateError(f"{file}: {error.strerror}") from None


def expires(file: Path) -> float:
    """Until when the first certificate in ``file`` is valid, in seconds since 1970. Raises
    CertificateError."""
    (first, *_) = _certificates(file)
    try:
        der = ssl.PEM_cert_to_DER_cert(first.decode("ascii") + "\n")
        return _not_after(der)
    except (ValueError, IndexError):
        raise CertificateError(f"{file}: the certificate cannot be read") from None


def _certificates(file: Path) -> list[bytes]:
    found: list[bytes] = CERTIFICATE.findall(_read(file))
    if not found:
        raise CertificateError(f"{file}: holds no certificate in PEM")
    return found


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CertificateError(f"{file}: cannot be read: {error.strerror}") from None


def _not_after(der: bytes) -> float:
    """RFC 5280, 4.1: Certificate holds TBSCertificate, which holds version, serialNumber,
    signature, issuer, validity …; validity holds two times."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == _EXPLICIT_0:  # the version, which old ones leave out
        at = end
    for _ in range(3):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)
    _, _, at = _element(der, at)
    tag, begin, end = _element(der, at)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:  # RFC 5280, 4.1.2.5.1: a year of two digits is 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(tag)
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Of the element that begins ``at``: its tag, and where its contents begin and end (X.690)."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[begin : begin + size], "big")
        begin += size
    return tag, begin, begin + length

"""Loads certificates and keys from PEM files, and reads the expiry times of certificates.
``CertificateError`` names the file and the reason. Most of OpenSSL's errors name neither."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

CERTIFICATE_PATTERN: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
"""Matches one certificate of a PEM file."""
_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")
_ENCRYPTED_KEY: Final = re.compile(
    rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE
)
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "KEY_TYPE_MISMATCH": "the key does not belong to the certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short to be safe",
    "CA_MD_TOO_WEAK": "the certificate's signature is too weak to be safe",
}
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The TLS 1.2 cipher suites of connections from clients and to backends. All suites provide forward
secrecy and AEAD. CBC suites (Lucky 13 and its successors) and RSA key exchange are excluded,
because RFC 9113, 9.2.2 prohibits them."""
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_EXPLICIT_0: Final = 0xA0


class CertificateError(OSError):
    """A certificate or key file cannot be used. The message names the file and the reason."""


def load_certificate_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load the certificate chain and its private key into ``context``. Raises CertificateError."""
    _read_certificates(certificate)
    key_data = _read(key)
    if not _KEY.search(key_data):
        raise CertificateError(f"{key}: contains no PEM private key")
    if _ENCRYPTED_KEY.search(key_data):
        raise CertificateError(f"{key}: the private key is encrypted; store it unencrypted")
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        reason = _REASONS.get(error.reason or "", f"cannot be used: {error.reason or error}")
        raise CertificateError(f"{certificate} and {key}: {reason}") from None
    except OSError as error:  # OpenSSL reads the files again, and they may have changed
        raise CertificateError(f"{certificate} and {key}: {error.strerror}") from None


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Make ``context`` trust the authorities in ``file``. Raises CertificateError."""
    _read_certificates(file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise CertificateError(f"{file}: cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise CertificateError(f"{file}: {error.strerror}") from None


def read_expiry(file: Path) -> float:
    """Return the expiry time of the first certificate in ``file``, in seconds since 1970. Raises
    CertificateError."""
    (first, *_) = _read_certificates(file)
    try:
        der = ssl.PEM_cert_to_DER_cert(first.decode("ascii") + "\n")
        return _not_after(der)
    except (ValueError, IndexError):
        raise CertificateError(f"{file}: the certificate cannot be parsed") from None


def _read_certificates(file: Path) -> list[bytes]:
    certificates: list[bytes] = CERTIFICATE_PATTERN.findall(_read(file))
    if not certificates:
        raise CertificateError(f"{file}: contains no PEM certificate")
    return certificates


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CertificateError(f"{file}: cannot be read: {error.strerror}") from None


def _not_after(der: bytes) -> float:
    """Return the ``notAfter`` time of a certificate, in seconds since 1970. The field follows
    version, serialNumber, signature, issuer and notBefore (RFC 5280, 4.1)."""
    _, position, _ = _read_element(der, 0)
    _, position, _ = _read_element(der, position)
    tag, _, end = _read_element(der, position)
    if tag == _EXPLICIT_0:  # the version, which version 1 certificates omit
        position = end
    for _ in range(3):
        _, _, position = _read_element(der, position)
    _, position, _ = _read_element(der, position)
    _, _, position = _read_element(der, position)
    tag, begin, end = _read_element(der, position)
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:  # two-digit years are 1950 to 2049 (RFC 5280, 4.1.2.5.1)
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(tag)
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _read_element(der: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag of the DER element at ``position``, and the positions where its content begins
    and ends."""
    tag, length, begin = der[position], der[position + 1], position + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[begin : begin + size], "big")
        begin += size
    return tag, begin, begin + length

"""Certificates for tests: a certificate authority and its certificates, as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from infergate.core.tls_settings import ClientTls, ServerTls

EXPIRED_SINCE = datetime(2001, 1, 1, tzinfo=UTC)
EXPIRED_AT = datetime(2002, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)
        self._count = 0

    def issue(self, *names: str, expired: bool = False) -> Pair:
        self._count += 1
        pair = Pair(
            self._folder / f"{self._count}.pem",
            self._folder / f"{self._count}.key",
        )
        dates = {"not_before": EXPIRED_SINCE, "not_after": EXPIRED_AT} if expired else {}
        plain = [name for name in names if "://" not in name]
        leaf = self._ca.issue_cert(*plain or ["localhost"], **dates)
        leaf.private_key_pem.write_to_path(pair.key)
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        if len(plain) < len(names):
            chain = self._reissue(x509.load_pem_x509_certificate(chain), names)
        pair.certificate.write_bytes(chain)
        return pair

    def _reissue(self, leaf: x509.Certificate, names: Sequence[str]) -> bytes:
        """Return ``leaf`` reissued for ``names``, which may include URIs. trustme does not support
        URIs."""
        alt_names = [
            x509.UniformResourceIdentifier(name)
            if "://" in name
            else x509.RFC822Name(name)
            if "@" in name
            else x509.DNSName(name)
            for name in names
        ]
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        builder = x509.CertificateBuilder(
            issuer_name=authority.subject,
            subject_name=leaf.subject,
            public_key=leaf.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=leaf.not_valid_before_utc,
            not_valid_after=leaf.not_valid_after_utc,
        ).add_extension(x509.SubjectAlternativeName(alt_names), critical=False)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def server(self) -> Pair:
        """Issue a pair for ``localhost`` and 127.0.0.1."""
        return self.issue("localhost", "127.0.0.1")


def server_tls(pair: Pair, **options: object) -> ServerTls:
    return ServerTls(pair.certificate, pair.key, **options)  # type: ignore[arg-type]


def client_tls(authority: Authority, pair: Pair | None = None) -> ClientTls:
    if pair is None:
        return ClientTls(authority.file)
    return ClientTls(authority.file, None, pair.certificate, pair.key)


def replace_files(pair: Pair, shared: Pair) -> None:
    for source, target in ((pair.certificate, shared.certificate), (pair.key, shared.key)):
        temporary = target.with_suffix(".new")
        temporary.write_bytes(source.read_bytes())
        temporary.replace(target)

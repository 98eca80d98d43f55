"""Errors in certificate files, and expiry dates."""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from infergate.transport.tls.certificates import (
    CertificateError,
    _not_after,
    load_authorities,
    load_certificate_chain,
    read_expiry,
)
from tls_kit import EXPIRED_AT, Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def load_error(certificate: Path, key: Path) -> str:
    with pytest.raises(CertificateError) as caught:
        load_certificate_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
    return str(caught.value)


def test_errors_of_invalid_certificate_pairs(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.server(), authority.server()
    load_certificate_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair.certificate, pair.key)
    file = tmp_path / "file.pem"
    assert load_error(file, pair.key) == f"{file}: cannot be read: No such file or directory"
    assert (
        load_error(pair.certificate, file) == f"{file}: cannot be read: No such file or directory"
    )
    file.write_text("x")
    assert load_error(file, pair.key) == f"{file}: contains no PEM certificate"
    assert load_error(pair.certificate, file) == f"{file}: contains no PEM private key"
    assert load_error(pair.certificate, pair.certificate).endswith("contains no PEM private key")
    assert load_error(pair.certificate, other.key).endswith(
        "the key does not belong to the certificate"
    )
    file.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n")
    assert "is encrypted" in load_error(pair.certificate, file)
    file.write_text("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")
    assert f"{file} and {pair.key}: cannot be used: " in load_error(file, pair.key)


class DeletingContext(ssl.SSLContext):
    """Deletes ``file`` before OpenSSL opens the files a second time."""

    file: Path

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
        self.file.unlink()
        super().load_cert_chain(certfile, keyfile, password)

    def load_verify_locations(self, cafile: Any = None, *others: Any) -> None:
        self.file.unlink()
        super().load_verify_locations(cafile, *others)


def test_files_deleted_while_they_are_read_cause_a_certificate_error(authority: Authority) -> None:
    """If another error were raised, clients would fail instead of getting the old certificate."""
    pair, context = authority.server(), DeletingContext(ssl.PROTOCOL_TLS_SERVER)
    context.file = pair.key
    with pytest.raises(CertificateError, match="No such file"):
        load_certificate_chain(context, pair.certificate, pair.key)
    context.file = authority.file
    with pytest.raises(CertificateError, match="No such file"):
        load_authorities(context, authority.file)


def test_errors_of_invalid_authorities(authority: Authority, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_authorities(context, authority.file)
    assert len(context.get_ca_certs()) == 1
    file = tmp_path / "file.pem"
    file.write_text("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")
    with pytest.raises(CertificateError, match="cannot be used"):
        load_authorities(context, file)
    with pytest.raises(CertificateError, match="cannot be parsed"):
        read_expiry(file)


@pytest.mark.parametrize("year", [1999, 2001, 2049, 2050, 2999])
def test_expiry_dates_are_read(authority: Authority, tmp_path: Path, year: int) -> None:
    """RFC 5280, 4.1.2.5 defines two date formats."""
    end = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    begin = datetime(1990, 1, 1, tzinfo=UTC)
    leaf = trustme.CA().issue_cert("x", not_before=begin, not_after=end)
    file = tmp_path / "leaf.pem"
    leaf.cert_chain_pems[0].write_to_path(file)
    assert read_expiry(file) == end.timestamp()
    assert read_expiry(authority.issue("x", expired=True).certificate) == EXPIRED_AT.timestamp()


def test_truncated_certificates_cause_only_expected_errors(authority: Authority) -> None:
    der = ssl.PEM_cert_to_DER_cert(authority.file.read_text())
    for cut in range(0, len(der), 7):
        try:
            _not_after(der[:cut])
        except (ValueError, IndexError):
            continue

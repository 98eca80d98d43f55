"""The sections of routes.yaml on TLS for listeners and for connections to backends."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from infergate.config.fields import FilePath, Name
from infergate.config.section import Section
from infergate.transport.tls.certificates import (
    CertificateError,
    load_authorities,
    load_certificate_chain,
)

_VERSIONS = {1.2: "1.2", 1.3: "1.3"}


def _accept_float(value: Any) -> Any:
    """Accept unquoted versions, although YAML reads them as numbers."""
    return _VERSIONS.get(value, value) if isinstance(value, float) else value


def check_files(certificate: Path | None, key: Path | None, authorities: Path | None) -> None:
    """Raise ValueError if a certificate, key or CA file cannot be loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if certificate is not None and key is not None:
            load_certificate_chain(context, certificate, key)
        if authorities is not None:
            load_authorities(context, authorities)
    except CertificateError as error:
        raise ValueError(str(error)) from None


class ListenerTls(Section):
    """TLS of a listener. Changed files take effect for new connections.

    Example: `tls: {certificate: tls/tls.crt, key: tls/tls.key}`."""

    certificate: FilePath = Field(
        description="PEM file with the server certificate, followed by its intermediate "
        "certificates. The path is relative to routes.yaml."
    )
    key: FilePath = Field(description="PEM file with the unencrypted private key.")
    client_certificates: Literal["none", "optional", "required"] = Field(
        default="none",
        description="Client certificates (mTLS). With `none`, they are not requested. With "
        "`optional`, a certificate is verified if the client presents one. With `required`, a "
        "client without a certificate is disconnected. A client whose certificate fails "
        "verification is always disconnected. `optional` and `required` need `client_ca`.",
    )
    client_ca: FilePath | None = Field(
        default=None,
        description="PEM file with the certificates of the authorities that may issue client "
        "certificates.",
    )
    allowed_names: tuple[Name, ...] = Field(
        default=(),
        description="Names or globs of clients. At least one of these names must match a subject "
        "alternative name (DNS, URI, e-mail, IP) of the client certificate. `*` matches any "
        "characters, including dots and slashes. Without names, any certificate issued by "
        '`client_ca` is accepted. Example: `["*.clients.example", "spiffe://example/ns/*"]`.',
    )
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_accept_float)] = Field(
        default="1.2",
        description="Minimum TLS version. With 1.2, only ECDHE cipher suites with AES-GCM or "
        "ChaCha20-Poly1305 are offered.",
    )

    @model_validator(mode="after")
    def _check_client_certificates(self) -> Self:
        verified = self.client_certificates != "none"
        if verified and self.client_ca is None:
            raise ValueError(f"client_certificates '{self.client_certificates}' needs client_ca")
        if not verified and self.client_ca is not None:
            raise ValueError("client_ca requires client_certificates 'optional' or 'required'")
        if not verified and self.allowed_names:
            raise ValueError("allowed_names requires client_certificates 'optional' or 'required'")
        check_files(self.certificate, self.key, self.client_ca)
        return self


class BackendTls(Section):
    """TLS of connections to a backend with `https://` or `grpcs://` endpoints.

    Example: `tls: {ca: tls/ca.crt, certificate: tls/client.crt, key: tls/client.key}`."""

    ca: FilePath | None = Field(
        default=None,
        description="PEM file with the certificates of the authorities that may issue the "
        "backend's certificate. The path is relative to routes.yaml. By default, the system's "
        "authorities are trusted.",
    )
    server_name: Name | None = Field(
        default=None,
        description="Server name sent in the TLS handshake (SNI) and verified in the backend's "
        "certificate. Example: `models.internal`. By default, it is the host of the endpoint's "
        "URL.",
    )
    certificate: FilePath | None = Field(
        default=None, description="PEM file with infergate's client certificate (mTLS)."
    )
    key: FilePath | None = Field(
        default=None,
        description="PEM file with the unencrypted private key of `certificate`.",
    )
    verify: bool = Field(
        default=True,
        description="Verify the backend's certificate and its name. `false` accepts any "
        "certificate: requests are encrypted, but anyone on the network path can impersonate the "
        "backend.",
    )

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key must be given together")
        if self.ca is not None and not self.verify:
            raise ValueError("ca has no effect with 'verify: false'")
        check_files(self.certificate, self.key, self.ca)
        return self

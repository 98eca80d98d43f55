"""TLS of listeners and towards backends: a part of the schema."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from infergate.config.fields import FilePath, Name
from infergate.config.section import Section
from infergate.transport.tls_certificates import (
    CertificateError,
    load_authorities,
    load_certificate_chain,
)

_VERSIONS = {1.2: "1.2", 1.3: "1.3"}


def _spell_version(value: Any) -> Any:
    """1.3 without quotes, which YAML reads as a number."""
    return _VERSIONS.get(value, value) if isinstance(value, float) else value


def _mistake(text: str) -> PydanticCustomError:
    return PydanticCustomError("mistake", "{text}", {"text": text})


def _check_files(certificate: Path | None, key: Path | None, authorities: Path | None) -> None:
    """Raises what is told of files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if certificate is not None and key is not None:
            load_certificate_chain(context, certificate, key)
        if authorities is not None:
            load_authorities(context, authorities)
    except CertificateError as error:
        raise _mistake(str(error)) from None


class ListenerTls(Section):
    """TLS on a listener. Files that change are taken anew by the next connection."""

    certificate: FilePath = Field(
        description="The file (from this one's folder) with the certificate in PEM, and the "
        "certificates between it and its authority after it."
    )
    key: FilePath = Field(description="The file with its private key in PEM, not encrypted.")
    client_certificates: Literal["none", "optional", "required"] = Field(
        default="none",
        description="Whether clients are asked for certificates: `none` are, `optional` may show "
        "one, which has to be good then, `required` have to. A client without a good one is "
        "disconnected.",
    )
    client_ca: FilePath | None = Field(
        default=None,
        description="The file with the certificates, in PEM, of the authorities whose clients are "
        "let in.",
    )
    allowed_names: tuple[Name, ...] = Field(
        default=(),
        description="Names or globs like `*.clients.example` or `spiffe://example/ns/*`: one of "
        "the names (subjectAltName: DNS, URI, e-mail, IP) of a client's certificate has to match. "
        "`*` stands for anything, dots and slashes too. Left out: any certificate of "
        "`client_ca` is good.",
    )
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_spell_version)] = Field(
        default="1.2",
        description="The lowest version of TLS that is spoken; 1.2 with ECDHE and AES-GCM or "
        "ChaCha20-Poly1305 alone.",
    )

    @model_validator(mode="after")
    def _clients_fit(self) -> Self:
        asked = self.client_certificates != "none"
        if asked and self.client_ca is None:
            raise _mistake(f"client_certificates '{self.client_certificates}' needs client_ca")
        if not asked and self.client_ca is not None:
            raise _mistake("client_ca is for client_certificates 'optional' or 'required'")
        if not asked and self.allowed_names:
            raise _mistake("allowed_names is for client_certificates 'optional' or 'required'")
        _check_files(self.certificate, self.key, self.client_ca)
        return self


class BackendTls(Section):
    """TLS towards a backend, whose endpoints are https:// or grpcs://."""

    ca: FilePath | None = Field(
        default=None,
        description="The file (from this one's folder) with the certificates, in PEM, of the "
        "authorities that the backend's has to be of. Left out: those that the system trusts.",
    )
    server_name: Name | None = Field(
        default=None,
        description="The name that the backend's certificate has to have, and that is asked for. "
        "Left out: the endpoint's host.",
    )
    certificate: FilePath | None = Field(
        default=None, description="The file with infergate's own certificate, in PEM, for mTLS."
    )
    key: FilePath | None = Field(
        default=None, description="The file with its private key in PEM, not encrypted."
    )

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise _mistake("certificate and key go together")
        _check_files(self.certificate, self.key, self.ca)
        return self

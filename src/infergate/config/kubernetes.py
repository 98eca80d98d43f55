"""The section of routes.yaml on the endpoints of a Kubernetes service."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from infergate.config.access import WebUrl
from infergate.config.fields import FilePath, Text, YamlValue
from infergate.config.section import Section
from infergate.config.tls import check_files
from infergate.config.values import Url, describe_value
from infergate.core.hosts import is_ip_address

_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""Matches a DNS label (RFC 1123)."""


def _parse_label(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_LABEL, value):
        raise ValueError(
            "expected a name of at most 63 lower-case letters, digits and '-', "
            f"got {describe_value(value)}"
        )
    return value


def _parse_port(value: Any) -> str | int:
    if type(value) is not int:
        return _parse_label(value)
    if not 0 < value < 1 << 16:
        raise ValueError(f"expected a port from 1 to 65535, got {value}")
    return value


_Label = Annotated[str, YamlValue(_parse_label, "DNS label", pattern=f"^{_LABEL}$")]
_PodPort = Annotated[
    str | int, YamlValue(_parse_port, "port name or number", type=["string", "integer"])
]


class KubernetesConfig(Section):
    """Watch the EndpointSlices of a Kubernetes service instead of resolving its name
    (docs/kubernetes.md).

    Example: `kubernetes: {port: grpc}`."""

    service: _Label | None = Field(
        default=None,
        description="The service. By default, it is the first label of the endpoint's host: "
        "`triton` for `grpc://triton.models:8001`.",
    )
    namespace: _Label | None = Field(
        default=None,
        description="The service's namespace. By default, it is the second label of the endpoint's "
        "host, or infergate's own namespace if the host has only one label.",
    )
    port: _PodPort | None = Field(
        default=None,
        description="Name or number of the pods' port (`targetPort`). By default, it is the port "
        "of the endpoint's URL or, if the pods do not have that port, their only port.",
    )
    zone: Text = Field(
        default="",
        description="infergate's own zone. If all usable endpoints have topology hints and some "
        "hints name this zone, infergate uses only the endpoints for this zone, as kube-proxy "
        'does. Example: `"${ZONE}"`. By default, hints are ignored.',
    )
    api: WebUrl | None = Field(
        default=None,
        description="URL of the API server, `https://` or `http://`. By default, it is the API "
        "server of the cluster in which infergate runs, with the CA and the token of the pod's "
        "service account. Example for `kubectl proxy`: `http://127.0.0.1:8001`.",
    )
    token_file: FilePath | None = Field(
        default=None,
        description="File with the bearer token for `api`. It is read for each request, because "
        "tokens are rotated.",
    )
    ca: FilePath | None = Field(
        default=None,
        description="PEM file with the certificates of the authorities that may issue the "
        "certificate of `api`.",
    )

    @model_validator(mode="after")
    def _check_api(self) -> Self:
        if self.api is not None and self.api.scheme not in {"http", "https"}:
            raise ValueError("api must begin with https:// or http://")
        if (self.token_file or self.ca) and (self.api is None or self.api.scheme != "https"):
            raise ValueError("token_file and ca need api with an https:// URL")
        check_files(None, None, self.ca)
        return self

    def check_backend(self, urls: Sequence[Url], dns_refresh: float, shared_memory: str) -> None:
        """Raise ValueError if the options of a backend are incompatible with this section."""
        host = urls[0].host if len(urls) == 1 else ""
        if not host or host == "localhost" or is_ip_address(host):
            raise ValueError(
                "kubernetes needs exactly one endpoint: a URL with the DNS name of the service, "
                "which is used until the API server responds"
            )
        if not dns_refresh or shared_memory != "copy":
            raise ValueError("kubernetes needs 'shared_memory: copy' and a dns_refresh above 0")

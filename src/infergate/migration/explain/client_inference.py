"""An inference and its destination, the input of ``client_code`` and ``curl_code``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.wire import HttpRequest
from infergate.migration.explain.client_request import ClientRequest

_TRANSPORT_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length",
        "content-type", "expect", "host", "inference-header-content-length",
        "nv-inferrequest", "te", "transfer-encoding", "user-agent", "x-request-id",
    }
)  # fmt: skip


class NoClientCodeError(ValueError):
    """A client cannot send the inference. The message is the reason."""


@dataclass(frozen=True, slots=True)
class ClientAddresses:
    """The addresses to which programs send inferences, as ``host:port``. An address is empty if no
    TCP listener has its transport."""

    http: str = ""
    grpc: str = ""
    http_tls: bool = False
    grpc_tls: bool = False

    def http_url(self) -> str:
        """Return the base URL for HTTP. Raises NoClientCodeError."""
        if not self.http:
            raise NoClientCodeError("the configuration has no HTTP listener")
        return f"{'https' if self.http_tls else 'http'}://{self.http}"

    def grpc_address(self) -> str:
        """Return ``host:port`` for gRPC. Raises NoClientCodeError."""
        if not self.grpc:
            raise NoClientCodeError("the configuration has no gRPC listener")
        return self.grpc


@dataclass(frozen=True, slots=True)
class ClientInference:
    """An inference to write as code. ``headers`` are the client's headers. ``metadata`` is the
    model's metadata, or None if unknown. ``wire`` is the client's HTTP message, or None for gRPC.
    Data that is too long for source text is written to ``folder`` unless ``folder`` is None."""

    request: InferRequest
    addresses: ClientAddresses
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: ModelMetadata | None = None
    wire: HttpRequest | None = None
    folder: Path | None = None

    @classmethod
    def of(
        cls,
        request: ClientRequest,
        inference: InferRequest,
        addresses: ClientAddresses,
        metadata: ModelMetadata | None,
        folder: Path | None,
    ) -> ClientInference:
        """Return a ClientInference for ``inference``, which was read from ``request``."""
        wire = request.wire
        if isinstance(wire, HttpRequest):
            return cls(inference, addresses, wire.headers, metadata, wire, folder)
        return cls(inference, addresses, wire.metadata, metadata, None, folder)

    def own_headers(self) -> dict[str, str]:
        """Return the headers that the user has set, without the headers that client libraries
        add."""
        return {
            name: value
            for name, value in self.headers.items()
            if name not in _TRANSPORT_HEADERS and not name.startswith(("grpc-", ":"))
        }


def variable_name(name: str) -> str:
    """Return the name of the environment variable that holds the value of the header or query
    parameter ``name``."""
    letters = re.sub("[^A-Za-z0-9]", "_", name).upper()
    return f"_{letters}" if letters[:1].isdigit() else letters

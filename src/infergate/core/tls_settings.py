"""TLS settings of listeners and backends. The transport loads the files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS settings of a listener.

    ``allowed_names`` are globs; at least one name of a client's certificate must match one of them.
    An empty tuple allows every name."""

    certificate: Path
    key: Path
    client_certificates: Literal["none", "optional", "required"] = "none"
    client_ca: Path | None = None
    allowed_names: tuple[str, ...] = ()
    min_version: Literal["1.2", "1.3"] = "1.2"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS settings for connections to a backend.

    Without ``ca``, the system's trusted authorities apply. Without ``server_name``, the endpoint's
    host is verified. With ``certificate`` and ``key``, infergate authenticates to the server
    (mTLS)."""

    ca: Path | None = None
    server_name: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True

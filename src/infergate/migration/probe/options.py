"""The options of a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infergate.config import protocols
from infergate.config.values import Url
from infergate.core.tls_settings import ClientTls


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """``timeout`` limits each attempt, in seconds. ``models`` are the names of models on servers
    that cannot list their models. ``headers`` have lower-case names and are sent with every
    request. The file ``ca`` contains the trusted authorities; by default, the system's authorities
    are trusted. If ``verify`` is false, every server is trusted."""

    timeout: float = 5.0
    models: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: Path | None = None
    verify: bool = True

    @property
    def tls(self) -> ClientTls:
        """The TLS settings of connections to servers."""
        return ClientTls(ca=self.ca, verify=self.verify)

    def backend_section(self, protocol: str, url: Url) -> dict[str, Any]:
        """Return the section of routes.yaml for a backend with ``protocol`` at ``url``."""
        section: dict[str, Any] = {"protocol": protocol, "endpoints": (str(url),)}
        if url.scheme in protocols.TLS_SCHEMES:
            if self.ca is not None:
                section["tls"] = {"ca": str(self.ca.absolute())}
            elif not self.verify:
                section["tls"] = {"verify": False}
        return section

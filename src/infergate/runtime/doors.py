"""The doors of all listeners of a process: how many connections, which TLS, and what is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from infergate.core.certificates import ServerTls
from infergate.core.limits import Limits
from infergate.core.vocabulary import FEW_DESCRIPTORS
from infergate.observe.metrics import Metrics
from infergate.runtime.descriptors import for_clients
from infergate.runtime.running import ADMIN
from infergate.transport.door import Connections, Door, Refusal
from infergate.transport.tls_server import ServerCertificates

log = logging.getLogger(__name__)

ADMIN_CONNECTIONS: Final = 64
"""Connections to the admin listener, which has to tell of a gateway that is full."""


class Doors:
    """Makes the door of each listener, by its name in the config, for one configuration after
    another: connections are counted over all of them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._clients: Final = Connections()
        self._admins: Final = Connections()
        self._told = 0

    def of(
        self, name: str, limits: Limits, tls: ServerTls | None, protocols: tuple[str, ...]
    ) -> Door:
        """The door of the listener ``name``, which speaks ``protocols`` (ALPN). Raises
        CertificateError."""
        metrics = self._metrics
        refused = {each: metrics.refused_connections.labels(name, each.value) for each in Refusal}
        certificates = None
        if tls is not None:
            certificates = ServerCertificates(
                f"listeners.{name}", tls, protocols, self._reloaded(name)
            )
        is_admin = name == ADMIN
        return Door(
            name,
            self._admins if is_admin else self._clients,
            certificates,
            lambda refusal: refused[refusal].inc(),
            lambda limit: metrics.refused_requests.labels(limit).inc(),
            most=ADMIN_CONNECTIONS if is_admin else self._most(limits.connections),
        )

    def _most(self, wanted: int) -> int:
        most = for_clients(wanted)
        if most < wanted and most != self._told:
            self._told = most
            told = "limits.connections: %d instead of %d, as the system lets open few files"
            log.warning(told, most, wanted, extra=FEW_DESCRIPTORS)
        return most

    def _reloaded(self, name: str) -> Callable[[bool], None]:
        reloads = {
            taken: self._metrics.certificate_reloads.labels(name, "taken" if taken else "failed")
            for taken in (True, False)
        }
        return lambda taken: reloads[taken].inc()

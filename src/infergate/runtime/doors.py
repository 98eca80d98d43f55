"""The connection gates of all listeners: connection limits, TLS certificates, and their metrics."""

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
"""Connections to the admin listener, which must remain reachable while the gateway is full."""


class Doors:
    """Creates the gate of each listener for successive configurations, which share the connection
    counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._clients: Final = Connections()
        self._admins: Final = Connections()
        self._told = 0

    def of(
        self, name: str, limits: Limits, tls: ServerTls | None, protocols: tuple[str, ...]
    ) -> Door:
        """Return a gate for the listener ``name``, which speaks ``protocols`` (ALPN). Raises
        CertificateError."""
        metrics = self._metrics
        refused = {
            reason: metrics.refused_connections.labels(name, reason.value) for reason in Refusal
        }
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
        allowed = for_clients(wanted)
        if allowed < wanted and allowed != self._told:
            self._told = allowed
            message = "limits.connections lowered to %d from %d: the system's limit of open files"
            log.warning(message, allowed, wanted, extra=FEW_DESCRIPTORS)
        return allowed

    def _reloaded(self, name: str) -> Callable[[bool], None]:
        reloads = {
            succeeded: self._metrics.certificate_reloads.labels(
                name, "taken" if succeeded else "failed"
            )
            for succeeded in (True, False)
        }
        return lambda succeeded: reloads[succeeded].inc()

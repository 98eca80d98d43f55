"""The connection gates of all listeners: connection limits, TLS certificates, and their metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from infergate.core.limits import Limits
from infergate.core.log_events import OPEN_FILES_LIMIT
from infergate.core.tls_settings import ServerTls
from infergate.observe.metrics import Metrics
from infergate.runtime.descriptors import max_client_connections
from infergate.runtime.running import ADMIN
from infergate.transport.server.connection_gate import (
    ConnectionCount,
    ConnectionGate,
    ConnectionRefusal,
)
from infergate.transport.tls.server_context import ServerTlsContext

log = logging.getLogger(__name__)

MAX_ADMIN_CONNECTIONS: Final = 64
"""The connection limit of the admin listener. It is separate, because the admin listener must
accept connections even when the other listeners have reached their limit."""


class ConnectionGates:
    """Creates the gates of listeners. The gates of successive configurations share the connection
    counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics: Final = metrics
        self._client_connections: Final = ConnectionCount()
        self._admin_connections: Final = ConnectionCount()
        self._warned_limit = 0

    def make_gate(
        self, name: str, limits: Limits, tls: ServerTls | None, protocols: tuple[str, ...]
    ) -> ConnectionGate:
        """Return a gate for the listener ``name``. ``protocols`` are the listener's ALPN names.
        Raises CertificateError."""
        metrics = self._metrics
        refused = {
            reason: metrics.refused_connections.labels(name, reason.value)
            for reason in ConnectionRefusal
        }
        certificates = None
        if tls is not None:
            certificates = ServerTlsContext(
                f"listeners.{name}", tls, protocols, self._certificate_reload_counter(name)
            )
        if name == ADMIN:
            connections, max_connections = self._admin_connections, MAX_ADMIN_CONNECTIONS
        else:
            connections = self._client_connections
            max_connections = self._max_connections(limits.connections)
        return ConnectionGate(
            name,
            connections,
            certificates,
            lambda refusal: refused[refusal].inc(),
            lambda limit: metrics.refused_requests.labels(limit).inc(),
            max_connections=max_connections,
        )

    def _max_connections(self, configured: int) -> int:
        allowed = max_client_connections(configured)
        if allowed < configured and allowed != self._warned_limit:
            self._warned_limit = allowed
            message = "limits.connections: %d is lowered to %d, because of the limit on open files"
            log.warning(message, configured, allowed, extra=OPEN_FILES_LIMIT)
        return allowed

    def _certificate_reload_counter(self, name: str) -> Callable[[bool], None]:
        reloads = self._metrics.certificate_reloads
        taken, failed = reloads.labels(name, "taken"), reloads.labels(name, "failed")
        return lambda succeeded: (taken if succeeded else failed).inc()

"""The interfaces between a listener and its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.transport.server.connection_gate import ConnectionGate


class AcceptedConnection(Protocol):
    """The listener's view of a client's connection."""

    def close_when_idle(self) -> None:
        """Close after the requests in progress, or immediately if there are none."""
        ...

    def cancel_with(self, error: GatewayError) -> None:
        """End the requests in progress with ``error``, and close."""
        ...

    def abort(self) -> None:
        """Close immediately, and cancel the requests in progress."""
        ...

    def active_requests(self) -> Iterable[asyncio.Future[None]]:
        """Return a future for each request in progress on the connection."""
        ...


class ConnectionHost(Protocol):
    """The connections' view of their listener."""

    loop: asyncio.AbstractEventLoop
    limits: Limits

    @property
    def gate(self) -> ConnectionGate:
        """The gate that counts and refuses connections."""
        ...

    def register(self, connection: AcceptedConnection, peer: str) -> bool:
        """Register a new connection. Return False if it is refused and must be aborted."""
        ...

    def unregister(self, connection: AcceptedConnection) -> None:
        """Remove a connection whose socket is closed and whose tasks have ended, or a TLS layer
        whose handshake is complete."""
        ...

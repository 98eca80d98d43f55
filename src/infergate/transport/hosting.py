"""The interfaces between a listener and its connections.

They are separate from ``listener`` so that connections do not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.transport.door import Door


class Accepted(Protocol):
    """A client's connection, as its listener sees it."""

    def finish(self) -> None:
        """Close after the request in progress, or now if there is none."""
        ...

    def give_up(self, error: GatewayError) -> None:
        """Answer the request in progress with ``error``, and close."""
        ...

    def abort(self) -> None:
        """Close now and cancel the request in progress."""
        ...

    def calls(self) -> Iterable[asyncio.Task[None]]:
        """Return the tasks that serve its requests."""
        ...


class Host(Protocol):
    """A listener, as its connections see it."""

    loop: asyncio.AbstractEventLoop
    limits: Limits

    @property
    def door(self) -> Door:
        """The gate that counts and refuses connections."""
        ...

    def opened(self, connection: Accepted, peer: str) -> bool:
        """Register a new connection; return False if it is refused and must be aborted."""
        ...

    def closed(self, connection: Accepted) -> None:
        """Forget a connection whose socket is closed and whose task has ended."""
        ...

"""What a listener and its connections see of each other."""

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
        """Close when the request being received or answered is done; now where there is none."""
        ...

    def give_up(self, error: GatewayError) -> None:
        """Answer what is under way with ``error``, and close."""
        ...

    def abort(self) -> None:
        """Close now, cancelling what is under way."""
        ...

    def calls(self) -> Iterable[asyncio.Task[None]]:
        """What serves its requests now."""
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
        """Register a new connection; False if it is refused and must be aborted."""
        ...

    def closed(self, connection: Accepted) -> None:
        """Forget a connection that is over, and whose task has ended."""
        ...

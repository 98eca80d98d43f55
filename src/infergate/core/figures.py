"""What is known of a backend's endpoints, as metrics tell it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class EndpointFigures(NamedTuple):
    """Of one endpoint of the configuration, ``endpoint``: its URL there. Where that is a name, of
    all its addresses together. Numbers of requests, ejections, checks and lookups are of all time,
    those of addresses and of requests under way are now's."""

    backend: str
    endpoint: str
    available: int = 0
    """Addresses that are asked."""
    down: int = 0
    """Addresses whose checks fail."""
    ejected: int = 0
    """Addresses let alone for a while."""
    active: int = 0
    """Requests under way."""
    ok: int = 0
    failed: int = 0
    """Requests in which it did not do its part."""
    ejections: int = 0
    checks_ok: int = 0
    checks_failed: int = 0
    lookups_failed: int = 0
    """How often its name had no address."""


class PlaceFigures(NamedTuple):
    """Of a backend that is sent at most ``most`` inferences at once: ``taken`` now."""

    backend: str
    taken: int
    most: int


class ListenerFigures(Protocol):
    """What is told of a listener: ``connections`` are those of clients now, ``idle`` how many it
    closed because nothing was asked on them for too long; ``expires`` is until when its certificate
    is valid, in seconds since 1970, None where it has none."""

    idle: int

    @property
    def listener(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def connections(self) -> int:
        """See the class."""
        ...

    @property
    def expires(self) -> float | None:
        """See the class."""
        ...

"""A memory account of a fixed size."""

from __future__ import annotations

from infergate.core.errors import GatewayError, Kind


class Budget:
    """A memory account of one request with a limit of ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = self.peak = 0

    def grow(self, size: int) -> None:
        if self.held + size > self.limit:
            raise GatewayError(Kind.OVERLOADED, "full")
        self.held += size
        self.peak = max(self.peak, self.held)

    def shrink(self, size: int) -> None:
        self.held -= size

    def detach(self, size: int) -> Budget:
        self.held -= size
        detached = Budget(self.limit)
        detached.held = detached.peak = size
        return detached

    def detach_optional(self, size: int) -> Budget:
        self.grow(size)
        return self.detach(size)

    def close(self) -> None:
        self.held = 0

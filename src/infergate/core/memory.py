"""What one request holds of the gateway's memory budget, ``limits.in_flight_bytes``."""

from __future__ import annotations

from typing import Final, Protocol

from infergate.core.limits import KIB

IN_FLIGHT_BYTES: Final = "in_flight_bytes"
"""The limit, as errors name it."""
SMALL: Final = 64 * KIB
"""Memory shorter than this is not counted one by one: ``limits.in_flight`` bounds it."""


class MemoryShare(Protocol):
    """The account of one request. The transport opens it with the request's body, and closes it
    with the request: whatever is still counted is then given back.

    *Rule.* Call ``grow`` before memory is allocated that lasts and whose size a client or a backend
    chooses: an inflated body, translated tensors, a backend's response, text that is written. Where
    the size is not known yet, grow by an upper bound and shrink to the real size afterwards.
    """

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes. Raises OVERLOADED, and counts nothing, where the budget does
        not allow them. A request that is alone may always grow."""
        ...

    def shrink(self, size: int) -> None:
        """Count ``size`` bytes less: they were freed, or never allocated."""
        ...

    def detach(self, size: int) -> DetachedMemory:
        """Move ``size`` bytes to an account of their own, for work that may outlast the request."""
        ...


class DetachedMemory(MemoryShare, Protocol):
    """An account that whoever detached it closes."""

    def close(self) -> None:
        """Give back all that is still counted."""
        ...


class _Unlimited:
    """The account of work that no client asked for."""

    def grow(self, size: int) -> None:
        """Count nothing."""

    def shrink(self, size: int) -> None:
        """Count nothing."""

    def detach(self, size: int) -> DetachedMemory:  # noqa: ARG002
        """Count nothing."""
        return self

    def close(self) -> None:
        """Nothing was counted."""

    def __reduce__(self) -> str:
        return "UNLIMITED"


UNLIMITED: Final = _Unlimited()

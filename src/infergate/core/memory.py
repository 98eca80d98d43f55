"""The memory that a request holds, which is charged to the gateway's budget
``limits.in_flight_bytes``."""

from __future__ import annotations

from typing import Final, Protocol

from infergate.core.limits import KIB

IN_FLIGHT_BYTES: Final = "in_flight_bytes"
"""The name of the memory budget in errors."""
OPTIONAL_BYTES: Final = "transport.server.admission.OPTIONAL_PART"
"""The name of the limit on optional work in errors."""
MIN_ACCOUNTED_BYTES: Final = 64 * KIB
"""Allocations up to this size are not charged individually; ``limits.in_flight`` bounds their
total."""


class MemoryAccount(Protocol):
    """The memory account of one request. The transport opens the account when it receives the body,
    and closes the account at the end of the request. Closing releases all remaining charges.

    Call ``grow`` before allocating memory that outlives the call and whose size a client or backend
    controls: an inflated body, translated tensors, a backend's response, text to be written. If the
    size is unknown, grow by an upper bound first, and shrink to the actual size later."""

    def grow(self, size: int) -> None:
        """Charge ``size`` more bytes. Raises OVERLOADED, and charges nothing, if the budget is
        exhausted. The growth is not limited if only this request and optional work hold memory."""
        ...

    def shrink(self, size: int) -> None:
        """Release ``size`` bytes that were freed or never allocated."""
        ...

    def detach(self, size: int) -> DetachedMemoryAccount:
        """Move a charge of ``size`` bytes to a separate account, for work that may outlive the
        request."""
        ...

    def detach_optional(self, size: int) -> DetachedMemoryAccount:
        """Charge ``size`` more bytes to a separate account for optional work, which no client waits
        for: recording, logging, mirroring. Raises OVERLOADED, and charges nothing, if the budget or
        its part for optional work is exhausted, or if optional work already uses more than half of
        this part. The budget and this part also limit the growth of the account, and of accounts
        detached from it."""
        ...


class DetachedMemoryAccount(MemoryAccount, Protocol):
    """A memory account whose creator must close it."""

    def close(self) -> None:
        """Release everything still charged."""
        ...


class _Unlimited:
    """The account of work that no client requested. Nothing is charged to it."""

    def grow(self, size: int) -> None:
        """Accept any size."""

    def shrink(self, size: int) -> None:
        """Accept any size."""

    def detach(self, size: int) -> DetachedMemoryAccount:  # noqa: ARG002
        """Return this account, which counts nothing."""
        return self

    def detach_optional(self, size: int) -> DetachedMemoryAccount:  # noqa: ARG002
        """Return this account, which counts nothing."""
        return self

    def close(self) -> None:
        """Release nothing."""

    def __reduce__(self) -> str:
        return "UNLIMITED"


UNLIMITED: Final = _Unlimited()

"""Charges each request for the memory that its translation allocates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES, MemoryAccount
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import HttpRequest, HttpResponse, total_size

READ_EXPANSION: Final = 4
"""Reading a message allocates at most this many times its size."""
JSON_EXPANSION: Final = 20
"""Reading JSON allocates at most this many times its size: `1,1,…` read as FP64 takes 17 times its
size, or 18 times with a NaN."""


def body_parts(wire: Any) -> Sequence[Buffer]:
    """Return the buffers of the body (HTTP) or of the message (gRPC) of ``wire``."""
    body: Sequence[Buffer] = (
        wire.body if isinstance(wire, (HttpRequest, HttpResponse)) else wire.message
    )
    return body


def body_size(wire: Any) -> int:
    """Return the size in bytes of the body or message of ``wire``."""
    return total_size(body_parts(wire))


def estimate_read_bytes(message_bytes: int, json_bytes: int) -> int:
    """Return the maximum memory for reading a message of ``message_bytes``, of which ``json_bytes``
    are JSON."""
    return max(READ_EXPANSION * message_bytes, JSON_EXPANSION * json_bytes)


def needs_accounting(tensors: Sequence[Tensor]) -> bool:
    """Return whether ``tensors`` are large enough to be charged."""
    total = 0
    for tensor in tensors:
        total += len(tensor.data)
    return total > MIN_ACCOUNTED_BYTES


def charge_tensors(
    tensors: Sequence[Tensor], source: Iterable[Buffer], memory: MemoryAccount
) -> int:
    """Charge the data of ``tensors`` as ``charge_new_buffers`` does."""
    return charge_new_buffers([tensor.data for tensor in tensors], source, memory)


def charge_new_buffers(
    buffers: Iterable[Buffer], source: Iterable[Buffer], memory: MemoryAccount
) -> int:
    """Charge the buffers that share no memory with ``source``, and return their size in bytes. A
    total of at most ``MIN_ACCOUNTED_BYTES`` is not charged and counts as 0. Raises OVERLOADED."""
    owners = {id(_owner(part)) for part in source}
    new_bytes = sum(len(buffer) for buffer in buffers if id(_owner(buffer)) not in owners)
    if new_bytes <= MIN_ACCOUNTED_BYTES:
        return 0
    memory.grow(new_bytes)
    return new_bytes


def _owner(buffer: Buffer) -> Any:
    return buffer.obj if isinstance(buffer, memoryview) else buffer


class WriteReservation:
    """Memory reserved for text before it is written: the constructor charges an upper bound, and
    ``settle`` reduces the charge to the actual size. As a context manager, the reservation releases
    the complete charge if writing fails."""

    __slots__ = ("_max_bytes", "_memory")

    def __init__(self, max_bytes: int, memory: MemoryAccount) -> None:
        """Charge ``max_bytes``. Raises OVERLOADED."""
        memory.grow(max_bytes)
        self._max_bytes = max_bytes
        self._memory = memory

    def __enter__(self) -> Self:
        return self

    def settle(self, written: int) -> int:
        """Reduce the charge to ``written`` bytes, and return it. The result is less than
        ``written`` if a part of the message is not text, and was charged elsewhere."""
        charged = min(written, self._max_bytes)
        self._memory.shrink(self._max_bytes - charged)
        return charged

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._memory.shrink(self._max_bytes)


def check_response_size(length: int, limits: Limits) -> None:
    """Raise TOO_LARGE if a response of at least ``length`` bytes exceeds ``limits.body``."""
    if length > limits.body:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the response would have at least {length} bytes; the limit is {limits.body} "
            "(limits.body); request binary outputs, which are smaller than JSON",
            limit="body",
        )

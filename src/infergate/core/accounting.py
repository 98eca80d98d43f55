"""What a translation allocates, counted for the request that it is done for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.memory import SMALL, MemoryShare
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import HttpRequest, HttpResponse, size

READ_TIMES: Final = 4
"""Reading a message takes at most so many times its bytes."""
JSON_TIMES: Final = 20
"""The same for JSON: `1,1,…` that becomes FP64 takes 17 times, with a NaN 18."""


def parts(wire: Any) -> Sequence[Buffer]:
    """The body or message of ``wire``, of ``core.wire``."""
    found: Sequence[Buffer] = (
        wire.body if isinstance(wire, (HttpRequest, HttpResponse)) else wire.message
    )
    return found


def reading(total: int, json: int) -> int:
    """Bytes that reading a message of ``total`` bytes takes, ``json`` of them JSON."""
    return max(READ_TIMES * total, JSON_TIMES * json)


def are_long(tensors: Sequence[Tensor]) -> bool:
    """Whether there is anything to count in ``tensors``: asked of every message, so first."""
    total = 0
    for tensor in tensors:
        total += len(tensor.data)
    return total > SMALL


def count_tensors(tensors: Sequence[Tensor], source: Iterable[Buffer], memory: MemoryShare) -> int:
    """``count_new`` of the data of ``tensors``."""
    return count_new([tensor.data for tensor in tensors], source, memory)


def count_new(made: Iterable[Buffer], source: Iterable[Buffer], memory: MemoryShare) -> int:
    """Count those of the buffers ``made`` that do not lie in those of ``source``: how many bytes
    that is; short ones are not counted. Raises OVERLOADED."""
    owners = {id(_owner(part)) for part in source}
    new = sum(len(each) for each in made if id(_owner(each)) not in owners)
    if new <= SMALL:
        return 0
    memory.grow(new)
    return new


def _owner(buffer: Buffer) -> Any:
    """What holds the memory of ``buffer``."""
    return buffer.obj if isinstance(buffer, memoryview) else buffer


class Writing:
    """Memory for text that is to be written: ``least`` to ``most`` bytes, all counted while it is
    written and no more than it is afterwards."""

    __slots__ = ("_memory", "_most")

    def __init__(self, most: int, memory: MemoryShare) -> None:
        """Raises OVERLOADED."""
        memory.grow(most)
        self._most = most
        self._memory = memory

    def done(self, wire: Any) -> int:
        """``wire`` was written: its size."""
        real = size(parts(wire))
        self._memory.shrink(max(0, self._most - real))
        return real

    def failed(self) -> None:
        """Nothing was written."""
        self._memory.shrink(self._most)


def check_answer(length: int, limits: Limits) -> None:
    """Raises TOO_LARGE for an answer of ``length`` bytes or more that is over ``limits.body``."""
    if length > limits.body:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"the answer would be {length} bytes or more, the limit is {limits.body} "
            "(limits.body); ask for binary outputs, which are shorter than JSON",
            limit="body",
        )

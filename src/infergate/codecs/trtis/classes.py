"""Classes: an output's ``batch_classes`` ⇄ a BYTES tensor of ``value:index[:label]``.

A class's value is a float whatever the output's datatype, on this wire. It is spelled as the C++
servers print floats: as short as tells it from its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from infergate.codecs.trtis.text import spell_float
from infergate.core.classification import MOST_CLASSES
from infergate.core.datatypes import Datatype
from infergate.core.errors import garbage
from infergate.core.tensor import Tensor, pack_bytes, unpack_bytes

_INDEX_DIGITS: Final = 10
_LARGEST_INDEX: Final = 2**31 - 1


def write_classes(entries: Any, tensor: Tensor, rows: int) -> None:
    """Fill ``batch_classes`` with one entry for each of ``rows``. Raises BACKEND_GARBAGE."""
    if tensor.datatype is not Datatype.BYTES:
        raise garbage(f"output '{tensor.name}' was to be classified and is {tensor.datatype.value}")
    elements = list(unpack_bytes(tensor.data))
    each, rest = divmod(len(elements), rows)
    if rest:
        raise garbage(
            f"output '{tensor.name}' has {len(elements)} classes for {rows} batch entries"
        )
    for begin in range(0, rows * each, each) if each else [0] * rows:
        _write_row(entries.add().cls, tensor.name, elements[begin : begin + each])


def _write_row(classes: Any, name: str, elements: Sequence[bytes]) -> None:
    for element in elements:
        try:
            value, index, *label = element.decode().split(":", 2)
            number = int(index) if len(index) <= _INDEX_DIGITS else -1
            with np.errstate(over="ignore"):
                score = float(np.float32(float(value)))
        except ValueError:
            raise garbage(f"output '{name}' has a class that is not value:index:label") from None
        if not 0 <= number <= _LARGEST_INDEX:
            raise garbage(f"output '{name}' has a class whose index is out of range")
        # the servers leave a zero of either sign out
        classes.add(idx=number, value=score or 0.0, label=label[0] if label else "")


def read_classes(name: str, entries: Any, batch: tuple[int, ...]) -> Tensor:
    """The tensor of ``batch_classes``, of shape ``batch`` and the number of classes.

    Raises BACKEND_GARBAGE.
    """
    rows = [row.cls for row in entries]
    counts = {len(row) for row in rows}
    if len(rows) != (batch[0] if batch else 1) or len(counts) != 1:
        raise garbage(f"output '{name}' has classes for {len(rows)} entries, not for the batch")
    (count,) = counts
    if len(rows) * count > MOST_CLASSES:
        raise garbage(f"output '{name}' has over {MOST_CLASSES} classes, the limit")
    elements = pack_bytes(_element(each) for row in rows for each in row)
    return Tensor(name, Datatype.BYTES, (*batch, count), elements)


def _element(each: Any) -> bytes:
    told = f"{spell_float(each.value)}:{each.idx}"
    return f"{told}:{each.label}".encode() if each.label else told.encode()

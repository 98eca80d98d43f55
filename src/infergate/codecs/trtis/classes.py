"""Classes: an output's ``batch_classes`` ⇄ a BYTES tensor of ``value:index[:label]``.

A class's value is a float of 32 bits whatever the output's datatype, on this wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from infergate.core.classification import MOST_CLASSES, spelled
from infergate.core.datatypes import INTEGERS, Datatype
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


def read_classes(name: str, entries: Any, batch: tuple[int, ...], datatype: Datatype) -> Tensor:
    """The tensor of ``batch_classes`` of an output of ``datatype``, of shape ``batch`` and the
    number of classes.

    Raises BACKEND_GARBAGE.
    """
    rows = [row.cls for row in entries]
    counts = {len(row) for row in rows}
    if len(rows) != (batch[0] if batch else 1) or len(counts) != 1:
        raise garbage(f"output '{name}' has classes for {len(rows)} entries, not for the batch")
    (count,) = counts
    if len(rows) * count > MOST_CLASSES:
        raise garbage(f"output '{name}' has over {MOST_CLASSES} classes, the limit")
    classes = [each for row in rows for each in row]
    if datatype in INTEGERS:
        values = [f"{each.value:.0f}" for each in classes]
    else:
        values = spelled(np.array([each.value for each in classes], np.float32))
    elements = [
        (f"{value}:{each.idx}:{label}" if (label := each.label) else f"{value}:{each.idx}").encode()
        for value, each in zip(values, classes, strict=True)
    ]
    return Tensor(name, Datatype.BYTES, (*batch, count), pack_bytes(elements))

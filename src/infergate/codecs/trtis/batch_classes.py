"""Converts between an output's ``batch_classes`` and a BYTES tensor of ``value:index[:label]``.

In a message, the value of a class is a 32-bit float, whatever the datatype of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from infergate.core.classification import MAX_CLASSES, format_floats
from infergate.core.datatypes import INTEGERS, Datatype
from infergate.core.errors import backend_garbage
from infergate.core.tensor import Tensor, pack_bytes, unpack_bytes

_MAX_INDEX_DIGITS: Final = 10
_MAX_INDEX: Final = 2**31 - 1


def write_classes(entries: Any, tensor: Tensor, rows: int) -> None:
    """Add ``rows`` entries to a ``batch_classes`` field. Raises BACKEND_GARBAGE."""
    if tensor.datatype is not Datatype.BYTES:
        raise backend_garbage(
            f"output '{tensor.name}' should contain classes, but is {tensor.datatype.value}"
        )
    elements = list(unpack_bytes(tensor.data))
    per_row, remainder = divmod(len(elements), rows)
    if remainder:
        raise backend_garbage(
            f"output '{tensor.name}' has {len(elements)} classes for {rows} batch entries"
        )
    for begin in range(0, rows * per_row, per_row) if per_row else [0] * rows:
        _write_row(entries.add().cls, tensor.name, elements[begin : begin + per_row])


def _write_row(classes: Any, name: str, elements: Sequence[bytes]) -> None:
    for element in elements:
        try:
            value, index, *label = element.decode().split(":", 2)
            class_index = int(index) if len(index) <= _MAX_INDEX_DIGITS else -1
            with np.errstate(over="ignore"):
                score = float(np.float32(float(value)))
        except ValueError:
            raise backend_garbage(
                f"output '{name}' has a class that is not of the form value:index:label"
            ) from None
        if not 0 <= class_index <= _MAX_INDEX:
            raise backend_garbage(f"output '{name}' has a class whose index is out of range")
        # Protobuf would write -0, which servers omit as they omit 0.
        classes.add(idx=class_index, value=score or 0.0, label=label[0] if label else "")


def read_classes(name: str, entries: Any, batch: tuple[int, ...], datatype: Datatype) -> Tensor:
    """Return an output's classes as a tensor of shape ``(*batch, classes)``. Raises
    BACKEND_GARBAGE."""
    rows = [row.cls for row in entries]
    counts = {len(row) for row in rows}
    batch_size = batch[0] if batch else 1
    if len(rows) != batch_size or len(counts) != 1:
        raise backend_garbage(
            f"output '{name}' has classes for {len(rows)} batch entries; expected the same number "
            f"of classes for each of {batch_size} entries"
        )
    (count,) = counts
    if len(rows) * count > MAX_CLASSES:
        raise backend_garbage(f"output '{name}' has more than {MAX_CLASSES} classes (the limit)")
    classes = [entry for row in rows for entry in row]
    if datatype in INTEGERS:
        values = [f"{entry.value:.0f}" for entry in classes]
    else:
        values = format_floats(np.array([entry.value for entry in classes], np.float32))
    elements = [
        (
            f"{value}:{entry.idx}:{label}" if (label := entry.label) else f"{value}:{entry.idx}"
        ).encode()
        for value, entry in zip(values, classes, strict=True)
    ]
    return Tensor(name, Datatype.BYTES, (*batch, count), pack_bytes(elements))

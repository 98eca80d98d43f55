"""Reads the elements of numeric tensors in chunks, without copying the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, float32_from_bf16

CHUNK_ELEMENTS: Final = 1 << 16
_MAX_TEXT: Final = 64

Array = npt.NDArray[Any]


class ElementReader:
    """The elements of a tensor that is not BYTES, as a flat array."""

    def __init__(self, tensor: Tensor) -> None:
        self._is_bf16: Final = tensor.datatype is Datatype.BF16
        # Bytes other than 0 and 1 are true, but are not valid elements of numpy's bool.
        dtype = "u1" if tensor.datatype is Datatype.BOOL else NUMPY_DTYPES[tensor.datatype]
        self._is_bool: Final = tensor.datatype is Datatype.BOOL
        self._stored: Final[Array] = np.frombuffer(tensor.data, dtype)

    def read(self, start: int, stop: int) -> Array:
        """Return the elements from ``start`` to ``stop``. BF16 elements are returned as FP32."""
        stored = self._stored[start:stop]
        if self._is_bf16:
            return float32_from_bf16(stored)
        return stored != 0 if self._is_bool else stored

    def is_identical(self, other: ElementReader, start: int, stop: int) -> bool:
        """Return whether the elements from ``start`` to ``stop`` have the same bytes as in
        ``other``."""
        own, others = self._stored[start:stop], other._stored[start:stop]
        return np.array_equal(own.view("u1"), others.view("u1"))


def chunk_bounds(count: int, size: int = CHUNK_ELEMENTS) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each chunk of ``count`` elements."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


def as_text(value: Any) -> str:
    """Return an element as text of at most 64 characters. The text of a number is exact for its
    datatype."""
    if isinstance(value, bytes):
        text = repr(value[:_MAX_TEXT])
        return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    return str(value)

"""Writes tensors as Python source that creates numpy arrays with exactly the same values."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import numpy as np

from infergate.core.datatypes import FLOATS, NUMPY_DTYPES, Datatype
from infergate.core.tensor import Tensor, float32_from_bf16, unpack_bytes

_MAX_LITERALS: Final = 64
"""Maximum number of elements that are written as a list."""
_MAX_INLINE_BYTES: Final = 4096
"""Maximum size in bytes of a tensor that is written in base64, or of BYTES written as a list."""
_NUMPY_NAMES: Final = {
    **{datatype: np.dtype(dtype).name for datatype, dtype in NUMPY_DTYPES.items()},
    Datatype.BOOL: "bool_",
    Datatype.BF16: "float32",  # numpy has no bfloat16; clients convert
    Datatype.BYTES: "object_",
}
"""The numpy dtype in which clients accept each datatype."""
READ_STRINGS: Final = '''
def read_strings(data):
    """Return the byte strings in ``data``, each after its length in 4 bytes."""
    strings = []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        strings.append(data[4:end])
        data = data[end:]
    return np.array(strings, np.object_)
'''


class ArraySource:
    """Writes the arrays of one program as source text. The program reads tensors that are too long
    for source text from files, which ``source`` writes to ``folder`` unless ``folder`` is None."""

    def __init__(self, folder: Path | None) -> None:
        self._folder: Final = folder
        self._files: Final[dict[str, Path]] = {}
        self.imports: set[str] = set()
        """The modules other than numpy that the source needs."""
        self.reads_strings = False
        """Whether the source calls the function in ``READ_STRINGS``."""
        self.missing: list[str] = []
        """The files that the source reads but that were not written."""

    def source(self, tensor: Tensor) -> str:
        """Return an expression for the array of ``tensor``."""
        shape = tuple(tensor.shape)
        reshape = "" if len(shape) == 1 else f".reshape({shape})"
        literals = _literals(tensor)
        if literals is not None:
            return f"np.array({literals}, np.{_NUMPY_NAMES[tensor.datatype]}){reshape}"
        if tensor.datatype is Datatype.BYTES:
            self.reads_strings = True
            return f"read_strings({self._data(tensor, 'uint8')}.tobytes()){reshape}"
        return f"{self._data(tensor, _NUMPY_NAMES[tensor.datatype])}{reshape}"

    def _data(self, tensor: Tensor, dtype: str) -> str:
        """Return an expression for the data as a flat array of ``dtype``."""
        data = bytes(tensor.data)
        if tensor.datatype is Datatype.BF16:
            bits = np.frombuffer(data, "<u2")
            data = float32_from_bf16(bits).tobytes()
        if len(data) <= _MAX_INLINE_BYTES:
            self.imports.add("base64")
            text = base64.b64encode(data).decode()
            return f'np.frombuffer(base64.b64decode("{text}"), np.{dtype})'
        number = len(self._files)
        file = self._files.setdefault(
            tensor.name, (self._folder or Path()) / f"{number}-{_file_name(tensor.name)}.bin"
        )
        if self._folder is None:
            self.missing.append(str(file))
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return f"np.fromfile({str(file)!r}, np.{dtype})"


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)[:64]


def _literals(tensor: Tensor) -> str | None:
    """Return the source of a list of the elements, or None if the list would be too long or would
    not have exactly the same values."""
    if tensor.datatype is Datatype.BYTES:
        if len(tensor.data) > _MAX_INLINE_BYTES:
            return None
        elements: list[Any] = list(unpack_bytes(tensor.data))
        return repr(elements) if len(elements) <= _MAX_LITERALS else None
    array = tensor.numpy().reshape(-1)
    if tensor.datatype is Datatype.BF16:
        array = float32_from_bf16(array) if array.dtype == np.uint16 else array
    if array.size > _MAX_LITERALS:
        return None
    if tensor.datatype in FLOATS and not np.isfinite(array).all():
        return None  # Python has no literals for infinity and for the payload of a NaN
    return repr(array.tolist())

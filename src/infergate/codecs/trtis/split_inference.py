"""Splits a gRPC InferRequest or InferResponse of the usual form in one pass.

The parts are the first field (the model's name or the status), the version, the header without its
``id`` (the key of a validated header), the ``id``, and the positions of the raw data. A message in
an unusual form is not split but parsed, which takes longer. Only the parser reports errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from infergate.codecs.protos.wire_scanner import (
    MAX_VARINT_BYTES,
    MalformedMessageError,
    read_varint,
)
from infergate.codecs.trtis.validated_headers import MAX_KEY_LENGTH
from infergate.core.tensor import Buffer

REQUEST: Final = (3, 4)
"""The field numbers of InferRequest.meta_data and raw_input. The first field is model_name."""
RESPONSE: Final = (2, 3)
"""The field numbers of InferResponse.meta_data and raw_output. The first field is
request_status."""
_FIRST_TAG: Final = 1 << 3 | 2
_VERSION_TAG: Final = 2 << 3
_ID_TAG: Final = 5 << 3
_STEPS: Final = range(4096)
"""The steps of a split, one per field and one to detect the end. A message with more fields has an
unusual form."""


class SplitInference(NamedTuple):
    """A split message: its ``first`` field, its ``version`` or 0, its ``header`` without the id,
    the ``id`` or 0, and the start and end of each ``raw`` entry in ``data``."""

    data: Buffer
    first: Buffer
    version: int
    header: bytes
    id: int
    raw: Sequence[tuple[int, int]]

    def entries(self) -> list[memoryview]:
        """Return views of the raw entries."""
        view = memoryview(self.data)
        return [view[start:end] for start, end in self.raw]

    def has_sizes(self, sizes: Sequence[int]) -> bool:
        """Return whether the sizes of the raw entries are equal to ``sizes``."""
        return [end - start for start, end in self.raw] == [*sizes]


_new_tuple: Final = tuple.__new__
"""Creates a ``SplitInference`` at a third of the cost of calling the class."""


def split_inference(  # noqa: C901, PLR0912 - a call per field would double the cost
    data: Buffer, numbers: tuple[int, int]
) -> SplitInference | None:
    """Split ``data``, whose header and raw data have the field numbers ``numbers``. Return
    None if the message has an unusual form."""
    header_tag, raw_tag = numbers[0] << 3 | 2, numbers[1] << 3 | 2
    first: Buffer | None = None
    header: tuple[bytes, int] | None = None
    raw: list[tuple[int, int]] = []
    version: int | None = None
    position = 0
    end = len(data)
    try:
        for _ in _STEPS:
            if position >= end:
                break
            tag = data[position]
            value = data[position + 1]
            position += 2
            if value > 0x7F:
                value, position = read_varint(data, position - 1, MAX_VARINT_BYTES)
            if tag == _VERSION_TAG and version is None:
                version = value % 2**64
                continue
            start = position
            position += value
            if tag == raw_tag:
                raw.append((start, position))
            elif value > 2 * MAX_KEY_LENGTH or position > end:
                return None
            elif tag == _FIRST_TAG and first is None:
                first = data[start:position]
            elif tag == header_tag and header is None:
                header = _split_id(bytes(data[start:position]))
                if header is None:
                    return None
            else:
                return None
        else:
            return None
    except (IndexError, MalformedMessageError):
        return None
    if position != end or first is None or header is None:
        return None
    return _new_tuple(SplitInference, (data, first, version or 0, *header, raw))


def _split_id(header: bytes) -> tuple[bytes, int] | None:
    """Return ``header`` without its id, and the id. Return None for an unusual form."""
    position = id_start = id_end = id_ = 0
    end = len(header)
    while position < end:
        start = position
        tag = header[position]
        value = header[position + 1]
        position += 2
        if value > 0x7F:
            value, position = read_varint(header, position - 1, MAX_VARINT_BYTES)
        wire_type = tag & 7
        if tag > 0x7F or tag < 1 << 3 or wire_type not in {0, 2}:
            return None
        if tag == _ID_TAG:
            if id_end:
                return None
            id_start, id_end, id_ = start, position, value % 2**64
        elif wire_type:
            position += value
    if position != end:
        return None
    key = header[:id_start] + header[id_end:] if id_end else header
    return (key, id_) if len(key) <= MAX_KEY_LENGTH else None

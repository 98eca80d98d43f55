"""Typed tensor contents ⇄ the canonical layout.

*Strategy.* A packed repeated float, double or bool field holds on the wire exactly the canonical
bytes, so the protobuf runtime itself does the conversion: the field is serialised (or parsed) and
only its tag and length are cut off (or put on). Integers are varints on the wire and go through
numpy; BYTES get their length prefixes.

*Rule 1.* Of the eight fields only the one that fits the datatype may be set.
*Rule 2.* Values out of the datatype's range are refused. Triton wraps them: 300 as INT8 is 44.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from infergate.codecs.v2_grpc.messages import InferTensorContents
from infergate.codecs.v2_grpc.scan import fields, prefix
from infergate.core.datatypes import NUMPY, Datatype
from infergate.core.errors import bad_request
from infergate.core.tensor import Buffer, pack_bytes, unpack_bytes


class _Form(NamedTuple):
    """The field that holds a datatype's elements, and the dtype of that field's own range."""

    field: str
    number: int
    dtype: str = ""


FORMS: Final[dict[Datatype, _Form]] = {
    Datatype.BOOL: _Form("bool_contents", 1),
    Datatype.INT8: _Form("int_contents", 2, "<i4"),
    Datatype.INT16: _Form("int_contents", 2, "<i4"),
    Datatype.INT32: _Form("int_contents", 2, "<i4"),
    Datatype.INT64: _Form("int64_contents", 3, "<i8"),
    Datatype.UINT8: _Form("uint_contents", 4, "<u4"),
    Datatype.UINT16: _Form("uint_contents", 4, "<u4"),
    Datatype.UINT32: _Form("uint_contents", 4, "<u4"),
    Datatype.UINT64: _Form("uint64_contents", 5, "<u8"),
    Datatype.FP32: _Form("fp32_contents", 6),
    Datatype.FP64: _Form("fp64_contents", 7),
    Datatype.BYTES: _Form("bytes_contents", 8),
}
"""FP16 and BF16 have no row: "must be represented as raw content" (seed 001)."""


def read_contents(name: str, datatype: Datatype, contents: Any) -> Buffer:
    """The elements in the canonical layout; how many there are is for the caller to check.

    Drops unknown fields of ``contents``. Raises BAD_REQUEST naming tensor and field.
    """
    form = FORMS.get(datatype)
    if form is None:
        raise bad_request(
            f"tensor '{name}': {datatype.value} has no typed contents, it must be sent raw"
        )
    for descriptor, _ in contents.ListFields():
        if descriptor.name != form.field:
            raise bad_request(
                f"tensor '{name}': {descriptor.name} is set, {datatype.value} elements belong "
                f"in {form.field}"
            )
    elements = getattr(contents, form.field)
    if not elements:
        return b""
    if datatype is Datatype.BYTES:
        return pack_bytes(elements)
    if not form.dtype:
        contents.DiscardUnknownFields()
        packed = contents.SerializeToString()
        (only,) = fields(packed, 1)
        return memoryview(packed)[only.value :]
    values = np.fromiter(elements, dtype=form.dtype, count=len(elements))
    narrow = values.astype(NUMPY[datatype])
    wrong = np.flatnonzero(narrow != values)
    if wrong.size:
        raise bad_request(
            f"tensor '{name}': element {wrong[0]} ({values[wrong[0]]}) is out of range for "
            f"{datatype.value}"
        )
    return memoryview(narrow.tobytes())


def write_contents(datatype: Datatype, data: Buffer) -> Any:
    """Checked canonical ``data`` as an InferTensorContents. ``datatype`` has a row in FORMS."""
    form = FORMS[datatype]
    if datatype is Datatype.BYTES:
        return InferTensorContents(bytes_contents=unpack_bytes(data))
    if form.dtype:
        values = np.frombuffer(data, dtype=NUMPY[datatype]).tolist()
        return InferTensorContents(**{form.field: values})
    if datatype is Datatype.BOOL:  # any byte but 0 is true; the wire's varints are 0 and 1
        data = (np.frombuffer(data, dtype="u1") != 0).tobytes()
    return InferTensorContents.FromString(prefix(form.number, len(data)) + data)

"""Lists the fields of GraphPipe messages for the console, with the names of fbs/graphpipe.fbs. Only
the first names and tensor elements are read, because a message may be long. Messages with more than
64 tensors or errors, or with a tensor of more than 16 dimensions, are not described."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from infergate.codecs.graphpipe import fields
from infergate.codecs.graphpipe.datatypes import BY_NUMBER
from infergate.codecs.graphpipe.flatbuffer_reader import (
    FlatbufferMessage,
    FlatbufferTable,
    TableField,
)
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError
from infergate.core.tensor import Buffer

Json = dict[str, Any]
_MAX_TENSORS: Final = 64
_MAX_ELEMENTS: Final = 32
_MAX_CHARACTERS: Final = 256
_MAX_RANK: Final = 16


def describe_request(data: Buffer) -> Json | None:
    """Return the fields of a request, or None if ``data`` is invalid or too large to describe."""
    try:
        root = FlatbufferMessage(data).root("Request")
        kind, table = root.uint8(fields.REQ_TYPE), root.table(fields.REQ)
        if kind != fields.INFER or table is None:
            return {"req_type": "MetadataRequest"} if kind == fields.METADATA else None
        return {
            "req_type": "InferRequest",
            "req": {
                "config": _text(table.data(fields.CONFIG)),
                "input_names": table.texts(fields.INPUT_NAMES, _MAX_TENSORS, truncate=True),
                "input_tensors": _tensors(table, fields.INPUT_TENSORS),
                "output_names": table.texts(fields.OUTPUT_NAMES, _MAX_TENSORS, truncate=True),
            },
        }
    except GatewayError:
        return None


def describe_response(data: Buffer) -> Json | None:
    """Return the fields of the response to an inference, or None if ``data`` is invalid or too
    large to describe."""
    try:
        root = FlatbufferMessage(data).root("InferResponse")
        errors = root.tables(fields.ERRORS, _MAX_TENSORS)
        return {"output_tensors": _tensors(root, fields.OUTPUT_TENSORS)} | (
            {"errors": [_error(each) for each in errors]} if errors else {}
        )
    except GatewayError:
        return None


def _tensors(table: FlatbufferTable, field: TableField) -> list[Json]:
    return [_tensor(each) for each in table.tables(field, _MAX_TENSORS)]


def _tensor(table: FlatbufferTable) -> Json:
    number = table.uint8(fields.TYPE)
    datatype = BY_NUMBER.get(number)
    shown: Json = {
        "type": number if datatype is None else f"{number} ({datatype.value})",
        "shape": list(table.int64s(fields.SHAPE, _MAX_RANK)),
    }
    if datatype is Datatype.BYTES:
        strings = table.texts(fields.STRING_VAL, _MAX_ELEMENTS, truncate=True)
        return shown | {"string_val": [text[:_MAX_CHARACTERS] for text in strings]}
    data = table.data(fields.DATA)
    if datatype is None:
        return shown | {"data": f"{len(data)} bytes"}
    dtype = np.dtype(NUMPY_DTYPES[datatype])
    count = min(len(data) // dtype.itemsize, _MAX_ELEMENTS)
    elements: list[Any] = np.frombuffer(data, dtype, count).tolist()
    return shown | {"data": f"{len(data)} bytes", "elements": elements}


def _error(table: FlatbufferTable) -> Json:
    return {"code": table.int64(fields.CODE), "message": _text(table.data(fields.MESSAGE))}


def _text(data: memoryview) -> str:
    return bytes(data[:_MAX_CHARACTERS]).decode(errors="replace")

"""Converts between ModelMetadata and a MetadataResponse, which is a flatbuffer or the JSON response
to a GET.

``version``, ``server`` and ``description`` describe the server. For a backend with another
protocol, ``version`` contains the model's versions, ``description`` contains the model's platform,
and ``server`` is infergate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import flatbuffers

from infergate.codecs.graphpipe.datatypes import NAMES_BY_NUMBER, NULL_TYPE, NUMBERS_BY_NAME
from infergate.codecs.graphpipe.fields import (
    DESCRIPTION,
    INPUTS,
    IO_DESCRIPTION,
    IO_NAME,
    IO_SHAPE,
    IO_TYPE,
    NAME,
    OUTPUTS,
    SERVER,
    VERSION,
)
from infergate.codecs.graphpipe.flatbuffer_reader import FlatbufferTable, TableField
from infergate.codecs.graphpipe.flatbuffer_writer import write_offsets, write_table
from infergate.core.errors import backend_garbage
from infergate.core.limits import KIB, MIB, Limits, check_loop_cost
from infergate.core.messages import ModelMetadata, ServerMetadata, TensorMetadata

_SERVER_NAME: Final = "infergate"
MAX_TENSORS: Final = 8192
"""Maximum number of inputs, and of outputs, in metadata; graphpipe-tf lists every node of a
graph. Each input or output takes 1 µs on the event loop even if a helper process parsed the
message."""
MAX_TENSORS_ON_LOOP: Final = 1024
"""Maximum number of inputs and outputs that are parsed on the event loop. Parsing an input or
output takes 10 µs."""
MAX_BYTES_ON_LOOP: Final = 1 * MIB
"""Maximum size in bytes of a MetadataResponse that is parsed on the event loop."""
MAX_JSON_ON_LOOP: Final = 64 * KIB
MAX_JSON_BYTES: Final = 4 * MIB
"""Maximum size in bytes of metadata as JSON. The limit is low, because values become Python
objects."""

# ---- for clients


def write_metadata(metadata: ModelMetadata) -> bytes:
    """Write ``metadata`` as a MetadataResponse."""
    builder = flatbuffers.Builder(1024)
    outputs = _write_tensors(builder, metadata.outputs)
    inputs = _write_tensors(builder, metadata.inputs)
    texts = (metadata.name, *_server_info(metadata))
    offsets = (*(_write_text(builder, text) for text in texts), inputs, outputs)
    fields = (NAME, VERSION, SERVER, DESCRIPTION, INPUTS, OUTPUTS)
    builder.Finish(write_table(builder, dict(zip(fields, offsets, strict=True))))
    return bytes(builder.Output())


def _write_tensors(builder: Any, tensors: Sequence[TensorMetadata]) -> int:
    return write_offsets(builder, [_write_tensor(builder, tensor) for tensor in tensors])


def _write_tensor(builder: Any, tensor: TensorMetadata) -> int:
    name = _write_text(builder, tensor.name)
    description = _write_text(builder, tensor.description)
    builder.StartVector(8, len(tensor.shape), 8)
    for dimension in reversed(tensor.shape):
        builder.PrependInt64(dimension)
    shape = builder.EndVector()
    builder.StartObject(4)
    for field, offset in ((IO_NAME, name), (IO_DESCRIPTION, description), (IO_SHAPE, shape)):
        builder.PrependUOffsetTRelativeSlot(field.slot, offset, 0)
    builder.PrependUint8Slot(IO_TYPE.slot, NUMBERS_BY_NAME.get(tensor.datatype, NULL_TYPE), 0)
    return int(builder.EndObject())


def _write_text(builder: Any, text: str) -> int:
    return int(builder.CreateString(text.encode("utf-8", "replace")))


def write_json(metadata: ModelMetadata) -> bytes:
    """Write ``metadata`` as the JSON with which graphpipe-go responds to a GET."""
    version, server, description = _server_info(metadata)
    document = {
        "Name": metadata.name,
        "Version": version,
        "Server": server,
        "Description": description,
        "Inputs": [_tensor_object(tensor) for tensor in metadata.inputs],
        "Outputs": [_tensor_object(tensor) for tensor in metadata.outputs],
    }
    return json.dumps(document, indent=4, ensure_ascii=False).encode("utf-8", "replace")


def _tensor_object(tensor: TensorMetadata) -> dict[str, Any]:
    return {
        "Name": tensor.name,
        "Description": tensor.description,
        "Shape": list(tensor.shape),
        "Type": NUMBERS_BY_NAME.get(tensor.datatype, NULL_TYPE),
    }


def _server_info(metadata: ModelMetadata) -> tuple[str, str, str]:
    """Return the fields ``version``, ``server`` and ``description``."""
    if metadata.server or metadata.server_version or metadata.description:
        return metadata.server_version, metadata.server, metadata.description
    return ", ".join(metadata.versions), _SERVER_NAME, metadata.platform


# ---- from backends


def read_metadata(table: FlatbufferTable, model: str, limits: Limits) -> ModelMetadata:
    """Read a MetadataResponse as the metadata of ``model``, whatever name the server uses. If
    ``model`` is empty, keep the server's name. Raises BAD_REQUEST, TOO_LARGE and, on the event
    loop, NeedsOffloadError."""
    check_loop_cost(limits, table.length(INPUTS) + table.length(OUTPUTS), MAX_TENSORS_ON_LOOP)
    return ModelMetadata(
        model or table.text(NAME),
        inputs=_read_tensors(table, INPUTS, limits),
        outputs=_read_tensors(table, OUTPUTS, limits),
        max_batch_size=0,
        description=table.text(DESCRIPTION),
        server=table.text(SERVER),
        server_version=table.text(VERSION),
    )


def read_server(table: FlatbufferTable) -> ServerMetadata:
    """Read a MetadataResponse as the metadata of the server. Raises BAD_REQUEST."""
    return ServerMetadata(table.text(SERVER), table.text(VERSION))


def _read_tensors(
    table: FlatbufferTable, field: TableField, limits: Limits
) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(
            tensor.text(IO_NAME),
            NAMES_BY_NUMBER.get(tensor.uint8(IO_TYPE), ""),
            tensor.int64s(IO_SHAPE, limits.rank),
            description=tensor.text(IO_DESCRIPTION),
        )
        for tensor in table.tables(field, MAX_TENSORS)
    )


def read_json(body: bytes, limits: Limits) -> dict[str, Any]:
    """Parse the JSON response to a GET. Raises BACKEND_GARBAGE and NeedsOffloadError."""
    check_loop_cost(limits, len(body), MAX_JSON_ON_LOOP)
    try:
        document = json.loads(body) if len(body) <= min(limits.json, MAX_JSON_BYTES) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise backend_garbage("the backend's metadata is not a JSON object, or is too long")
    return document


def metadata_from_json(document: dict[str, Any], model: str, limits: Limits) -> ModelMetadata:
    """Return the metadata of ``model``, as :func:`read_metadata` does. Raises BACKEND_GARBAGE."""
    return ModelMetadata(
        model or _text_from_json(document, "Name"),
        inputs=_tensors_from_json(document.get("Inputs"), limits),
        outputs=_tensors_from_json(document.get("Outputs"), limits),
        max_batch_size=0,
        description=_text_from_json(document, "Description"),
        server=_text_from_json(document, "Server"),
        server_version=_text_from_json(document, "Version"),
    )


def server_from_json(document: dict[str, Any]) -> ServerMetadata:
    """Return the metadata of the server, as :func:`read_server` does."""
    return ServerMetadata(_text_from_json(document, "Server"), _text_from_json(document, "Version"))


def _text_from_json(document: dict[str, Any], key: str) -> str:
    text = document.get(key)
    return text if isinstance(text, str) else ""


def _tensors_from_json(items: Any, limits: Limits) -> tuple[TensorMetadata, ...]:
    match items:
        case None:  # Go writes an empty list as null
            return ()
        case list() if len(items) > MAX_TENSORS:
            raise backend_garbage(
                f"the backend's metadata lists {len(items)} inputs or outputs; "
                f"the limit is {MAX_TENSORS}"
            )
        case list():
            return tuple(_tensor_from_json(item, limits) for item in items)
    raise backend_garbage("'Inputs' or 'Outputs' in the backend's metadata is not a list")


def _tensor_from_json(item: Any, limits: Limits) -> TensorMetadata:
    match item:
        case {"Name": str(name), "Shape": list() | None as shape, "Type": int(number)}:
            dimensions = tuple(shape or ())
            if len(dimensions) <= limits.rank and all(
                type(dimension) is int for dimension in dimensions
            ):
                datatype = NAMES_BY_NUMBER.get(number, "")
                description = _text_from_json(item, "Description")
                return TensorMetadata(name, datatype, dimensions, description=description)
    raise backend_garbage(
        "an input or output in the backend's metadata has no valid Name, Shape and Type"
    )

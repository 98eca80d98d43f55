"""MetadataResponse ⇄ ModelMetadata, as a flatbuffer and as the JSON that answers a GET.

*Rule 1.* A datatype that GraphPipe lacks is type 0 (Null) to clients; a type that is not known is
an empty datatype from backends.
*Rule 2.* ``version`` and ``server`` are of the server, and so are descriptions: clients are told
those of a GraphPipe server. Of any other, clients are told the model's versions, which they have no
other way to learn, its platform, and that the server is infergate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import flatbuffers

from infergate.codecs.graphpipe.datatypes import told_name, told_number
from infergate.codecs.graphpipe.fields import (
    DESCRIPTION,
    INPUTS,
    IO_DESCRIPTION,
    IO_NAME,
    IO_SHAPE,
    IO_TYPE,
    OUTPUTS,
    SERVER,
    VERSION,
)
from infergate.codecs.graphpipe.reading import Field, Table
from infergate.codecs.graphpipe.schema import IOMetadata, MetadataResponse
from infergate.core.errors import garbage
from infergate.core.limits import KIB, MIB, Limits, check_loop
from infergate.core.messages import ModelMetadata, ServerMetadata, TensorMetadata

_SERVER: Final = "infergate"
MOST: Final = 8192
"""Inputs or outputs that a backend may tell of. graphpipe-tf tells every node of a graph. What a
helper has read still takes the event loop 1 µs for each."""
TOLD_ON_LOOP: Final = 1024
"""Inputs and outputs that the event loop reads: each takes it 10 µs."""
BYTES_ON_LOOP: Final = 1 * MIB
"""Bytes of a MetadataResponse that the event loop reads. They may be referred to several times."""
JSON_ON_LOOP: Final = 64 * KIB
"""Bytes of it as JSON that the event loop reads."""
MAX_JSON: Final = 4 * MIB
"""Bytes of it as JSON: the event loop reads it, and makes a Python object of each value."""

# ---- to clients


def write_metadata(answer: ModelMetadata) -> bytes:
    """The MetadataResponse."""
    builder = flatbuffers.Builder(1024)
    outputs = _write_ios(builder, answer.outputs)
    inputs = _write_ios(builder, answer.inputs)
    texts = (answer.name, *_about(answer))
    name, version, server, description = (_text(builder, text) for text in texts)
    MetadataResponse.Start(builder)
    MetadataResponse.AddName(builder, name)
    MetadataResponse.AddVersion(builder, version)
    MetadataResponse.AddServer(builder, server)
    MetadataResponse.AddDescription(builder, description)
    MetadataResponse.AddInputs(builder, inputs)
    MetadataResponse.AddOutputs(builder, outputs)
    builder.Finish(MetadataResponse.End(builder))
    return bytes(builder.Output())


def _write_ios(builder: Any, ios: Sequence[TensorMetadata]) -> int:
    tables = [_write_io(builder, told) for told in ios]
    return _vector(builder, tables)


def _write_io(builder: Any, told: TensorMetadata) -> int:
    name = _text(builder, told.name)
    description = _text(builder, told.description)
    IOMetadata.StartShapeVector(builder, len(told.shape))
    for dimension in reversed(told.shape):
        builder.PrependInt64(dimension)
    shape = builder.EndVector()
    IOMetadata.Start(builder)
    IOMetadata.AddName(builder, name)
    IOMetadata.AddDescription(builder, description)
    IOMetadata.AddShape(builder, shape)
    IOMetadata.AddType(builder, told_number(told.datatype))
    return int(IOMetadata.End(builder))


def _vector(builder: Any, tables: Sequence[int]) -> int:
    MetadataResponse.StartInputsVector(builder, len(tables))
    for table in reversed(tables):
        builder.PrependUOffsetTRelative(table)
    return int(builder.EndVector())


def _text(builder: Any, text: str) -> int:
    return int(builder.CreateString(text.encode("utf-8", "replace")))


def write_json(answer: ModelMetadata) -> bytes:
    """What graphpipe-go answers a GET with."""
    version, server, description = _about(answer)
    told = {
        "Name": answer.name,
        "Version": version,
        "Server": server,
        "Description": description,
        "Inputs": [_io_json(each) for each in answer.inputs],
        "Outputs": [_io_json(each) for each in answer.outputs],
    }
    return json.dumps(told, indent=4, ensure_ascii=False).encode("utf-8", "replace")


def _io_json(told: TensorMetadata) -> dict[str, Any]:
    return {
        "Name": told.name,
        "Description": told.description,
        "Shape": list(told.shape),
        "Type": told_number(told.datatype),
    }


def _about(answer: ModelMetadata) -> tuple[str, str, str]:
    """Version, server and description (Rule 2)."""
    if answer.server or answer.server_version or answer.description:
        return answer.server_version, answer.server, answer.description
    return ", ".join(answer.versions), _SERVER, answer.platform


# ---- from backends


def read_metadata(table: Table, model: str, limits: Limits) -> ModelMetadata:
    """What a MetadataResponse tells of ``model``, which the server may call otherwise. Raises
    BAD_REQUEST for what cannot be read, and CostlyError on the event loop."""
    check_loop(limits, table.length(INPUTS) + table.length(OUTPUTS), TOLD_ON_LOOP)
    return ModelMetadata(
        model,
        inputs=_read_ios(table, INPUTS, limits),
        outputs=_read_ios(table, OUTPUTS, limits),
        max_batch_size=0,
        description=table.text(DESCRIPTION),
        server=table.text(SERVER),
        server_version=table.text(VERSION),
    )


def read_server(table: Table) -> ServerMetadata:
    """What a MetadataResponse tells of the server. Raises BAD_REQUEST."""
    return ServerMetadata(table.text(SERVER), table.text(VERSION))


def _read_ios(table: Table, field: Field, limits: Limits) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(
            each.text(IO_NAME),
            told_name(each.byte(IO_TYPE)),
            each.longs(IO_SHAPE, limits.rank),
            description=each.text(IO_DESCRIPTION),
        )
        for each in table.tables(field, MOST)
    )


def read_json(body: bytes, limits: Limits) -> dict[str, Any]:
    """The answer to a GET. Raises BACKEND_GARBAGE, and CostlyError on the event loop."""
    check_loop(limits, len(body), JSON_ON_LOOP)
    try:
        told = json.loads(body) if len(body) <= min(limits.json, MAX_JSON) else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise garbage("the backend's metadata is no JSON object")
    return told


def metadata_of_json(told: dict[str, Any], model: str, limits: Limits) -> ModelMetadata:
    """As :func:`read_metadata`. Raises BACKEND_GARBAGE."""
    return ModelMetadata(
        model,
        inputs=_ios_of_json(told.get("Inputs"), limits),
        outputs=_ios_of_json(told.get("Outputs"), limits),
        max_batch_size=0,
        description=_text_of_json(told, "Description"),
        server=_text_of_json(told, "Server"),
        server_version=_text_of_json(told, "Version"),
    )


def server_of_json(told: dict[str, Any]) -> ServerMetadata:
    """As :func:`read_server`."""
    return ServerMetadata(_text_of_json(told, "Server"), _text_of_json(told, "Version"))


def _text_of_json(told: dict[str, Any], key: str) -> str:
    text = told.get(key)
    return text if isinstance(text, str) else ""


def _ios_of_json(told: Any, limits: Limits) -> tuple[TensorMetadata, ...]:
    match told:
        case None:  # Go's empty list
            return ()
        case list():
            return tuple(_io_of_json(each, limits) for each in told)
    raise garbage("the backend's metadata has no list of inputs or outputs")


def _io_of_json(told: Any, limits: Limits) -> TensorMetadata:
    match told:
        case {"Name": str(name), "Shape": list() | None as shape, "Type": int(number)}:
            dimensions = tuple(shape or ())
            if len(dimensions) <= limits.rank and all(type(one) is int for one in dimensions):
                description = _text_of_json(told, "Description")
                return TensorMetadata(name, told_name(number), dimensions, description=description)
    raise garbage("the backend's metadata has an input or output that cannot be read")

"""MetadataResponse ⇄ ModelMetadata, as a flatbuffer and as the JSON that answers a GET.

*Rule 1.* Towards clients, a datatype that GraphPipe lacks is type 0 (Null); from backends, an
unknown type is an empty datatype.
*Rule 2.* ``version``, ``server`` and ``description`` describe the server. For a GraphPipe backend,
clients receive its values. For any other backend, ``version`` holds the model's versions, which
clients cannot learn otherwise, ``description`` the model's platform, and ``server`` is infergate.
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
"""Maximum number of inputs or outputs in a backend's metadata. graphpipe-tf lists every node of a
graph. Each takes the event loop 1 µs even if a helper process parsed the message."""
TOLD_ON_LOOP: Final = 1024
"""Maximum number of inputs and outputs that the event loop parses. Each takes 10 µs."""
BYTES_ON_LOOP: Final = 1 * MIB
"""Maximum size of a MetadataResponse that the event loop parses. Its bytes may be referred to
several times."""
JSON_ON_LOOP: Final = 64 * KIB
"""Maximum size of metadata as JSON that the event loop parses."""
MAX_JSON: Final = 4 * MIB
"""Maximum size of metadata as JSON: each value becomes a Python object that the event loop
reads."""

# ---- towards clients


def write_metadata(answer: ModelMetadata) -> bytes:
    """Write the MetadataResponse."""
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
    """Write the JSON with which graphpipe-go answers a GET."""
    version, server, description = _about(answer)
    document = {
        "Name": answer.name,
        "Version": version,
        "Server": server,
        "Description": description,
        "Inputs": [_io_json(tensor) for tensor in answer.inputs],
        "Outputs": [_io_json(tensor) for tensor in answer.outputs],
    }
    return json.dumps(document, indent=4, ensure_ascii=False).encode("utf-8", "replace")


def _io_json(told: TensorMetadata) -> dict[str, Any]:
    return {
        "Name": told.name,
        "Description": told.description,
        "Shape": list(told.shape),
        "Type": told_number(told.datatype),
    }


def _about(answer: ModelMetadata) -> tuple[str, str, str]:
    """Return version, server and description (Rule 2)."""
    if answer.server or answer.server_version or answer.description:
        return answer.server_version, answer.server, answer.description
    return ", ".join(answer.versions), _SERVER, answer.platform


# ---- from backends


def read_metadata(table: Table, model: str, limits: Limits) -> ModelMetadata:
    """Read a MetadataResponse as the metadata of ``model``, which the server may call otherwise.
    Raises BAD_REQUEST for an invalid message, and NeedsOffloadError on the event loop."""
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
    """Read a MetadataResponse as the metadata of the server. Raises BAD_REQUEST."""
    return ServerMetadata(table.text(SERVER), table.text(VERSION))


def _read_ios(table: Table, field: Field, limits: Limits) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(
            tensor.text(IO_NAME),
            told_name(tensor.byte(IO_TYPE)),
            tensor.longs(IO_SHAPE, limits.rank),
            description=tensor.text(IO_DESCRIPTION),
        )
        for tensor in table.tables(field, MOST)
    )


def read_json(body: bytes, limits: Limits) -> dict[str, Any]:
    """Parse the response to a GET. Raises BACKEND_GARBAGE, and NeedsOffloadError on the event
    loop."""
    check_loop(limits, len(body), JSON_ON_LOOP)
    try:
        document = json.loads(body) if len(body) <= min(limits.json, MAX_JSON) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise garbage("the backend's metadata is not a JSON object")
    return document


def metadata_of_json(told: dict[str, Any], model: str, limits: Limits) -> ModelMetadata:
    """Read JSON like :func:`read_metadata`. Raises BACKEND_GARBAGE."""
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
    """Read JSON like :func:`read_server`."""
    return ServerMetadata(_text_of_json(told, "Server"), _text_of_json(told, "Version"))


def _text_of_json(told: dict[str, Any], key: str) -> str:
    text = told.get(key)
    return text if isinstance(text, str) else ""


def _ios_of_json(told: Any, limits: Limits) -> tuple[TensorMetadata, ...]:
    match told:
        case None:  # Go writes an empty list as null
            return ()
        case list():
            return tuple(_io_of_json(item, limits) for item in told)
    raise garbage("the backend's metadata has no list of inputs or outputs")


def _io_of_json(told: Any, limits: Limits) -> TensorMetadata:
    match told:
        case {"Name": str(name), "Shape": list() | None as shape, "Type": int(number)}:
            dimensions = tuple(shape or ())
            if len(dimensions) <= limits.rank and all(
                type(dimension) is int for dimension in dimensions
            ):
                description = _text_of_json(told, "Description")
                return TensorMetadata(name, told_name(number), dimensions, description=description)
    raise garbage("the backend's metadata has an invalid input or output")

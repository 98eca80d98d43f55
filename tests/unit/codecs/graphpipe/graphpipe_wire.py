"""Write and read GraphPipe messages with the flatbuffers library, and verify them strictly."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
from graphpipe_schema import (
    Error,
    InferRequest,
    InferResponse,
    IOMetadata,
    MetadataResponse,
    Request,
    Tensor,
)

# ---- the schema for the verifier, as tables of (field, kind)

SCHEMA: dict[str, list[tuple[str, str]]] = {
    "Tensor": [("type", "u8"), ("shape", "[i64]"), ("data", "[u8]"), ("string_val", "[string]")],
    "InferRequest": [
        ("config", "string"),
        ("input_names", "[string]"),
        ("input_tensors", "[Tensor]"),
        ("output_names", "[string]"),
    ],
    "MetadataRequest": [],
    "Request": [("req_type", "u8"), ("req", "union")],
    "Error": [("code", "i64"), ("message", "string")],
    "InferResponse": [("output_tensors", "[Tensor]"), ("errors", "[Error]")],
    "IOMetadata": [
        ("name", "string"),
        ("description", "string"),
        ("shape", "[i64]"),
        ("type", "u8"),
    ],
    "MetadataResponse": [
        ("name", "string"),
        ("version", "string"),
        ("server", "string"),
        ("description", "string"),
        ("inputs", "[IOMetadata]"),
        ("outputs", "[IOMetadata]"),
    ],
}
UNION = {1: "InferRequest", 2: "MetadataRequest"}
SIZES = {"u8": 1, "i64": 8}


@dataclass
class Verifier:
    """Perform the checks of the C++ verifier (bounds, alignment, positive offsets, NUL after
    strings), and check that no two objects overlap unless they are the same object."""

    data: bytes

    def require(self, offset: int, size: int, align: int) -> None:
        assert 0 <= offset <= offset + size <= len(self.data), (offset, size)
        assert offset % align == 0, (offset, align)

    def unpack(self, struct_format: str, offset: int) -> int:
        size = struct.calcsize(struct_format)
        self.require(offset, size, size)
        return int(struct.unpack_from(struct_format, self.data, offset)[0])

    def offset(self, position: int) -> int:
        offset = self.unpack("<I", position)
        assert 0 < offset < 2**31
        return position + offset

    def table(self, start: int, name: str) -> dict[str, Any]:
        vtable = start - self.unpack("<i", start)
        size, inline = self.unpack("<H", vtable), self.unpack("<H", vtable + 2)
        assert size % 2 == 0
        assert size >= 4
        self.require(vtable, size, 2)
        self.require(start, inline, 4)
        values: dict[str, Any] = {}
        for index, (field, kind) in enumerate(SCHEMA[name]):
            entry = 4 + 2 * index
            relative = self.unpack("<H", vtable + entry) if entry < size else 0
            if relative:
                assert 4 <= relative < inline
                field_kind = UNION[values["req_type"]] if kind == "union" else kind
                values[field] = self.field(start + relative, field_kind)
        return values

    def field(self, offset: int, kind: str) -> Any:
        if kind == "u8":
            return self.unpack("<B", offset)
        if kind == "i64":
            return self.unpack("<q", offset)
        target = self.offset(offset)
        if kind == "string":
            return self.string(target)
        if not kind.startswith("["):
            return self.table(target, kind)
        element = kind[1:-1]
        length = self.unpack("<I", target)
        width = SIZES.get(element, 4)
        self.require(target + 4, length * width, width)
        if element == "u8":
            return self.data[target + 4 : target + 4 + length]
        return [self.field(target + 4 + width * i, element) for i in range(length)]

    def string(self, offset: int) -> bytes:
        length = self.unpack("<I", offset)
        self.require(offset + 4, length + 1, 1)
        assert self.data[offset + 4 + length] == 0
        return self.data[offset + 4 : offset + 4 + length]


def verify(data: bytes, root: str) -> dict[str, Any]:
    """Check the message strictly, and return the fields that are present."""
    verifier = Verifier(data)
    return verifier.table(verifier.offset(0), root)


# ---- messages read with the generated code


def read_tensor(tensor: Any) -> dict[str, Any]:
    return {
        "type": tensor.Type(),
        "shape": [tensor.Shape(i) for i in range(tensor.ShapeLength())],
        "data": bytes(tensor.DataAsNumpy()) if tensor.DataLength() else b"",
        "string_val": [tensor.StringVal(i) for i in range(tensor.StringValLength())],
    }


def read_request(data: bytes) -> dict[str, Any]:
    request = Request.Request.GetRootAs(data)
    inner = InferRequest.InferRequest()
    inner.Init(request.Req().Bytes, request.Req().Pos)
    return {
        "config": inner.Config(),
        "input_names": [inner.InputNames(i) for i in range(inner.InputNamesLength())],
        "input_tensors": [
            read_tensor(inner.InputTensors(i)) for i in range(inner.InputTensorsLength())
        ],
        "output_names": [inner.OutputNames(i) for i in range(inner.OutputNamesLength())],
    }


def read_response(data: bytes) -> dict[str, Any]:
    response = InferResponse.InferResponse.GetRootAs(data)
    return {
        "output_tensors": [
            read_tensor(response.OutputTensors(i)) for i in range(response.OutputTensorsLength())
        ],
        "errors": [
            (response.Errors(i).Code(), response.Errors(i).Message())
            for i in range(response.ErrorsLength())
        ],
    }


# ---- messages written with the library's Builder, without the fields that are None

Numbers = tuple[int, Sequence[int] | None, bytes | None]
Strings = tuple[int, Sequence[int] | None, Sequence[bytes] | None]


def _strings(builder: Any, strings: Sequence[bytes]) -> int:
    offsets = [builder.CreateString(string) for string in strings]
    return _offsets(builder, offsets)


def _offsets(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _longs(builder: Any, numbers: Sequence[int]) -> int:
    builder.StartVector(8, len(numbers), 8)
    for number in reversed(numbers):
        builder.PrependInt64(number)
    return int(builder.EndVector())


def _tensor(builder: Any, spec: Numbers | Strings) -> int:
    kind, dims, content = spec
    shape = None if dims is None else _longs(builder, dims)
    data = string_val = None
    if isinstance(content, bytes):
        data = builder.CreateByteVector(content)
    elif content is not None:
        string_val = _strings(builder, content)
    Tensor.Start(builder)
    Tensor.AddType(builder, kind)
    offsets = ((Tensor.AddShape, shape), (Tensor.AddData, data), (Tensor.AddStringVal, string_val))
    _add_fields(builder, offsets)
    return int(Tensor.End(builder))


def _tensors(builder: Any, specs: Sequence[Numbers | Strings] | None) -> int | None:
    if specs is None:
        return None
    return _offsets(builder, [_tensor(builder, spec) for spec in specs])


def _add_fields(builder: Any, fields: Sequence[tuple[Callable[..., Any], int | None]]) -> None:
    for add, offset in fields:
        if offset is not None:
            add(builder, offset)


def request(
    tensors: Sequence[Numbers | Strings] | None = None,
    *,
    config: bytes | None = None,
    input_names: Sequence[bytes] | None = None,
    output_names: Sequence[bytes] | None = None,
    kind: int = 1,
) -> bytes:
    builder = flatbuffers.Builder(0)
    text = None if config is None else builder.CreateString(config)
    names = None if input_names is None else _strings(builder, input_names)
    outputs = None if output_names is None else _strings(builder, output_names)
    inputs = _tensors(builder, tensors)
    InferRequest.Start(builder)
    _add_fields(
        builder,
        (
            (InferRequest.AddConfig, text),
            (InferRequest.AddInputNames, names),
            (InferRequest.AddInputTensors, inputs),
            (InferRequest.AddOutputNames, outputs),
        ),
    )
    inner = InferRequest.End(builder)
    Request.Start(builder)
    Request.AddReqType(builder, kind)
    Request.AddReq(builder, inner)
    builder.Finish(Request.End(builder))
    return bytes(builder.Output())


def response(
    tensors: Sequence[Numbers | Strings] | None = None,
    errors: Sequence[tuple[int, bytes | None]] | None = None,
) -> bytes:
    builder = flatbuffers.Builder(0)
    outputs = _tensors(builder, tensors)
    error_vector = None
    if errors is not None:
        offsets = []
        for code, message in errors:
            text = None if message is None else builder.CreateString(message)
            Error.Start(builder)
            Error.AddCode(builder, code)
            _add_fields(builder, ((Error.AddMessage, text),))
            offsets.append(Error.End(builder))
        error_vector = _offsets(builder, offsets)
    InferResponse.Start(builder)
    _add_fields(
        builder,
        ((InferResponse.AddOutputTensors, outputs), (InferResponse.AddErrors, error_vector)),
    )
    builder.Finish(InferResponse.End(builder))
    return bytes(builder.Output())


def metadata(
    inputs: Sequence[tuple[bytes, int]], *, server: bytes = b"gpt", version: bytes = b"1.2"
) -> bytes:
    builder = flatbuffers.Builder(0)
    tables = []
    for name, kind in inputs:
        text = builder.CreateString(name)
        IOMetadata.Start(builder)
        IOMetadata.AddName(builder, text)
        IOMetadata.AddType(builder, kind)
        tables.append(IOMetadata.End(builder))
    vector = _offsets(builder, tables)
    texts = [builder.CreateString(text) for text in (server, version)]
    MetadataResponse.Start(builder)
    MetadataResponse.AddServer(builder, texts[0])
    MetadataResponse.AddVersion(builder, texts[1])
    MetadataResponse.AddInputs(builder, vector)
    builder.Finish(MetadataResponse.End(builder))
    return bytes(builder.Output())

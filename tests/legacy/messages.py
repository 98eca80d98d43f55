"""The legacy API's messages, and their text form as printed by the C++ servers.

``trtis.proto`` is compiled on import into separate descriptor pools, because tritonclient and
infergate register messages of the same names. Each version of the API has its own pool, so a field
that a version does not define is an error.

The text form differs from the protobuf library's text form: Python prints ``8.0`` where C++ prints
``8``."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_encoding
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_tools import protoc

_PROTO = Path(__file__).with_name("trtis.proto")
_PACKAGE = "nvidia.inferenceserver"
SERVICE = f"{_PACKAGE}.GRPCService"
_SINGLE = (Message, str, bytes, int, float)
_SINCE_1_12 = (
    ("InferRequestHeader", "priority"),
    ("InferRequestHeader", "timeout_microseconds"),
    ("InferResponseHeader.Output", "data_type"),
)


@functools.cache
def _compiled() -> bytes:
    with tempfile.TemporaryDirectory(prefix="infergate-") as folder:
        out = Path(folder) / "trtis.binpb"
        if protoc.main(["", f"-I{_PROTO.parent}", f"--descriptor_set_out={out}", _PROTO.name]):
            raise RuntimeError(f"{_PROTO} does not compile")
        return out.read_bytes()


def _descriptor(descriptors: Any, name: str) -> Any:
    (descriptor,) = (each for each in descriptors if each.name == name)
    return descriptor


class Messages:
    """The message classes of one version, as attributes: ``Messages("1.9").InferRequestHeader``."""

    def __init__(self, level: str) -> None:
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(_compiled()).file
        if level == "1.9":
            for path, name in _SINCE_1_12:
                outer, _, inner = path.partition(".")
                owner = _descriptor(file.message_type, outer)
                owner = _descriptor(owner.nested_type, inner) if inner else owner
                owner.field.remove(_descriptor(owner.field, name))
        self.pool = descriptor_pool.DescriptorPool()
        self.pool.Add(file)

    def __getattr__(self, name: str) -> Any:
        message_class = message_factory.GetMessageClass(
            self.pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        setattr(self, name, message_class)
        return message_class


def debug_string(message: Message) -> bytes:
    """Return the message as C++ DebugString prints it, with one line per field."""
    return "".join(f"{'  ' * depth}{text}\n" for depth, text in _lines(message, 0)).encode()


def short_debug_string(message: Message) -> bytes:
    """Return the message as C++ ShortDebugString prints it, in a single line."""
    return " ".join(text for _, text in _lines(message, 0)).encode()


def _lines(message: Message, depth: int) -> Iterator[tuple[int, str]]:
    for field, value in message.ListFields():  # by field number
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, item = field.message_type.fields
            for each in sorted(value):
                yield depth, f"{field.name} {{"
                yield from _field(key, each, depth + 1)
                yield from _field(item, value[each], depth + 1)
                yield depth, "}"
            continue
        for each in [value] if isinstance(value, _SINGLE) else value:
            yield from _field(field, each, depth)


def _field(field: FieldDescriptor, value: Any, depth: int) -> Iterator[tuple[int, str]]:
    if field.message_type is None:
        yield depth, f"{field.name}: {_scalar(field, value)}"
        return
    yield depth, f"{field.name} {{"
    yield from _lines(value, depth + 1)
    yield depth, "}"


def _scalar(field: FieldDescriptor, value: Any) -> str:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_ENUM:
            names = field.enum_type.values_by_number
            return names[value].name if value in names else str(value)
        case FieldDescriptor.CPPTYPE_BOOL:
            return "true" if value else "false"
        case FieldDescriptor.CPPTYPE_STRING:
            return f'"{text_encoding.CEscape(value, as_utf8=False)}"'
        case FieldDescriptor.CPPTYPE_FLOAT:
            return _float(value)
    return str(value)


def _float(value: float) -> str:
    """Return the float as C++ SimpleFtoa prints it: with six digits if they identify this float, or
    else with nine.
    """
    short = f"{value:.6g}"
    return short if np.float32(short) == np.float32(value) else f"{value:.9g}"

"""The legacy .proto equals the servers' .proto, except for one field number and the file name."""

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from infergate.codecs.protos import SCHEMA

PUBLISHED = Path(__file__).with_name("fields_v1.15.0.txt").read_text("utf-8").splitlines()
PACKAGE = "nvidia.inferenceserver"


def declarations(file: Any) -> set[str]:
    """Return all declarations of ``file`` in the format of PUBLISHED, without file names."""
    lines: set[str] = set()
    for message in file.message_type:
        lines |= message_declarations(message, message.name)
    for enum in file.enum_type:
        lines |= {f"enum {enum.name}.{value.name}={value.number}" for value in enum.value}
    for service in file.service:
        for method in service.method:
            request, response = (
                f"{'stream ' if streams else ''}{type_name.removeprefix(f'.{PACKAGE}.')}"
                for type_name, streams in (
                    (method.input_type, method.client_streaming),
                    (method.output_type, method.server_streaming),
                )
            )
            lines.add(f"rpc {service.name}.{method.name}({request}) -> {response}")
    return lines


def message_declarations(message: Any, name: str) -> set[str]:
    lines = {f"message {name}"}
    for field in message.field:
        kind = field.type_name.removeprefix(f".{PACKAGE}.")
        kind = kind or Field.Type.Name(field.type).removeprefix("TYPE_").lower()
        repeated = "repeated " if field.label == Field.LABEL_REPEATED else ""
        oneof = ""
        if field.HasField("oneof_index"):
            oneof = f" oneof:{message.oneof_decl[field.oneof_index].name}"
        lines.add(f"{name}.{field.name}={field.number} {repeated}{kind}{oneof}")
    for enum in message.enum_type:
        lines |= {f"enum {name}.{enum.name}.{value.name}={value.number}" for value in enum.value}
    for nested in message.nested_type:
        lines |= message_declarations(nested, f"{name}.{nested.name}")
    return lines


def test_all_declarations_but_one_equal_the_published_release() -> None:
    (raw,) = SCHEMA.files_by_symbol(f"{PACKAGE}.GRPCService")
    declared = declarations(descriptor_pb2.FileDescriptorProto.FromString(raw))
    published = {line.partition(" ")[2] for line in PUBLISHED}
    expected = {declaration for declaration in published if not re.match("package ", declaration)}
    regions = "SharedMemoryControlResponse.Status.shared_memory_region={} repeated "
    # The servers use field number 2, although their published .proto has 1.
    assert declared - expected == {regions.format(2) + "SharedMemoryRegion"}
    assert expected - declared == {regions.format(1) + "SharedMemoryRegion"}


def test_the_proto_file_name_differs_from_the_servers() -> None:
    (raw,) = SCHEMA.files_by_symbol(f"{PACKAGE}.InferRequest")
    file = descriptor_pb2.FileDescriptorProto.FromString(raw)
    assert file.name == "legacy_inference_server.proto"
    assert not file.dependency

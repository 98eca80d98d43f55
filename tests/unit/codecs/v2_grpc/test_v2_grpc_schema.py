"""The committed descriptor set is that of proto/, and coexists with tritonclient's."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from infergate.codecs.protos import SCHEMA, ProtoSchema

ROOT = Path(__file__).resolve().parents[4]
COMMITTED = ROOT / "src/infergate/codecs/protos/schema.binpb"

BOTH = """
import numpy as np
{imports}
from infergate.codecs.v2_grpc.messages import ModelInferRequest as ours
from tritonclient.grpc.service_pb2 import ModelInferRequest as theirs
assert ours.DESCRIPTOR.full_name == theirs.DESCRIPTOR.full_name
assert ours.DESCRIPTOR is not theirs.DESCRIPTOR
message = theirs(model_name="m", raw_input_contents=[b"abc"])
assert ours.FromString(message.SerializeToString()).raw_input_contents == [b"abc"]
print("both")
"""
OURS = "import infergate.codecs.v2_grpc"
THEIRS = "import tritonclient.grpc"


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_committed_descriptor_is_a_fresh_compile(tmp_path: Path) -> None:
    run(str(ROOT / "proto/generate.py"), str(tmp_path / "fresh.binpb"))
    read = descriptor_pb2.FileDescriptorSet.FromString
    assert read((tmp_path / "fresh.binpb").read_bytes()) == read(COMMITTED.read_bytes())


@pytest.mark.parametrize("imports", [f"{OURS}\n{THEIRS}", f"{THEIRS}\n{OURS}"])
def test_modules_can_be_imported_in_either_order(imports: str) -> None:
    assert run("-W", "error", "-c", BOTH.format(imports=imports)) == "both\n"


def compare(ours: Any, theirs: Any) -> int:
    """Return how many fields of ``ours`` equal the field of the same number in ``theirs``."""
    count = 0
    known = {field.number: field for field in theirs.fields}
    for field in ours.field:
        if (theirs.name, field.number) in {("ModelMetadataResponse", 6), ("TensorMetadata", 4)}:
            continue  # not in Triton's schema
        assert known[field.number].name == field.name, theirs.name
        assert known[field.number].type == field.type, theirs.name
        count += 1
    for nested in ours.nested_type:
        if nested.name in theirs.nested_types_by_name:
            count += compare(nested, theirs.nested_types_by_name[nested.name])
    return count


OTHERS = ("KServeModelRequest", "KServeModelResponse")
"""Messages of other servers that differ from Triton's."""


def test_fields_equal_tritons() -> None:
    (raw,) = SCHEMA.files_by_symbol("inference.GRPCInferenceService")
    file = descriptor_pb2.FileDescriptorProto.FromString(raw)
    ours = [message for message in file.message_type if message.name not in OTHERS]
    theirs = {
        **service_pb2.DESCRIPTOR.message_types_by_name,
        **model_config_pb2.DESCRIPTOR.message_types_by_name,
    }
    assert {message.name for message in ours} <= set(theirs)
    assert sum(compare(message, theirs[message.name]) for message in ours) > 300


def test_schema_finds_files_with_their_imports() -> None:
    proto = descriptor_pb2.FileDescriptorProto
    base = proto(name="base.proto", package="t", syntax="proto3")
    base.message_type.add(name="Base")
    user = proto(name="user.proto", package="t", syntax="proto3", dependency=["base.proto"])
    user.message_type.add(name="User").field.add(
        name="base", number=1, type="TYPE_MESSAGE", label="LABEL_OPTIONAL", type_name=".t.Base"
    )
    again = proto(name="again.proto", syntax="proto3", dependency=["user.proto", "base.proto"])
    schema = ProtoSchema(
        descriptor_pb2.FileDescriptorSet(file=[base, user, again]).SerializeToString()
    )
    assert {proto.FromString(f).name for f in schema.files_by_symbol("t.User.base")} == {
        "user.proto",
        "base.proto",
    }
    assert len(schema.files_by_name("again.proto")) == 3
    with pytest.raises(KeyError):
        schema.files_by_name("nosuch.proto")
    with pytest.raises(KeyError):
        schema.files_by_symbol("t.Nobody")
    with pytest.raises(KeyError):
        schema.message_class("t.Nobody")

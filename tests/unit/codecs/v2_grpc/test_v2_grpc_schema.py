"""The committed descriptor set is compiled from proto/, and coexists with that of tritonclient."""

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

IMPORT_SCRIPT = """
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
INFERGATE = "import infergate.codecs.v2_grpc"
TRITONCLIENT = "import tritonclient.grpc"


def run(*arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=250
    )
    return finished.stdout


def test_committed_descriptor_is_a_fresh_compile(tmp_path: Path) -> None:
    run(str(ROOT / "proto/generate.py"), str(tmp_path / "fresh.binpb"))
    read = descriptor_pb2.FileDescriptorSet.FromString
    assert read((tmp_path / "fresh.binpb").read_bytes()) == read(COMMITTED.read_bytes())


@pytest.mark.parametrize(
    "imports", [f"{INFERGATE}\n{TRITONCLIENT}", f"{TRITONCLIENT}\n{INFERGATE}"]
)
def test_modules_can_be_imported_in_either_order(imports: str) -> None:
    assert run("-W", "error", "-c", IMPORT_SCRIPT.format(imports=imports)) == "both\n"


def compare(declared: Any, triton: Any) -> int:
    """Check that the fields of ``declared`` equal those of ``triton``, and return their number."""
    count = 0
    triton_fields = {field.number: field for field in triton.fields}
    for field in declared.field:
        if (triton.name, field.number) in {("ModelMetadataResponse", 6), ("TensorMetadata", 4)}:
            continue  # not in Triton's schema
        assert triton_fields[field.number].name == field.name, triton.name
        assert triton_fields[field.number].type == field.type, triton.name
        count += 1
    for nested in declared.nested_type:
        if nested.name in triton.nested_types_by_name:
            count += compare(nested, triton.nested_types_by_name[nested.name])
    return count


KSERVE_MESSAGES = ("KServeModelRequest", "KServeModelResponse")
"""KServe's own messages, which Triton's schema does not contain."""


def test_fields_equal_tritons_fields() -> None:
    (raw,) = SCHEMA.files_by_symbol("inference.GRPCInferenceService")
    file = descriptor_pb2.FileDescriptorProto.FromString(raw)
    declared = [message for message in file.message_type if message.name not in KSERVE_MESSAGES]
    triton = {
        **service_pb2.DESCRIPTOR.message_types_by_name,
        **model_config_pb2.DESCRIPTOR.message_types_by_name,
    }
    assert {message.name for message in declared} <= set(triton)
    assert sum(compare(message, triton[message.name]) for message in declared) > 300


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
        schema.files_by_symbol("t.Missing")
    with pytest.raises(KeyError):
        schema.message_class("t.Missing")

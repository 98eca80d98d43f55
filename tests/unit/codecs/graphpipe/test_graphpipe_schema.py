"""The generated code is up to date; the codec and the tests' verifier agree with the schema."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from graphpipe_schema.Req import Req
from graphpipe_schema.Type import Type
from graphpipe_wire import SCHEMA, UNION

from infergate.codecs.graphpipe import fields
from infergate.codecs.graphpipe.datatypes import TYPE_NUMBERS
from infergate.core.datatypes import Datatype

ROOT = Path(__file__).resolve().parents[4]
COMMITTED = ROOT / "fbs" / "graphpipe_schema"
SOURCE = re.sub("//.*", "", (ROOT / "fbs" / "graphpipe.fbs").read_text("utf-8"))
KINDS = {"Type": "u8", "[uint8]": "[u8]", "[int64]": "[i64]", "int64": "i64"}


@pytest.mark.skipif(shutil.which("flatc") is None, reason="flatc is not installed")
def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    folder = tmp_path / "graphpipe_schema"
    subprocess.run([sys.executable, ROOT / "fbs" / "generate.py", folder], check=True)
    created = {path.name: path.read_text("utf-8") for path in folder.glob("*.py")}
    assert created == {path.name: path.read_text("utf-8") for path in COMMITTED.glob("*.py")}


def declared_tables() -> dict[str, list[tuple[str, str]]]:
    """Return the tables of the .fbs; a union counts as two fields."""
    tables = {}
    for name, body in re.findall(r"table (\w+) \{(.*?)\}", SOURCE, re.DOTALL):
        members = re.findall(r"(\w+): (\S+);", body)
        tables[name] = [
            member
            for field, kind in members
            for member in (
                [(f"{field}_type", "u8"), (field, "union")]
                if kind == "Req"
                else [(field, KINDS.get(kind, kind))]
            )
        ]
    return tables


def test_the_verifier_follows_the_schema() -> None:
    assert declared_tables() == SCHEMA
    (union,) = re.findall(r"union Req \{ (.*?) \}", SOURCE)
    assert dict(enumerate(union.split(", "), 1)) == UNION


TABLES = {
    "Request": ("REQ_TYPE", "REQ"),
    "InferRequest": ("CONFIG", "INPUT_NAMES", "INPUT_TENSORS", "OUTPUT_NAMES"),
    "InferResponse": ("OUTPUT_TENSORS", "ERRORS"),
    "Tensor": ("TYPE", "SHAPE", "DATA", "STRING_VAL"),
    "Error": ("CODE", "MESSAGE"),
    "MetadataResponse": ("NAME", "VERSION", "SERVER", "DESCRIPTION", "INPUTS", "OUTPUTS"),
    "IOMetadata": ("IO_NAME", "IO_DESCRIPTION", "IO_SHAPE", "IO_TYPE"),
}


def test_field_positions_agree_with_the_schema() -> None:
    constants = {name for name, v in vars(fields).items() if isinstance(v, fields.TableField)}
    assert constants == {name for names in TABLES.values() for name in names}
    for table, names in TABLES.items():
        positions = {field: 4 + 2 * position for position, (field, _) in enumerate(SCHEMA[table])}
        for name in names:
            field = getattr(fields, name)
            assert field.entry == positions[field.name], name


def test_type_numbers_equal_those_of_the_schema() -> None:
    names = {Datatype.BYTES: "String", Datatype.FP16: "Float16"}
    names |= {Datatype.FP32: "Float32", Datatype.FP64: "Float64"}
    for datatype in Datatype:
        name = names.get(datatype, datatype.value.capitalize())
        assert TYPE_NUMBERS.get(datatype) == getattr(Type, name, None), datatype
    assert len(TYPE_NUMBERS) == 12
    assert Req.InferRequest == fields.INFER
    assert Req.MetadataRequest == fields.METADATA

"""The models that a real Triton serves in the tests, in the form of a model repository.

=================  =========================================================================
id_<DATATYPE>      INPUT0 [-1] → OUTPUT0, one for each datatype of the protocol (BYTES is
                   id_BYTES; id_STRING is the same model under Triton's name)
id_image           FP32 [-1,3,224,224] → OUTPUT0
id_photo           UINT8 [-1,-1,-1,3] → OUTPUT0
simple             INT32 [-1,16] twice → sum and difference, batches of up to 8
simple_int8        ``simple`` with INT8
simple_string      ``simple`` with BYTES that contain decimal numbers
simple_identity    BYTES [-1,-1] → OUTPUT0, batches of up to 8
repeat_int32       decoupled: one response per element
accumulate         INPUT INT32 [1] → OUTPUT, the sum of its sequence so far
classify           FP32 [10] → OUTPUT0 [10] with a label for each position
slow               INPUT0 → OUTPUT0 after SECONDS; CANCELLED counts cancelled requests
versions           versions 1 and 3, which return their number
embed              BYTES [-1,1] → EMBEDDING FP32 [-1,4] and TOKENS INT32 [-1,1]
perturbed          INPUT0 → SCORES FP32 [-1] and LABEL, with the error CHANGE in some servers
fail               fails as INPUT0 specifies (NOT_FOUND, UNAVAILABLE … or anything else)
=================  =========================================================================
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class Port:
    """An input or output of a model."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    options: str = ""

    def declaration(self) -> str:
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        dims = ", ".join(map(str, self.dims))
        return f'{{ name: "{self.name}" data_type: TYPE_{kind} dims: [ {dims} ] {self.options} }}'


@dataclass(frozen=True)
class Model:
    """One model of the repository; ``source`` is the file of its code."""

    name: str
    source: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batch: int = 0
    options: str = ""
    versions: tuple[int, ...] = (1,)
    labels: tuple[str, ...] = ()

    def config(self) -> str:
        return "\n".join([
            f'name: "{self.name}"',
            'backend: "python"',
            f"max_batch_size: {self.batch}",
            f"input [ {', '.join(port.declaration() for port in self.inputs)} ]",
            f"output [ {', '.join(port.declaration() for port in self.outputs)} ]",
            "instance_group [ { kind: KIND_CPU } ]",
            self.options,
            "",
        ])  # fmt: skip

    def write(self, repository: Path) -> None:
        folder = repository / self.name
        for version in self.versions:
            (folder / str(version)).mkdir(parents=True)
            shutil.copy(SOURCES / f"{self.source}.py", folder / str(version) / "model.py")
        (folder / "config.pbtxt").write_text(self.config())
        if self.labels:
            (folder / "labels.txt").write_text("\n".join(self.labels) + "\n")


def _identity(name: str, datatype: str, dims: tuple[int, ...] = (-1,), batch: int = 0) -> Model:
    ports = ((Port("INPUT0", datatype, dims),), (Port("OUTPUT0", datatype, dims),))
    return Model(name, "identity", *ports, batch)


def _sum_difference(name: str, datatype: str) -> Model:
    inputs, outputs = (
        tuple(Port(f"{word}{i}", datatype, (16,)) for i in range(2)) for word in ("INPUT", "OUTPUT")
    )
    return Model(name, "sum_difference", inputs, outputs, batch=8)


MODELS = (
    *(_identity(f"id_{datatype}", datatype) for datatype in DATATYPES),
    _identity("id_STRING", "BYTES"),
    _identity("id_image", "FP32", (-1, 3, 224, 224)),
    _identity("id_photo", "UINT8", (-1, -1, -1, 3)),
    _identity("simple_identity", "BYTES", batch=8),
    _sum_difference("simple", "INT32"),
    _sum_difference("simple_int8", "INT8"),
    _sum_difference("simple_string", "BYTES"),
    Model(
        "repeat_int32",
        "repeat",
        (Port("IN", "INT32", (-1,)), Port("DELAY", "UINT32", (-1,)), Port("WAIT", "UINT32", (1,))),
        (Port("OUT", "INT32", (1,)), Port("IDX", "UINT32", (1,))),
        options="model_transaction_policy { decoupled: True }",
    ),
    Model(
        "accumulate",
        "accumulate",
        (Port("INPUT", "INT32", (1,)),),
        (Port("OUTPUT", "INT32", (1,)),),
        options="""sequence_batching { control_input [
          { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }
        ] }""",
    ),
    Model(
        "classify",
        "identity",
        (Port("INPUT0", "FP32", (10,)),),
        (Port("OUTPUT0", "FP32", (10,), 'label_filename: "labels.txt"'),),
        labels=LABELS,
    ),
    Model(
        "slow",
        "slow",
        (Port("INPUT0", "INT32", (-1,)), Port("SECONDS", "FP32", (1,))),
        (Port("OUTPUT0", "INT32", (-1,)), Port("CANCELLED", "INT32", (1,))),
    ),
    Model(
        "versions",
        "version",
        (Port("INPUT0", "INT32", (-1,)),),
        (Port("VERSION", "INT32", (1,)),),
        options="version_policy { specific { versions: [ 1, 3 ] } }",
        versions=(1, 3),
    ),
    Model(
        "embed",
        "embed",
        (Port("TEXT", "BYTES", (1,)),),
        (Port("EMBEDDING", "FP32", (4,)), Port("TOKENS", "INT32", (1,))),
        batch=64,
    ),
    Model(
        "perturbed",
        "perturbed",
        (Port("INPUT0", "FP32", (-1,)), Port("CHANGE", "BYTES", (1,))),
        (Port("SCORES", "FP32", (-1,)), Port("LABEL", "INT64", (1,))),
    ),
    Model("fail", "fail", (Port("INPUT0", "BYTES", (-1,)),), (Port("OUTPUT0", "BYTES", (-1,)),)),
)


def write_repository(folder: Path) -> None:
    """Write all models into the empty ``folder``."""
    for model in MODELS:
        model.write(folder)

"""Compile the .proto files into the descriptor set that the package carries.

    python proto/generate.py [OUT]

This script needs grpcio-tools (in the ``test`` extra); running infergate does not. A test checks
that the committed file is current.
"""
# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMITTED = HERE.parent / "src" / "infergate" / "codecs" / "protos" / "schema.binpb"
SOURCES = (
    "open_inference.proto",
    "legacy_inference_server.proto",
    "tensorflow_serving.proto",
    "recording.proto",
    "grpc_health.proto",
    "grpc_reflection.proto",
    "grpc_reflection_v1alpha.proto",
)


def compile_to(out: Path) -> None:
    """Write the descriptor set of all SOURCES to ``out``. Raises CalledProcessError."""
    protoc = (sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={HERE}")
    options = ("--include_imports", f"--descriptor_set_out={out}")
    subprocess.run([*protoc, *options, *SOURCES], check=True)  # noqa: S603 - our own arguments


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]) if len(sys.argv) > 1 else COMMITTED)

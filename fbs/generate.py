"""Compile graphpipe.fbs into Python code, with which tests read messages as real clients do.

    python fbs/generate.py [FOLDER]

Needs flatc (Debian and Ubuntu: flatbuffers-compiler). A test fails if the committed code differs
from the output of this script.
"""
# ruff: noqa: INP001 - a script, not part of a package

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMESPACE = "graphpipe_schema"
COMMITTED = HERE / NAMESPACE


def compile_to(out: Path) -> None:
    """Write a module for each type of the schema to ``out``. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:  # flatc empties every __init__.py on its way
        command = ("flatc", "--python", "-o", folder, str(HERE / "graphpipe.fbs"))
        subprocess.run(command, check=True)  # noqa: S603 - our own arguments
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(Path(folder) / NAMESPACE, out)


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]) if len(sys.argv) > 1 else COMMITTED)

"""The build backend: setuptools, which lets mypyc compile the modules listed in pyproject.toml if
INFERGATE_COMPILE=1 is set. The package is otherwise pure Python.

setuptools runs this file as a script; pip imports it as the backend, to find out that a compiled
wheel needs mypyc.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta, setup
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

_PROJECT = Path(__file__).parent
_BUILDING = {"bdist_wheel", "build", "build_ext"}
"""The commands for which the extension is generated. Commands that read metadata do not need it."""


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return setuptools' own requirements, and mypyc's for a compiled wheel."""
    required: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if not _is_compiling():
        return required
    return [*required, *_pyproject()["project"]["optional-dependencies"]["compile"]]


def _is_compiling() -> bool:
    return os.environ.get("INFERGATE_COMPILE") == "1"


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((_PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


def _extensions() -> list[Any]:
    if not _is_compiling() or not _BUILDING & set(sys.argv):
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - only a compiled wheel needs mypyc

    groups: dict[str, list[str]] = _pyproject()["tool"]["infergate"]["compiled"]
    paths = [f"src/infergate/{name}.py" for names in groups.values() for name in names]
    # The types are checked by `make types`. The types of dependencies are not read, even if the
    # dependencies are installed: mypyc would check values against the types, and some are wrong.
    options = [
        "--config-file=",
        "--no-site-packages",
        "--ignore-missing-imports",
        "--follow-imports=silent",
    ]
    # Higher levels take longer to compile, and the code is not faster.
    extensions: list[Any] = mypycify(
        [*options, *paths], opt_level="1", debug_level="0", group_name="infergate"
    )
    for each in extensions:
        # Looking for warnings in generated code takes half of gcc's time.
        each.extra_compile_args = [*each.extra_compile_args, "-Wno-all"]
    return extensions


if __name__ == "__main__":
    setup(ext_modules=_extensions())

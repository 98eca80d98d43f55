"""The names that ``infergate`` exports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import infergate

HEAVY = {"numpy", "pydantic", "asyncio", "yaml", "aiohttp"}


def test_importing_the_package_imports_nothing_else() -> None:
    program = "import sys; import infergate; print(*sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    loaded = set(output.split())
    assert {name for name in loaded if name.startswith("infergate")} == {"infergate"}
    assert not loaded & HEAVY


def test_every_public_name_is_importable_and_typed() -> None:
    assert set(infergate.__all__) == set(infergate._MODULES)
    for name in infergate.__all__:
        exported = getattr(infergate, name)
        assert exported.__name__ == name
        assert exported.__module__ == f"infergate.{infergate._MODULES[name]}"
    tree = ast.parse(Path(infergate.__file__).read_text("utf-8"))
    typed = {
        (alias.name, node.module)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {(name, f"infergate.{each}") for name, each in infergate._MODULES.items()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'infergate' has no attribute 'Gatway'"):
        _ = infergate.Gatway  # type: ignore[attr-defined]
    assert set(infergate.__all__) <= set(dir(infergate))

"""The names of a file's tests, to check that pages of docs/ refer to existing tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def named_tests(path: Path) -> frozenset[str]:
    """Return the names of functions, including methods, and of module attributes assigned from
    calls."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    assigned = (
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    )
    names |= {target.id for target in assigned if isinstance(target, ast.Name)}
    return frozenset(name for name in names if name.startswith("test"))

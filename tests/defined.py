"""The tests that a file has, by name: pages of docs/ tell which test holds what they say."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def named_tests(path: Path) -> frozenset[str]:
    """Functions, of classes too, and what a function of the module made and was given a name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    created = (
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    )
    names |= {target.id for target in created if isinstance(target, ast.Name)}
    return frozenset(name for name in names if name.startswith("test"))

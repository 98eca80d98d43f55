"""docs/glossary.md defines every public class of the package, and no other."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import infergate

SOURCES = Path(infergate.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
_ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \| (.+) \| (.+) \|$", re.MULTILINE)


@cache
def _public_classes() -> list[tuple[str, str]]:
    """Return the name and module of every public class, generated code excepted."""
    classes = []
    for path in sorted(SOURCES.rglob("*.py")):
        relative = path.relative_to(SOURCES).with_suffix("")
        if "schema" in relative.parts[:-1]:
            continue
        module = ".".join(relative.parts).removesuffix(".__init__")
        classes += [
            (node.name, module)
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
    return classes


def test_the_glossary_defines_every_public_class() -> None:
    rows = [(name, module) for name, module, *_ in _ROW.findall(GLOSSARY.read_text("utf-8"))]
    assert sorted(rows) == sorted(_public_classes())


def test_a_class_name_has_one_meaning() -> None:
    names = Counter(name for name, _ in _public_classes())
    assert [name for name, count in names.items() if count > 1] == []


def test_concepts_are_sorted_and_unique() -> None:
    concepts = GLOSSARY.read_text("utf-8").split("## Concepts")[1].split("\n## ")[0]
    terms = [line.split("|")[1].strip().lower() for line in concepts.splitlines()[4:] if line]
    assert terms == sorted(set(terms))

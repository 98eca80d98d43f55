"""Report coined identifiers and unidiomatic phrases, as far as a program can detect them.

Run by ``make lint``: ``python tests/plain_language.py PATH…`` checks Python files (identifiers,
docstrings, comments) and Markdown pages (phrases), prints one line per finding, and exits with
status 1 if there is any. `docs/glossary.md` lists the terms to use instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

COINED = frozenset(
    [
        "told",
        "telling",
        "asked",
        "asking",
        "most",
        "room",
        "rooms",
        "door",
        "doors",
        "turns",
        "labour",
        "aside",
        "company",
        "pulse",
        "waking",
        "lacks",
        "tally",
        "lease",
        "place",
        "places",
        "parcel",
        "wires",
        "untouched",
        "shield",
        "readdress",
        "relabel",
        "entrance",
        "vocabulary",
        "wording",
        "refusals",
        "remembered",
        "whose",
        "whom",
    ]
)
"""Words that no identifier may contain."""
STARTS = re.compile(r"(Of|What|Whom|Whose|Who|That|Those|Which|As|Where)\b(?! are | is )")
"""Matches the start of a relative clause. A docstring starts with a verb or a noun instead."""
PHRASES = re.compile(
    r"\b(?:(?:is|are|was|were|be|been) (?:told|asked|had|let alone)\b(?! (?:for|to)\b)"
    r"|of itself\b|(?-i:that is none)\b|(?:says?|said) so\b|to be had\b|lets? it alone\b"
    r"|goes along\b|comes to nothing\b|as they are\b(?! \w+ed\b)"
    r"|whoever\b|whom\b|nobody\b|somebody\b|towards\b)",
    re.IGNORECASE,
)
SEE = re.compile(r"See\s+\S+?\.?\s*$")
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_GENERATED = ("/schema/", "_pb2")


def in_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a description of every finding in Python source."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        name = _defined_name(node)
        if name and (coined := COINED.intersection(map(str.lower, _WORD.findall(name)))):
            line = getattr(node, "lineno", 1)
            yield line, f"identifier '{name}' contains '{min(coined)}'"
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from _in_docstring(text, node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (found := PHRASES.search(token.string)):
            yield token.start[0], f"comment: '{found[0]}'"


def in_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and a description of every finding in a Markdown page."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and (found := PHRASES.search(line)):
            yield number, f"text: '{found[0]}'"


def _in_docstring(text: str, line: int) -> Iterator[tuple[int, str]]:
    text = text.strip()
    if found := STARTS.match(text):
        yield line, f"docstring starts with '{found[0]}'"
    if SEE.fullmatch(text):
        yield line, "docstring only refers to another place"
    for found in PHRASES.finditer(text):
        yield line + text.count("\n", 0, found.start()), f"docstring: '{found[0]}'"


def _defined_name(node: ast.AST) -> str:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return ""


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted((*path.rglob("*.py"), *path.rglob("*.md")))
        else:
            yield path


def main(paths: Iterable[str]) -> int:
    """Print the findings in all files under ``paths``; return 1 if there are any, else 0."""
    found = 0
    for path in _files(paths):
        if any(part in path.as_posix() for part in _GENERATED):
            continue
        text = path.read_text(encoding="utf-8")
        for line, finding in (in_python if path.suffix == ".py" else in_text)(text):
            sys.stdout.write(f"{path}:{line}: {finding}\n")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

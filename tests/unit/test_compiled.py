"""Tests that the modules compiled by mypyc (see pyproject.toml) avoid code that mypyc does not
support or compiles incorrectly. docs/decisions/0050-compiled-engines.md lists these traps."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import infergate
from infergate.core.compilation import is_compiled, version_text

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "infergate"
GROUPS: dict[str, list[str]] = tomllib.loads(
    (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
)["tool"]["infergate"]["compiled"]
MODULES = [name for names in GROUPS.values() for name in names]
FORBIDDEN_DECORATORS = {"cached_property", "runtime_checkable"}
TYPED_PACKAGES = {*sys.stdlib_module_names, "infergate"}
"""The packages whose types mypy reads when the engines are compiled (setup.py)."""


def source(name: str) -> str:
    return (PACKAGE / f"{name}.py").read_text(encoding="utf-8")


def last_name(node: ast.expr) -> str:
    """Return the last name of ``a.b``, ``a.b[...]`` or ``a.b(...)``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return last_name(inner)
    return ""


def traps(text: str) -> Iterator[str]:
    """Yield the traps in a module's source."""
    tree = ast.parse(text)
    untyped = set(_untyped_names(tree))
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() if any(
                isinstance(each, ast.Yield) for each in ast.walk(node)
            ):
                yield f"{node.lineno}: an async generator"
            case ast.Try(handlers=handlers):
                names = [each.name for each in handlers if each.name]
                if len(names) > len(set(names)):
                    yield f"{node.lineno}: handlers of different types bind the same name"
            case ast.ClassDef():
                yield from _class_traps(node, untyped)
            case ast.AnnAssign(annotation=ast.Name(id="Final"), value=ast.Tuple(elts=elements)) if (
                any(isinstance(getattr(each, "value", None), float) for each in elements)
            ):
                yield f"{node.lineno}: a constant tuple of floats without the type tuple"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _deleted_parameters(node)
            yield from _decorated_functions(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for each in node.decorator_list:
                if last_name(each) in FORBIDDEN_DECORATORS:
                    yield f"{node.lineno}: {last_name(each)}"


def _decorated_functions(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef) and each is not node and each.decorator_list:
            yield f"{each.lineno}: decorates {each.name} inside a function"


def _deleted_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield deletions of parameters. mypyc rejects them in coroutines; elsewhere, if only some
    paths delete a parameter, the other paths crash."""
    parameters = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    at_top = () if isinstance(node, ast.AsyncFunctionDef) else node.body
    for each in ast.walk(node):
        if isinstance(each, ast.Delete) and each not in at_top:
            for target in each.targets:
                if isinstance(target, ast.Name) and target.id in parameters:
                    yield f"{each.lineno}: deletes the parameter {target.id}"


def _untyped_names(tree: ast.Module) -> Iterator[str]:
    """Yield the imported names that have the type Any during compilation."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names) if module:
                modules = [(each.asname or each.name, module) for each in names]
            case ast.Import(names=names):
                modules = [
                    (each.asname or each.name.partition(".")[0], each.name) for each in names
                ]
            case _:
                continue
        for name, module in modules:
            if module.partition(".")[0] not in TYPED_PACKAGES:
                yield name


def first_name(node: ast.expr) -> str:
    """Return the first name of ``a.b`` or ``a.b[...]``."""
    return ast.unparse(node).partition("[")[0].partition(".")[0]


def _class_traps(node: ast.ClassDef, untyped: set[str]) -> Iterator[str]:
    decorators = {last_name(each): ast.unparse(each) for each in node.decorator_list}
    if "frozen=True" in decorators.get("dataclass", "") and any(
        last_name(base) == "Generic" for base in node.bases
    ):
        yield f"{node.lineno}: a generic frozen dataclass"
    if "native_class=False" in decorators.get("mypyc_attr", ""):
        return
    for base in node.bases:
        if first_name(base) in untyped:
            yield f"{node.lineno}: {ast.unparse(base)} is Any, so its fields are overwritten"
    for statement in node.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) > 1:
            yield f"{statement.lineno}: several targets in a class body"
        match statement:
            case ast.AnnAssign(
                annotation=ast.BinOp(left=ast.BinOp()), value=ast.Constant(value=None)
            ):
                yield f"{statement.lineno}: None as the default of a union of several types"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("async def f():\n    yield 1", ["1: an async generator"]),
        ("async def f():\n    await g()", []),
        (
            "try: f()\nexcept A as e: pass\nexcept B as e: pass",
            ["1: handlers of different types bind the same name"],
        ),
        ("try: f()\nexcept A as e: pass\nexcept B as f: pass", []),
        ("class A:\n    @functools.cached_property\n    def a(self): ...", ["3: cached_property"]),
        ("@runtime_checkable\nclass A(Protocol): ...", ["2: runtime_checkable"]),
        (
            "@dataclass(frozen=True)\nclass A(Generic[T]): ...",
            ["2: a generic frozen dataclass"],
        ),
        ("@dataclass(frozen=True)\nclass A: ...", []),
        ("def f(a):\n    if a:\n        del a", ["3: deletes the parameter a"]),
        ("async def f(a):\n    del a", ["2: deletes the parameter a"]),
        ("def f(a):\n    del a", []),
        (
            "from yaml.a import B\nclass A(B[T]): ...",
            ["2: B[T] is Any, so its fields are overwritten"],
        ),
        (
            "import yaml.a\nclass A(yaml.a.B): ...",
            ["2: yaml.a.B is Any, so its fields are overwritten"],
        ),
        ("import ssl\nclass A(ssl.B): ...", []),
        ("from yaml import B\n@mypyc_attr(native_class=False)\nclass A(B): ...", []),
        (
            "def f():\n    @lru_cache\n    def g(): ...\n    return lambda: g()",
            ["3: decorates g inside a function"],
        ),
        ("class A:\n    a = b = 1", ["2: several targets in a class body"]),
        (
            "class A:\n    a: int | str | None = None",
            ["2: None as the default of a union of several types"],
        ),
        ("class A:\n    a: int | None = None", []),
        ("A: Final = (1, 0.5)", ["1: a constant tuple of floats without the type tuple"]),
        ("A: Final[tuple[float, ...]] = (1, 0.5)", []),
    ],
)
def test_traps_are_found(text: str, expected: list[str]) -> None:
    assert list(traps(text)) == expected


def test_each_module_is_listed_once() -> None:
    assert len(MODULES) == len(set(MODULES))
    assert "core/bounded_cache" in MODULES  # `is_compiled` refers to it


@pytest.mark.parametrize("name", MODULES)
def test_compiled_modules_avoid_traps(name: str) -> None:
    assert list(traps(source(name))) == []


def test_interpreted_classes_extend_only_classes_that_allow_it() -> None:
    """mypyc's own error appears only when the class is created."""
    closed = {
        node.name
        for node in _compiled_classes()
        if not any(
            last_name(each) == "record" or "allow_interpreted_subclasses=True" in ast.unparse(each)
            for each in node.decorator_list
        )
    }
    assert [f"{path}: {node.name}" for path, node in _interpreted_subclasses(closed)] == []


def test_interpreted_dataclasses_that_extend_compiled_classes_have_no_slots() -> None:
    """Compiled classes have no ``__slots__``, so the subclass would have its own slots for the
    fields of its base. Compiled code reads the fields of the base, which would then stay empty.
    """
    bases = {
        node.name
        for node in _compiled_classes()
        if any(last_name(each) == "dataclass" for each in node.decorator_list)
    }
    assert [
        f"{path}: {node.name}"
        for path, node in _interpreted_subclasses(bases)
        if any("slots=True" in ast.unparse(each) for each in node.decorator_list)
    ] == []


def _compiled_classes() -> Iterator[ast.ClassDef]:
    for name in MODULES:
        for node in ast.parse(source(name)).body:
            if isinstance(node, ast.ClassDef):
                yield node


def _interpreted_subclasses(bases: set[str]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """Yield the classes in other modules and in tests that extend one of ``bases``."""
    compiled = {PACKAGE / f"{name}.py" for name in MODULES}
    # parsing only the few files with such a statement takes a tenth of the time
    subclass = re.compile(rf"^ *class \w+\([^:]*\b(?:{'|'.join(bases)})\b", re.MULTILINE)
    for folder in (PACKAGE, PROJECT / "tests"):
        for path in folder.rglob("*.py"):
            if path in compiled or not subclass.search(text := path.read_text(encoding="utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and bases & set(map(last_name, node.bases)):
                    yield path, node


def test_the_package_is_compiled_completely_or_not_at_all() -> None:
    files = {
        name: importlib.import_module(f"infergate.{name.replace('/', '.')}").__file__ or ""
        for name in MODULES
    }
    pure = {name for name, file in files.items() if file.endswith(".py")}
    assert pure == (set() if is_compiled() else set(MODULES))


def test_the_version_names_compiled_engines() -> None:
    suffix = " (compiled engines)" if is_compiled() else ""
    assert version_text(infergate.__version__) == infergate.__version__ + suffix

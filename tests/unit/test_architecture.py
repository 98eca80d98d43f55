"""The import rules of docs/architecture.md, checked in the sources' syntax trees.

``violations`` returns the broken rules of a module's source. The first tests check each rule with
code that breaks it; the last tests check the package.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import infergate

ROOT = Path(infergate.__file__).parent
MAX_FILE_LINES = 500
"""The maximum number of lines of a file. Most files should have at most 300."""

# The packages that a package may import besides itself. A name includes its subpackages.
ALLOWED_IMPORTS: dict[str, tuple[str, ...]] = {
    "core": (),
    "codecs": (
        "core",
        "codecs.base",
        "codecs.binary_estimates",
        "codecs.encodings",
        "codecs.http_status",
        "codecs.json_tensors",
        "codecs.message_heads",
        "codecs.option_checks",
        "codecs.profiles",
        "codecs.protos",
    ),
    "transport": ("core",),
    "routing": ("core", "comparison.settings"),
    "plugins": ("core", "codecs.base", "codecs.http_status"),
    "plugin_host": ("core", "plugins", "transforms.step"),
    "backends": (
        "core",
        "routing",
        "codecs.base",
        "codecs.profiles",
        "transport.base",
        "plugins",
        "plugin_host",
    ),
    "comparison": ("core", "terminal"),
    "recording": ("core", "codecs", "routing", "comparison"),
    "transforms": ("core",),
    "gateway": (
        "core",
        "routing",
        "backends",
        "caching",
        "codecs.base",
        "comparison",
        "transforms",
        "transport.base",
        "plugins",
        "plugin_host",
    ),
    "caching": ("core",),
    "access": ("core", "routing", "codecs.base"),
    "observe": ("core",),
    "config": (
        "core",
        "comparison.rules",
        "comparison.settings",
        "routing",
        "transforms",
        "transport.base",
        "codecs.base",
        "codecs.profiles",
        "codecs.registry",
        "access.keys",
        "access.rules",
        "transport.tls.certificates",  # to check certificate files
        "plugins",
        "plugin_host",
    ),
    "assembly": (
        "core",
        "codecs",
        "transport",
        "routing",
        "backends",
        "config",
        "gateway",
        "plugins",
        "plugin_host",
        "transforms.step",
    ),
    "runtime": (
        "core",
        "codecs",
        "transport",
        "routing",
        "backends",
        "assembly",
        "gateway",
        "caching",
        "access",
        "observe",
        "config",
        "comparison",
        "recording",
        "terminal",
        "migration.explain",
        "plugin_host",
    ),
    "migration": (
        "core",
        "codecs",
        "transport",
        "routing",
        "backends",
        "assembly",
        "gateway",
        "config",
        "comparison",
        "recording",
        "terminal",
        "plugins",
        "plugin_host",
    ),
    "library": (
        "core",
        "codecs",
        "transport",
        "config",
        "runtime",
    ),
    "matrix": (
        "core",
        "codecs",
        "transport.base",
        "routing",
        "backends",
        "gateway",
        "terminal",
    ),
    "terminal": (),
    "cli": (
        "config",
        "plugins",
        "library",
        "runtime",
        "matrix",
        "migration",
        "recording",
        "terminal",
        "access.keys",
        "core.compilation",
        "core.name_rules",
        "plugin_host.loading",
    ),
    "testing": (
        "core",
        "codecs",
        "transport.base",
        "backends",
        "gateway.observation",
        "config",
        "runtime",
        "library",
        "plugins",
        "plugin_host",
        "recording",
        "migration.recorded",
    ),
    "pytest_plugin": ("backends.builtin.model", "testing"),
    "__main__": ("cli",),
}
# The packages of the carried protocols, which an envelope codec may also import.
CARRIED_PROTOCOLS: dict[str, tuple[str, ...]] = {"codecs.envelopes": ("codecs.v2_rest",)}
# The packages that must not import the version from the package itself.
WITHOUT_VERSION = ("core", "codecs")

# The packages of transport/ that each package of transport/ may import, listed from bottom to top.
TRANSPORT_IMPORTS: dict[str, tuple[str, ...]] = {
    "worker_loads": (),
    "http2": (),
    "tls": (),
    "base": ("worker_loads",),
    "net": ("base",),
    "client": ("base", "net", "tls"),
    "server": ("base", "net", "tls", "worker_loads"),
    "http1": ("base", "net", "server", "client"),
    "grpc": ("base", "net", "tls", "server", "client", "http2"),
    "framed": ("base", "net", "server", "client", "http1"),
    "compat": ("base", "net", "tls", "server", "client", "http1", "grpc"),
}

# For each external module, the prefixes of the only modules that may import it.
ONLY_IN = {
    "aiohttp": ("transport.compat.", "runtime.admin"),
    "grpc": ("transport.compat.",),
    "rich": ("terminal",),
    "httptools": ("transport.http1.",),
    "PIL": ("transforms.images",),
    "watchfiles": ("runtime.file_watch",),
}
IMPURE = ("asyncio", "logging", "time", "socket")
"""Modules that codecs may not import, because codecs have no I/O."""
UNTRACKED_TASKS = ("create_task", "ensure_future")
TASKS_IN = (
    "transport.",
    "runtime.",
    "access.jwks",
    "backends.hedging",
    "backends.endpoint_monitor",
    "gateway.mirror",
    "gateway.cached_route",
    "caching.redis_store",
    "recording.payload_log",
    "gateway.comparer",
    "migration.replay.replayer",
    "plugin_host.runner",
)
"""Modules that may create tasks; elsewhere a task would be neither awaited nor cancelled."""
PROTOCOLS_IN = ("codecs.registry", "config")


def violations(module: str, source: str, modules: frozenset[str]) -> list[str]:
    """Return the rules that ``source`` of ``module`` (dotted, without the package's name) breaks.

    ``modules`` are all modules of the package in the same form.
    """
    tree = ast.parse(source)
    name = _without_init(module)
    sentences = [*_lengths(source), *_tasks(name, tree), *_protocols(name, tree)]
    for line, imported in imports_of(module, tree, modules):
        if reason := _forbidden(name, imported):
            sentences.append(f"line {line}: imports {imported}: {reason}")
    return [f"{module}: {sentence}" for sentence in sentences]


def imports_of(module: str, tree: ast.AST, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the full dotted name of every import, including imports in functions and
    under TYPE_CHECKING.

    ``from a import b`` is ``a.b`` if that is a module of the package, else ``a``.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                origin = _resolved(module, base or "", level)
                for alias in names:
                    below = f"{origin}.{alias.name}"
                    is_module = below.removeprefix("infergate.") in modules
                    yield node.lineno, below if is_module else origin
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(imported)), *_],
            ):
                yield node.lineno, imported


def _resolved(module: str, base: str, level: int) -> str:
    if level == 0:
        return base
    parent = ["infergate", *module.split(".")][:-level]
    return ".".join([*parent, base] if base else parent)


def _without_init(module: str) -> str:
    return module.removesuffix(".__init__")


def _package(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def _own_package(module: str) -> str:
    """Return a module's package or, for a codec's module, the package of its protocol."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "codecs" else parts[0]


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _forbidden(module: str, imported: str) -> str:
    """Return why ``module`` may not import ``imported``, or an empty string if it may."""
    top = imported.split(".", maxsplit=1)[0]
    package = _package(module)
    if top == "infergate":
        return _forbidden_in_package(module, imported.removeprefix("infergate").removeprefix("."))
    if top in ONLY_IN and not module.startswith(ONLY_IN[top]):
        return f"only {' and '.join(ONLY_IN[top])}* may"
    if package == "codecs" and top in IMPURE:
        return "codecs are pure"
    if module == "core.compilation" and top == "mypy_extensions":
        return ""  # only for mypyc
    if package == "core" and top != "numpy" and top not in sys.stdlib_module_names:
        return "core may import only numpy and the standard library"
    return ""


def _forbidden_in_package(module: str, imported: str) -> str:
    package = _package(module)
    if not imported:
        return f"{package} needs no version" if package in WITHOUT_VERSION else ""
    if package not in ALLOWED_IMPORTS:
        return f"package '{package}' has no rule in ALLOWED_IMPORTS"
    if package == "transport" and _package(imported) == "transport":
        return _forbidden_in_transport(module, imported)
    own = _own_package(module)
    allowed = (own, *ALLOWED_IMPORTS[package], *CARRIED_PROTOCOLS.get(own, ()))
    if any(_within(imported, shared) for shared in allowed):
        return ""
    return f"{package} may import {', '.join(ALLOWED_IMPORTS[package]) or 'nothing'}"


def _forbidden_in_transport(module: str, imported: str) -> str:
    package, other = (name.removeprefix("transport").lstrip(".") for name in (module, imported))
    package, other = _package(package), _package(other)
    if not package or not other:
        return "the package transport itself holds only its docstring"
    if package not in TRANSPORT_IMPORTS:
        return f"package 'transport.{package}' has no rule in TRANSPORT_IMPORTS"
    allowed = TRANSPORT_IMPORTS[package]
    if other == package or other in allowed:
        return ""
    return f"within transport, {package} may import {', '.join(allowed) or 'nothing'}"


def _lengths(source: str) -> Iterator[str]:
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines; the limit is {MAX_FILE_LINES}"


def _tasks(module: str, tree: ast.AST) -> Iterator[str]:
    if module.startswith(TASKS_IN):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in UNTRACKED_TASKS:
                yield f"line {node.lineno}: {name}: only {' and '.join(TASKS_IN)}* start tasks"


def _protocols(module: str, tree: ast.AST) -> Iterator[str]:
    if any(_within(module, package) for package in PROTOCOLS_IN):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=comparators):
                sides = [left, *comparators]
                compares_names = any(map(_is_protocol, sides)) and any(
                    map(_is_protocol_name, sides)
                )
            case ast.Match(subject=subject, cases=cases):
                values = (v for case in cases for v in ast.walk(case.pattern))
                compares_names = _is_protocol(subject) and any(
                    isinstance(v, ast.MatchValue) and _is_protocol_name(v.value) for v in values
                )
            case _:
                continue
        if compares_names:
            yield f"line {node.lineno}: selects by a protocol's name; only the registry may"


def _is_protocol(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "protocol" or name.endswith("_protocol")
    return False


def _is_protocol_name(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return any(map(_is_protocol_name, elements))
    return False


# ---- the rules -----------------------------------------------------------------------------------

SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "__init__.py"
}
MODULES = frozenset(map(_without_init, SOURCES))
VIOLATIONS = [
    ("core.tensor", "from infergate.codecs import base", "core may import nothing"),
    ("core.tensor", "from infergate import __version__", "core needs no version"),
    ("core.tensor", "import pydantic", "only numpy and the standard library"),
    ("core.tensor", "def f():\n    import orjson", "line 2: imports orjson"),
    ("core.tensor", "from ..transport import base", "imports infergate.transport.base"),
    ("core.tensor", "import importlib\nimportlib.import_module('orjson')", "imports orjson"),
    ("core.tensor", "if TYPE_CHECKING:\n    import infergate.config.load", "line 2: imports"),
    ("routing.table", "__import__('infergate.runtime.serve')", "imports infergate.runtime.serve"),
    ("codecs.v2_rest.paths", "import infergate.codecs.v2_grpc", "codecs may import core"),
    ("codecs.v2_rest.__init__", "from ..v2_grpc import x", "imports infergate.codecs.v2_grpc"),
    ("codecs.base", "import infergate.codecs.v2_rest", "codecs may import"),
    ("codecs.v2_grpc", "import asyncio.events", "codecs are pure"),
    ("codecs.v2_grpc", "import grpc", "only transport.compat.* may"),
    (
        "transport.grpc.server",
        "import aiohttp.web",
        "only transport.compat. and runtime.admin* may",
    ),
    ("transport.base", "from .server import listener", "base may import worker_loads"),
    ("transport.net.__init__", "from ..worker_loads import Loads", "net may import base"),
    ("transport.http3.server", "from ..net import timer", "'transport.http3' has no rule"),
    ("transport.http1.server", "from infergate.transport import Listener", "only its docstring"),
    ("backends.remote", "import infergate.codecs.registry", "backends may import"),
    ("attic.old", "import infergate.core.tensor", "package 'attic' has no rule"),
    ("gateway.gateway", "import asyncio\nasyncio.create_task(f())", "line 2: create_task"),
    ("backends.remote", "from asyncio import ensure_future\nensure_future(f())", "ensure_future"),
    ("gateway.gateway", "x = 'v2-rest' != protocol", "only the registry may"),
    ("runtime.serve", "x = b.protocol in ('a', 'b')", "only the registry may"),
    ("observe.metrics", "x = call.backend_protocol == 'a'", "only the registry may"),
    ("gateway.gateway", "match protocol:\n  case 'a' | 'b': pass", "only the registry may"),
    ("gateway.gateway", "\n" * (MAX_FILE_LINES + 1), "501 lines; the limit is 500"),
]
ALLOWED = [
    ("core.tensor", "import struct\nimport numpy.typing as npt\nfrom . import wire"),
    ("codecs.v2_rest.__init__", "from . import paths\nfrom ..base import Codec\nimport json"),
    ("transport.compat.aiohttp_client", "import aiohttp\nfrom infergate import __version__"),
    ("transport.net.__init__", "from . import timer\nfrom ..base import Address"),
    ("runtime.admin", "from aiohttp import web"),
    ("backends.hedging", "import asyncio\nasyncio.ensure_future(f())"),
    ("config.load", "from infergate.codecs import registry\nx = protocol == 'builtin'"),
    ("codecs.registry", "x = plugin.protocol == 'builtin'"),
    ("gateway.gateway", "x = protocol == other.protocol\ny = name == 'v2-rest'"),
    ("gateway.gateway", "match protocol:\n  case TransportKind.HTTP: pass"),
    ("gateway.gateway", "\n" * MAX_FILE_LINES),
]


@pytest.mark.parametrize(("module", "source", "expected"), VIOLATIONS)
def test_a_broken_rule_is_reported(module: str, source: str, expected: str) -> None:
    broken_rules = violations(module, source, MODULES)
    assert broken_rules
    assert any(expected in each for each in broken_rules), broken_rules
    assert all(each.startswith(f"{module}: ") for each in broken_rules)


@pytest.mark.parametrize(("module", "source"), ALLOWED)
def test_allowed_code_has_no_violations(module: str, source: str) -> None:
    assert violations(module, source, MODULES) == []


# ---- the package ---------------------------------------------------------------------------------


def test_every_package_has_a_rule() -> None:
    packages = {_package(module) for module in SOURCES}
    assert {"core", "codecs", "transport", "routing", "backends", "gateway"} <= packages
    assert packages <= set(ALLOWED_IMPORTS)


def test_every_package_of_transport_has_a_rule() -> None:
    packages = {module.split(".")[1] for module in SOURCES if _package(module) == "transport"}
    assert packages - {"__init__"} == set(TRANSPORT_IMPORTS)


def test_the_packages_of_transport_depend_on_each_other_in_one_direction() -> None:
    TopologicalSorter(TRANSPORT_IMPORTS).prepare()  # raises CycleError


def test_the_package_follows_the_rules() -> None:
    assert not [
        violation
        for module, path in SOURCES.items()
        for violation in violations(module, path.read_text(encoding="utf-8"), MODULES)
    ]


def test_transport_has_no_import_cycles() -> None:
    graph = {
        _without_init(module): {
            imported.removeprefix("infergate.")
            for _, imported in imports_of(module, ast.parse(path.read_text("utf-8")), MODULES)
        }
        for module, path in SOURCES.items()
        if _package(module) == "transport"
    }
    TopologicalSorter(graph).prepare()  # raises CycleError

"""``infergate new``: generates the package of a plug-in, with tests that pass.

The templates are the files in ``templates/common`` and in the folder of the kind. In their paths
and contents, ``@name@``, ``@module@``, ``@class@`` and other placeholders are replaced."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from infergate import plugins
from infergate.cli.command import Arguments
from infergate.config.protocols import codec_plugins

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "codec": ("codecs", "PLUGIN"),
    "backend": ("backends", "@class@"),
    "hook": ("hooks", "@class@"),
    "transform": ("transforms", "@class@"),
}
"""For each kind of plug-in, the entry point group without the prefix ``infergate.``, and the object
that the entry point names."""
_TEMPLATES: Final = Path(__file__).with_name("templates")
_SUFFIX: Final = ".template"
_WIRE_FILE: Final = "wire.http"
"""The name of files whose lines end in CRLF."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_MAX_NAME_CHARS: Final = 40
_RESERVED_MODULES: Final = frozenset(
    {"infergate", "numpy", "pydantic", "pytest", "setuptools", "test", "tests", "yaml"}
)
"""Further names that the module must not have, because the package, its tests, infergate or Python
uses them. ``sys.stdlib_module_names`` does not contain ``test``."""
_RESERVED_CLASSES: Final = frozenset({*plugins.__all__, "Any", "Options"})
"""Names that the class must not have, because a template may import or define them."""


class PackageError(Exception):
    """A package cannot be generated. The message gives the reason."""


def generate_package(kind: str, name: str, directory: Path) -> list[Path]:
    """Write the package of a plug-in of ``kind`` into the new folder ``directory / name``, and
    return its files. Raises PackageError and OSError."""
    if kind not in KINDS:
        raise PackageError(f"unknown kind of plug-in '{kind}'; expected one of: {', '.join(KINDS)}")
    group, target = KINDS[kind]
    values = {"name": name, "module": _module_name(name), "class": _class_name(name)}
    values |= {"group": group, "object": _fill_in(target, values)}
    if kind == "codec" and name in codec_plugins():
        raise PackageError(f"the protocol '{name}' already exists")
    folder = directory / name
    if folder.exists():
        raise PackageError(f"'{folder}' already exists")
    written = []
    for path, text in _templates(kind, values):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        ending = "\r\n" if file.name == _WIRE_FILE else "\n"
        file.write_text(text, encoding="utf-8", newline=ending)
        written.append(file)
    return written


def _module_name(name: str) -> str:
    if len(name) > _MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise PackageError(
            f"'{name[:80]}' is not a valid name; expected a lower-case letter, followed by "
            f"lower-case letters, digits and single hyphens, up to {_MAX_NAME_CHARS} characters"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names | _RESERVED_MODULES:
        raise PackageError(
            f"'{module}' is the name of a module that Python, infergate or the package already uses"
        )
    if _class_name(name) in _RESERVED_CLASSES:
        raise PackageError(
            f"'{name}' would define the class {_class_name(name)}, whose name is already in use; "
            "choose another name"
        )
    return module


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _templates(kind: str, values: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for folder in (_TEMPLATES / "common", _TEMPLATES / kind):
        for file in sorted(folder.rglob(f"*{_SUFFIX}")):
            path = str(file.relative_to(folder)).removesuffix(_SUFFIX)
            text = file.read_text(encoding="utf-8")
            yield Path(_fill_in(path, values)), _fill_in(text, values)


def _fill_in(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def run(arguments: Arguments) -> int:
    """Generate a package. The operands are its kind and its name. Return the exit code."""
    if len(arguments.operands) != 2:
        print("infergate new: expected a kind and a name, as in 'new hook guard'", file=sys.stderr)
        return 2
    (kind, name), directory = arguments.operands, arguments.directory
    try:
        files = generate_package(kind, name, directory)
    except PackageError as error:
        print(f"infergate new: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"infergate new: {error}", file=sys.stderr)
        return 1
    for file in files:
        print(file)
    print(f"\nNext: cd {directory / name} && pip install -e '.[test]' && pytest")
    return 0

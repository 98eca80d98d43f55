"""The variants of infergate that are compared: an engine on an interpreter, pure or compiled.

Each variant but the default interpreter's pure ones has its own virtual environment in the folder
of the peers, made when it is first needed, with the packages' versions of this environment.
"""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from peers.support.installed import PROJECT, install, run

SYSTEM_PYTHON = Path("/usr/bin/python3")
_DEFAULT_PYTHON = Path(sys.executable)
_COMPILE = "INFERGATE_COMPILE"
_ABOUT = """
import json, os, platform, sys, sysconfig
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
built = {"--enable-optimizations": "PGO", "--with-lto": "LTO"}
built = [name for option, name in built.items() if option in options] or ["neither PGO nor LTO"]
version = platform.python_version()
print(json.dumps([os.path.realpath(sys.executable), sys.version_info >= (3, 11), version, built]))
"""


@dataclass(frozen=True)
class Variant:
    """``name`` is its column. ``source`` is the folder of its package if it is not installed."""

    name: str
    engine: str
    python: Path = _DEFAULT_PYTHON
    source: Path | None = None

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return ``variables`` with the variant's package."""
        if self.python == _DEFAULT_PYTHON and not self.source:
            return dict(variables)
        path = {"PYTHONPATH": str(self.source)} if self.source else {}
        return {k: v for k, v in variables.items() if k != "PYTHONPATH"} | path


@dataclass(frozen=True)
class _Recipe:
    engine: str
    on_system: bool = False
    is_compiled: bool = False


_RECIPES = {
    "own": _Recipe("own"),
    "own-system": _Recipe("own", on_system=True),
    "own-compiled": _Recipe("own", is_compiled=True),
    "own-compiled-system": _Recipe("own", on_system=True, is_compiled=True),
    "compat": _Recipe("compat"),
}
NAMES = tuple(_RECIPES)
DEFAULT = tuple(name for name in NAMES if name != "compat")
PLAIN = {name: Variant(name, name) for name in ("own", "compat")}
"""The variants that need no environment of their own."""


def available(names: Sequence[str]) -> tuple[list[Variant], list[str]]:
    """Return the variants of these names that can run here, and for each other one the reason."""
    found, notes = [], []
    for name in names:
        try:
            found.append(PLAIN.get(name) or _installed(name, _RECIPES[name]))
        except RuntimeError as error:
            notes.append(f"{name} was not measured: {error}")
    return found, notes


def describe() -> str:
    """Describe both interpreters."""
    found = [f"Python {_about(_DEFAULT_PYTHON)}"]
    if SYSTEM_PYTHON.exists():
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "of an unknown system")
        found.append(f"the system's Python ({system}) is {_about(SYSTEM_PYTHON)}")
    return "; ".join(found)


def _installed(name: str, recipe: _Recipe) -> Variant:
    """Raise RuntimeError if the variant cannot run here."""
    python = _DEFAULT_PYTHON
    if recipe.is_compiled and not any(
        _COMPILE in path.read_text() for path in (*PROJECT.glob("setup.py"), _PROJECT_FILE)
    ):
        raise RuntimeError("the package has no compiled form")
    if recipe.on_system:
        python = SYSTEM_PYTHON
        if not python.exists():
            raise RuntimeError(f"there is no {python}")
        facts = _facts(python)
        if not facts[1]:
            raise RuntimeError(f"{python} is Python {facts[2]}, which is too old")
        if facts[0] == _facts(_DEFAULT_PYTHON)[0]:
            raise RuntimeError(f"{python} is the default interpreter")
        if subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode:
            raise RuntimeError(f"{python} makes no environments: sudo apt install python3-venv")
    peer = install(f"infergate-{name}", _pins(), python=python)
    stamp, digest = peer.folder / "package", _digest()
    if not (stamp.exists() and stamp.read_text() == digest):
        print(f"installing infergate into {peer.folder} …", file=sys.stderr)
        _install_package(peer.python, is_compiled=recipe.is_compiled)
        stamp.write_text(digest)
    return Variant(name, recipe.engine, peer.python)


_PROJECT_FILE = PROJECT / "pyproject.toml"
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "tests", "docs")


def _install_package(python: Path, *, is_compiled: bool) -> None:
    """Install a copy, since a build leaves files behind."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "infergate"
        shutil.copytree(PROJECT, copy, ignore=_LEFT_OUT)
        pip = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        compiling = ("env", f"{_COMPILE}=1") if is_compiled else ()
        run(*compiling, *pip, "--no-deps", "--force-reinstall", str(copy))
    if is_compiled:
        find = "import infergate.transport.http2 as found; print(found.__path__[0])"
        where = subprocess.run(
            [python, "-P", "-c", find], capture_output=True, text=True, check=True
        )
        if not any(Path(where.stdout.strip()).glob("*.so")):
            raise RuntimeError("the installation compiled nothing")


def _digest() -> str:
    """Identify the package's sources."""
    files = [_PROJECT_FILE, *PROJECT.glob("setup.py"), *(PROJECT / "src").rglob("*.py")]
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(f"{path}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _pins() -> tuple[str, ...]:
    """Return infergate's requirements and theirs, with their versions here."""
    found: dict[str, str] = {}
    wanted = ["infergate"]
    while wanted:
        for text in metadata.requires(wanted.pop()) or ():
            each = Requirement(text)
            if each.name not in found and (not each.marker or each.marker.evaluate({"extra": ""})):
                found[each.name] = metadata.version(each.name)
                wanted.append(each.name)
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


@cache
def _facts(python: Path) -> tuple[str, bool, str, list[str]]:
    """Return an interpreter's real path, whether it is new enough, its version, and how it was
    built."""
    done = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=True)
    found: tuple[str, bool, str, list[str]] = tuple(json.loads(done.stdout))
    return found


def _about(python: Path) -> str:
    _, _, version, built = _facts(python)
    return f"{version} (built with {', '.join(built)})"

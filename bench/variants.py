"""The variants of infergate that are compared. A variant is an engine on an interpreter, compiled
or not.

Each variant has its own virtual environment in the folder of the peers, except the uncompiled
variants on the default interpreter. The environment is created when it is first needed, and has the
package versions of this environment.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from peers.support.installed import PROJECT, install, run

SYSTEM_PYTHON = Path("/usr/bin/python3")
_DEFAULT_PYTHON = Path(sys.executable)
_COMPILE = "INFERGATE_COMPILE"
_PROJECT_FILE = PROJECT / "pyproject.toml"
_MIN_VERSION = (3, 11)


@dataclass(frozen=True)
class Variant:
    """A variant. ``name`` is its column. ``source`` is the folder of its package if the package is
    not installed."""

    name: str
    engine: str
    python: Path = _DEFAULT_PYTHON
    source: Path | None = None

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment ``variables``, changed so that Python imports the variant's
        package."""
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
QUICK = ("own", "own-system")
"""The variants of a quick run, in which nothing is compiled."""
PLAIN = {name: Variant(name, name) for name in ("own", "compat")}
"""The variants that need no environment of their own."""


def available(names: Sequence[str]) -> tuple[list[Variant], list[str]]:
    """Return the variants in ``names`` that can run here, and the reasons why the others cannot."""
    usable, notes = [], []
    for name in names:
        try:
            usable.append(PLAIN.get(name) or _installed(name, _RECIPES[name]))
        except RuntimeError as error:
            reason = str(error)
            if "\n" in reason:  # the reason is the output of a tool
                print(reason, file=sys.stderr)
                reason = "its installation failed"
            notes.append(f"{name} was not measured: {reason}")
    return usable, notes


def describe() -> str:
    """Return a description of both interpreters."""
    text = f"Python {platform.python_version()}"
    if SYSTEM_PYTHON.exists():
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "an unknown system")
        version = ".".join(map(str, _version(SYSTEM_PYTHON)))
        text += f" ({SYSTEM_PYTHON} of {system} is {version})"
    return text


def _installed(name: str, recipe: _Recipe) -> Variant:
    """Install the variant ``name``. Raises RuntimeError if it cannot run here."""
    python = _DEFAULT_PYTHON
    if recipe.is_compiled and not any(
        _COMPILE in path.read_text() for path in (*PROJECT.glob("setup.py"), _PROJECT_FILE)
    ):
        raise RuntimeError("the package has no compiled form")
    if recipe.on_system:
        python = SYSTEM_PYTHON
        if not python.exists():
            raise RuntimeError(f"there is no {python}")
        if _version(python) < _MIN_VERSION:
            raise RuntimeError(f"{python} is too old")
        if python.resolve() == _DEFAULT_PYTHON.resolve():
            raise RuntimeError(f"{python} is the default interpreter")
        if not _succeeds(python, "import venv, ensurepip"):
            raise RuntimeError(
                f"{python} cannot create environments: sudo apt install python3-venv"
            )
    peer = install(f"infergate-{name}", _pins(), python=python)
    stamp, digest = peer.folder / "package", _digest()
    if not (stamp.exists() and stamp.read_text() == digest):
        print(f"installing infergate into {peer.folder} …", file=sys.stderr)
        _install_package(peer.python, is_compiled=recipe.is_compiled)
        stamp.write_text(digest)
    return Variant(name, recipe.engine, peer.python)


_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "tests", "docs")


def _install_package(python: Path, *, is_compiled: bool) -> None:
    """Install the package from a copy of its sources, because a build leaves files behind."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "infergate"
        shutil.copytree(PROJECT, copy, ignore=_NOT_COPIED)
        pip = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run("env", f"{_COMPILE}={is_compiled:d}", *pip, "--no-deps", "--force-reinstall", str(copy))
    if is_compiled:
        files = "from importlib.metadata import files; files = files('infergate')"
        if not _succeeds(python, f"{files}; assert any(each.suffix == '.so' for each in files)"):
            raise RuntimeError("the installed package has no compiled modules")


def _succeeds(python: Path, code: str) -> bool:
    return not subprocess.run(
        [python, "-I", "-c", code], check=False, capture_output=True
    ).returncode


def _digest() -> str:
    """Return a digest of the package's sources."""
    files = [_PROJECT_FILE, *PROJECT.glob("setup.py"), *(PROJECT / "src").rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _pins() -> tuple[str, ...]:
    """Return the direct and indirect requirements of infergate, with the versions installed
    here."""
    pins: dict[str, str] = {}
    pending = ["infergate"]
    while pending:
        for text in metadata.requires(pending.pop()) or ():
            each = Requirement(text)
            if each.name not in pins and (not each.marker or each.marker.evaluate({"extra": ""})):
                pins[each.name] = metadata.version(each.name)
                pending.append(each.name)
    return tuple(f"{name}=={version}" for name, version in sorted(pins.items()))


def _version(python: Path) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:3])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))

"""A peer's own virtual environment, made once.

*Strategy.* Each peer has a folder ``<peers>/<name>`` with a ``venv``. Its stamp is written last and
holds the recipe, so a half-made folder or one made by an older recipe is made again. A lock keeps
two test runs from making the same folder at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
_INSTALL_SECONDS = 900


def peers_folder() -> Path:
    """The folder of all peers."""
    return Path(os.environ.get("INFERGATE_PEERS") or PROJECT / ".peers").resolve()


@dataclass(frozen=True)
class Installed:
    """One peer's folder."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return self.folder / "venv" / "lib" / version / "site-packages"


def nothing_more(_peer: Installed) -> None:
    """The last step of a peer that is ready once its packages are installed."""


def install(
    name: str,
    requirements: tuple[str, ...],
    *,
    bare: tuple[str, ...] = (),
    finish: Callable[[Installed], None] = nothing_more,
) -> Installed:
    """The peer ``name`` with ``requirements`` installed; a no-op when it is there already.

    ``bare`` packages come without their dependencies. ``finish`` completes the folder. Raises
    RuntimeError with the tool's own words when a step fails.
    """
    root = peers_folder()
    root.mkdir(parents=True, exist_ok=True)
    peer = Installed(root / name)
    stamp = peer.folder / "stamp"
    recipe = _recipe(requirements, bare, finish)
    with _locked(root / f"{name}.lock"):
        if stamp.is_file() and stamp.read_text() == recipe:
            return peer
        sys.stderr.write(f"installing the peer '{name}' into {peer.folder} …\n")
        shutil.rmtree(peer.folder, ignore_errors=True)
        peer.folder.mkdir()
        run(sys.executable, "-m", "venv", str(peer.folder / "venv"))
        pip = (str(peer.python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, *requirements)
        if bare:
            run(*pip, "--no-deps", *bare)
        finish(peer)
        stamp.write_text(recipe)
    return peer


def run(*argv: str, cwd: Path | None = None) -> None:
    """Run a tool. Raises RuntimeError with the end of what it printed when it fails."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_INSTALL_SECONDS,
    )
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"`{' '.join(argv)}` failed ({done.returncode}):\n{said}")


def _recipe(
    requirements: tuple[str, ...], bare: tuple[str, ...], finish: Callable[[Installed], None]
) -> str:
    """The facts that decide whether a folder is up to date: packages, interpreter and last step."""
    source = Path(finish.__code__.co_filename).read_bytes()
    last_step = f"{finish.__name__} {hashlib.sha256(source).hexdigest()}"
    return "\n".join([sys.version, sys.base_prefix, *requirements, *bare, last_step])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield

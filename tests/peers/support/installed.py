"""The virtual environments of the peers, each created once.

A peer's folder ``<peers>/<name>`` contains its ``venv`` and, written last, a stamp with the recipe.
An incomplete or outdated folder is therefore created again. A lock prevents two test runs from
creating the same folder concurrently.
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
    """Return the folder of all peers."""
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
    """Do nothing: this is the last step of a peer that only needs its packages."""


def install(
    name: str,
    requirements: tuple[str, ...],
    *,
    bare: tuple[str, ...] = (),
    finish: Callable[[Installed], None] = nothing_more,
    python: Path = Path(sys.executable),
) -> Installed:
    """Install the peer ``name`` with ``requirements``, unless it is installed already.

    ``bare`` packages are installed without their dependencies. ``finish`` completes the folder.
    ``python`` is the interpreter of its environment, the same at each call.
    Raises RuntimeError with the tool's output when a step fails.
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
        run(str(python), "-m", "venv", str(peer.folder / "venv"))
        pip = (str(peer.python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, *requirements)
        if bare:
            run(*pip, "--no-deps", *bare)
        finish(peer)
        stamp.write_text(recipe)
    return peer


def run(*argv: str, cwd: Path | None = None) -> None:
    """Run a tool. Raises RuntimeError with the end of its output when it fails."""
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
        reported = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"`{' '.join(argv)}` failed ({done.returncode}):\n{reported}")


def _recipe(
    requirements: tuple[str, ...], bare: tuple[str, ...], finish: Callable[[Installed], None]
) -> str:
    """Return the facts that decide whether a folder is up to date: packages, interpreter and last
    step."""
    source = Path(finish.__code__.co_filename).read_bytes()
    last_step = f"{finish.__name__} {hashlib.sha256(source).hexdigest()}"
    return "\n".join([sys.version, sys.base_prefix, *requirements, *bare, last_step])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield

"""The shared library of this Python, which Triton's python backend needs.

The backend's stub is linked to ``libpython3.X.so.1.0``. Many Pythons come without: Debian puts it
into a package of its own that ``python3`` does not bring along. It is looked for where it may be;
then fetched from the distribution's archive and unpacked beside the peer, without root and
without installing anything.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from .installed import run

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SONAME = f"libpython{VERSION}.so.1.0"
PACKAGE = f"libpython{VERSION}"


def library_path(keep: Path) -> str:
    """The folder to add to LD_LIBRARY_PATH, or "" when the system finds the library by itself.

    What must be fetched is kept in ``keep``. Raises RuntimeError, saying what to install, when
    there is no way.
    """
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and (Path(folder) / SONAME).exists():
            return str(folder)
    if ctypes.util.find_library(f"python{VERSION}"):
        return ""
    return str(fetched(keep))


def fetched(keep: Path) -> Path:
    """The folder that holds the library from the distribution's package, below ``keep``."""
    if not (found := list(keep.rglob(SONAME))):
        _fetch(keep)
        found = list(keep.rglob(SONAME))
    if not found:
        raise RuntimeError(f"the package {PACKAGE} holds no {SONAME}; {_advice()}")
    return found[0].parent


def _fetch(keep: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise RuntimeError(f"{SONAME} is missing; {_advice()}")
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    try:
        _download(keep)
        (package,) = keep.glob("*.deb")
        run("dpkg", "-x", str(package), str(keep))
        package.unlink()
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"{SONAME} is missing; {_advice()}\n{error}") from error


def _download(keep: Path) -> None:
    """``apt-get download`` with the system's package lists, or else with lists of our own."""
    try:
        run("apt-get", "-q", "download", PACKAGE, cwd=keep)
    except RuntimeError:
        state, cache = keep / "apt-state", keep / "apt-cache"
        for folder in (state / "lists" / "partial", cache / "archives" / "partial"):
            folder.mkdir(parents=True)
        own = ("-q", "-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}",
               "-o", "Dir::State::status=/var/lib/dpkg/status",
               "-o", f"APT::Sandbox::User={_user()}")  # fmt: skip
        run("apt-get", *own, "update")
        run("apt-get", *own, "download", PACKAGE, cwd=keep)
        shutil.rmtree(state)
        shutil.rmtree(cache)


def _user() -> str:
    """apt drops its rights to this user; ours may not be able to enter our folder."""
    import pwd  # noqa: PLC0415 - only on the way that needs it

    return pwd.getpwuid(os.getuid()).pw_name


def _advice() -> str:
    return f"install it (Debian, Ubuntu: sudo apt install {PACKAGE}) and run again"

"""The shared library of this Python, which Triton's python backend needs.

The backend's stub is linked to ``libpython3.X.so.1.0``. Many installations lack it: Debian has
it in a separate package that ``python3`` does not depend on. If it is not in the usual folders, it
is downloaded from the distribution's archive and unpacked beside the peer, without root and without
installing anything.
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
    """Return the folder to add to LD_LIBRARY_PATH, or "" if the system finds the library.

    A downloaded library is stored in ``keep``. Raises RuntimeError, which names the package to
    install, if the library cannot be obtained.
    """
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and (Path(folder) / SONAME).exists():
            return str(folder)
    if ctypes.util.find_library(f"python{VERSION}"):
        return ""
    return str(fetched(keep))


def fetched(keep: Path) -> Path:
    """Return the folder below ``keep`` with the distribution's library; download it if needed."""
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
    """Run ``apt-get download`` with the system's package lists or, if that fails, with new ones."""
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
    """Return the user that apt runs as; its default user may lack access to our folder."""
    import pwd  # noqa: PLC0415 - needed only here

    return pwd.getpwuid(os.getuid()).pw_name


def _advice() -> str:
    return f"install it (Debian, Ubuntu: sudo apt install {PACKAGE}) and run again"

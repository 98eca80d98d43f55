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


def library_path(target: Path) -> str:
    """Return the folder to add to LD_LIBRARY_PATH, or "" if the system finds the library.

    A downloaded library is stored in ``target``. Raises RuntimeError, which names the package to
    install, if the library cannot be obtained.
    """
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and (Path(folder) / SONAME).exists():
            return str(folder)
    if ctypes.util.find_library(f"python{VERSION}"):
        return ""
    return str(fetched(target))


def fetched(target: Path) -> Path:
    """Return the folder below ``target`` with the distribution's library; download it if needed."""
    if not (files := list(target.rglob(SONAME))):
        _fetch(target)
        files = list(target.rglob(SONAME))
    if not files:
        raise RuntimeError(f"the package {PACKAGE} does not contain {SONAME}; {_advice()}")
    return files[0].parent


def _fetch(target: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise RuntimeError(f"{SONAME} is missing; {_advice()}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        _download(target)
        (package,) = target.glob("*.deb")
        run("dpkg", "-x", str(package), str(target))
        package.unlink()
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"{SONAME} is missing; {_advice()}\n{error}") from error


def _download(target: Path) -> None:
    """Run ``apt-get download`` with the system's package lists or, if that fails, with new ones."""
    try:
        run("apt-get", "-q", "download", PACKAGE, cwd=target)
    except RuntimeError:
        state, cache = target / "apt-state", target / "apt-cache"
        for folder in (state / "lists" / "partial", cache / "archives" / "partial"):
            folder.mkdir(parents=True)
        options = ("-q", "-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}",
               "-o", "Dir::State::status=/var/lib/dpkg/status",
               "-o", f"APT::Sandbox::User={_user()}")  # fmt: skip
        run("apt-get", *options, "update")
        run("apt-get", *options, "download", PACKAGE, cwd=target)
        shutil.rmtree(state)
        shutil.rmtree(cache)


def _user() -> str:
    """Return the current user. The default user of apt may lack access to the folder."""
    import pwd  # noqa: PLC0415 - needed only here

    return pwd.getpwuid(os.getuid()).pw_name


def _advice() -> str:
    return f"install it (Debian, Ubuntu: sudo apt install {PACKAGE}) and run again"

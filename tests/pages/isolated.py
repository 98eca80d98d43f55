"""``python -m pages.isolated COMMAND…`` runs COMMAND in a network namespace with only 127.0.0.1.

This needs root, or a kernel that allows user namespaces. Otherwise the program exits with 77.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

UNSUPPORTED: Final = 77
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_REQUEST: Final = struct.Struct("16sh14x")  # struct ifreq


@cache
def can_isolate_network() -> bool:
    argv = [sys.executable, "-m", "pages.isolated", "true"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(argv, check=False, env=env, timeout=60).returncode == 0


def _unshare_network() -> bool:
    libc = ctypes.CDLL(None)
    if libc.unshare(_NEW_NETWORK) == 0:
        return True
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_NETWORK):
        return False
    process = Path("/proc/self")
    process.joinpath("setgroups").write_text("deny")
    process.joinpath("uid_map").write_text(f"{user} {user} 1")
    process.joinpath("gid_map").write_text(f"{group} {group} 1")
    return True


def _enable_loopback() -> None:
    with socket.socket() as control:
        flags = _REQUEST.unpack(
            fcntl.ioctl(control, _GET_FLAGS, _REQUEST.pack(b"lo", 0))
        )[1]  # fmt: skip
        fcntl.ioctl(control, _SET_FLAGS, _REQUEST.pack(b"lo", flags | _UP))


if __name__ == "__main__":
    try:
        if not _unshare_network():
            sys.exit(UNSUPPORTED)
        _enable_loopback()
    except OSError:  # the kernel may create namespaces without granting rights in them
        sys.exit(UNSUPPORTED)
    os.execvp(sys.argv[1], sys.argv[1:])

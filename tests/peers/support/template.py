"""A process that has loaded infergate and forks a gateway on request.

A gateway's start mostly loads modules, and a test run starts several hundred gateways. A
forked gateway reads its configuration, opens its sockets and ends like any other. The client side
is ``forked``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
MAX_MESSAGE_BYTES = 1 << 17
"""The maximum size in bytes of a request from ``forked``."""


def _load() -> None:
    """Load the modules of ``engine: own`` that start no thread when imported."""
    import infergate.cli.served_gateway  # noqa: PLC0415
    import infergate.runtime.serve  # noqa: PLC0415
    from infergate.assembly.engines import load_engine  # noqa: PLC0415
    from infergate.codecs.registry import plugins  # noqa: PLC0415
    from infergate.config.schema import Config  # noqa: PLC0415

    assert infergate.cli.main
    plugins()
    load_engine("own")
    Config.default()
    gc.collect()


def _isolate(request: dict[str, Any], log: int) -> None:
    """Give this fork the session, folder, environment and log of a new gateway process."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.chdir(request["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1 << 16)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    from infergate.gateway import dispatch  # noqa: PLC0415

    dispatch._id_prefix = os.urandom(6).hex()  # type: ignore[misc]  # request ids begin with it
    sys.argv[:] = ["infergate", *request["arguments"]]
    sys.path[0] = request["folder"]


def main() -> int:
    """Serve the control socket: fork a gateway and send its process ID, or send the exit code of a
    fork. In a fork, return the exit code of the gateway."""
    sys.path[0] = ""  # this folder's modules are not top-level modules
    control = socket.socket(fileno=int(sys.argv[1]))
    _load()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
        if not message:
            return 0
        request = json.loads(message)
        if "ended" in request:
            reply = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        else:
            started_reader, started_writer = os.pipe()
            reply = os.fork()
            if not reply:
                _isolate(request, *descriptors)
                break
            os.close(started_writer)
            os.read(started_reader, 1)  # returns when the child has closed its descriptors
            os.close(started_reader)
            os.close(*descriptors)
        control.send(str(reply).encode())
    control.detach()
    from infergate.cli import main as infergate  # noqa: PLC0415

    return infergate()


if __name__ == "__main__":
    sys.exit(main())

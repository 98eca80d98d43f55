"""Gateways forked from a process that has already loaded the modules; see ``template``.

With ``INFERGATE_FORKED=no``, each gateway is a new interpreter, as when users start it. A gateway
is also a new interpreter if its environment differs in variables that an interpreter or the C
library reads at startup, or if a test starts it without :func:`peers.support.process.started`.
Forked gateways share one seed of ``hash()``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from peers.support.template import MAX_MESSAGE_BYTES

_IS_ENABLED = os.environ.get("INFERGATE_FORKED", "yes") != "no"
_ENVIRONMENT = dict(os.environ)
"""The environment before any test changes it."""
_STARTUP_PREFIXES = (
    "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_", "OPENBLAS_", "OMP_",
    "PROTOCOL_BUFFERS_",
)  # fmt: skip


class Forked:
    """A forked gateway, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, template: _Template, pid: int) -> None:
        self.pid = pid
        self._template = template
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises ``subprocess.TimeoutExpired``."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("infergate", timeout or 0)
        return code

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        if self._code is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def _exit_code(self, timeout: float | None) -> int | None:
        if self._code is None and self._has_ended(timeout):
            self._code = self._template.send_request({"ended": self.pid})
            os.close(self._pidfd)
        return self._code

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()  # select supports no descriptor above 1023
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))


class _Template:
    """The process that forks gateways, one per test process."""

    def __init__(self) -> None:
        self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("template.py"), str(remote.fileno())],
                env=_ENVIRONMENT,
                pass_fds=[remote.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a terminal would hide a missing flush
                start_new_session=True,  # Ctrl-C is handled by the test process
            )
        atexit.register(self.close)

    def send_request(self, message: Mapping[str, object], *descriptors: int) -> int:
        data = json.dumps(message).encode()
        assert len(data) < MAX_MESSAGE_BYTES
        with self._lock:
            socket.send_fds(self._control, [data], descriptors)
            return int(self._control.recv(MAX_MESSAGE_BYTES))

    def close(self) -> None:
        self._control.close()
        self._process.wait()


_template = cache(_Template)


def forked(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, log: BinaryIO
) -> Forked | None:
    """Fork a gateway that runs ``argv``. Return None if it must be a new interpreter."""
    if not _IS_ENABLED or list(argv[:3]) != [sys.executable, "-m", "infergate"]:
        return None
    if _startup_variables(env) != _startup_variables(_ENVIRONMENT):
        return None
    request = {"arguments": list(argv[3:]), "env": dict(env), "folder": str(folder)}
    template = _template()
    return Forked(template, template.send_request(request, log.fileno()))


def _startup_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {key: env[key] for key in env if key.startswith(_STARTUP_PREFIXES)}

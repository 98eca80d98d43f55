"""Server processes that run for the duration of a ``with`` block.

*Rule 1.* Readiness is a condition that is polled up to a deadline, never a fixed sleep. *Rule 2.*
Ports are chosen before the server starts, so another process may take one of them first. The
server then exits and is started again on other ports. *Rule 3.* The server runs in its own process
group and in a temporary folder. At the end, the group is killed and the folder is removed.

Gateways are usually forked instead; see ``forked``.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

from peers.support.forked import Forked, forked

_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0
_STARTS = 3
_CLIENT_SECONDS = 60
_TAIL_LINES = 40
_PORT_TAKEN = ("address already in use", "failed to bind", "port is already", "unavailable port")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class PortTakenError(RuntimeError):
    """The server found one of its ports in use."""


@dataclass(frozen=True)
class Launch:
    """The command of a server.

    The server is ready when ``ready``, a path on the first port, returns 200 and each of ``ports``
    (on 127.0.0.1) accepts connections. ``ready`` is empty for a server without GET.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    ports: Sequence[int]
    ready: str = "/v2/health/ready"


@dataclass(frozen=True)
class Running:
    """A running server: its first process, its log, and ``host:port`` of each port."""

    pid: int
    log: Path
    addresses: Sequence[str]


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports of 127.0.0.1 that nothing listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def started(prepare: Callable[[Path], Launch], *, seconds: float = 100.0) -> Iterator[Running]:
    """Run the server that ``prepare`` describes. ``prepare`` gets the server's empty folder.

    ``prepare`` is called again with other ports if a port was taken. Raises RuntimeError with the
    end of the server's log if it is not ready within ``seconds``.
    """
    with contextlib.ExitStack() as stack:
        for attempt in range(_STARTS):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="infergate-")))
            try:
                yield stack.enter_context(_process(prepare(folder), folder, seconds))
            except PortTakenError:
                if attempt == _STARTS - 1:
                    raise
            else:
                return


@contextmanager
def _process(launch: Launch, folder: Path, seconds: float) -> Iterator[Running]:
    log = folder / "server.log"
    with log.open("wb") as out:
        process = forked(launch.argv, launch.env, folder, out) or subprocess.Popen(
            launch.argv,
            env=dict(launch.env),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it calls only prctl and takes no lock
        )
    try:
        _wait_ready(launch, process, log, seconds)
        yield Running(process.pid, log, [f"127.0.0.1:{port}" for port in launch.ports])
    finally:
        _stop(process)


def _die_with_parent() -> None:
    """Let the kernel send SIGTERM to the server when the test run ends, even if it is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_ready(
    launch: Launch, process: subprocess.Popen[bytes] | Forked, log: Path, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while not _is_ready(launch):
        code = process.poll()
        if code is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            continue
        log_text = log.read_text(errors="replace")
        tail = "\n".join(log_text.splitlines()[-_TAIL_LINES:])
        if code is not None and any(message in log_text.lower() for message in _PORT_TAKEN):
            raise PortTakenError(f"{launch.name}: a port was taken:\n{tail}")
        reason = f"not ready after {seconds:g} s" if code is None else f"exited with {code}"
        raise RuntimeError(f"{launch.name} {reason}; the end of its log:\n{tail}")


def _is_ready(launch: Launch) -> bool:
    try:
        for port in launch.ports:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        return not launch.ready or _returns_200(launch.ports[0], launch.ready)
    except (OSError, http.client.HTTPException):
        return False


def _returns_200(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes] | Forked) -> None:
    """Terminate the process, wait for its end, and kill the rest of its group."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def client_environment(**variables: str) -> dict[str, str]:
    """Return the environment for a peer's Python: the current variables and ``variables``, but not
    PYTHONPATH and proxies."""
    overrides = {"PYTHONPATH": "", "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"}
    return os.environ | overrides | variables


def scenario_results(*argv: Path | str, **variables: str) -> dict[str, Any]:
    """Run a client that prints the name and the result of each scenario as a line of JSON, and
    return the results by name. ``variables`` are added to its environment.

    Raises RuntimeError with the client's output if it fails.
    """
    env = client_environment(**variables)
    with subprocess.Popen(argv, env=env, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=_CLIENT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"the client ended with {process.returncode} after:\n{out[-1000:]}\n{errors[-4000:]}"
        )
    return dict(json.loads(line) for line in out.splitlines() if line.startswith("["))

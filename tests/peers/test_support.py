"""Tests of starting and stopping processes, and of the gateway's events in logs."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.running import Infergate, started_infergate
from peers.support.forked import Forked, forked
from peers.support.process import Launch, free_ports, started

_SERVE = """
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ok" else 404)
        self.end_headers()
child = subprocess.Popen(["sleep", "1000"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(port: int) -> Launch:
    return Launch("fake", [sys.executable, "-c", _SERVE, str(port)], os.environ, [port], "/ok")


def has_exited(pid: int) -> bool:
    """Return whether the process ends within ten seconds."""
    deadline = time.monotonic() + 10
    while not (ended := _ended(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return ended


def _ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


needs_forking = pytest.mark.skipif(
    os.environ.get("INFERGATE_FORKED") == "no", reason="gateways are not forked"
)


def run_forked(folder: Path, *arguments: str, **env: str) -> Forked | None:
    argv = [sys.executable, "-m", "infergate", *arguments]
    with (folder / "log").open("wb") as log:
        return forked(argv, {**os.environ, **env}, folder, log)


@needs_forking
def test_a_forked_gateway_leads_a_session_and_can_be_killed(tmp_path: Path) -> None:
    (tmp_path / "routes.yaml").write_text("drain: {delay: 100s}")
    process = run_forked(tmp_path, "--config", "routes.yaml")
    assert process is not None
    assert os.getsid(process.pid) == process.pid
    assert process.poll() is None
    process.kill()
    assert process.wait(100) == -9
    process.terminate()  # has no effect after the exit
    assert has_exited(process.pid)


def test_startup_environment_variables_prevent_forking(tmp_path: Path) -> None:
    assert run_forked(tmp_path, "--version", PYTHONWARNINGS="error") is None
    assert run_forked(tmp_path, "--version", LD_PRELOAD="x.so") is None


def test_a_changed_environment_prevents_forking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    assert run_forked(tmp_path, "--version") is None


def test_forked_gateways_generate_different_ids() -> None:
    config = "backends: {a: {protocol: builtin}}\nroutes: [{model: x, backend: a}]"
    ids = set()
    for _ in range(2):
        with (
            started_infergate(config) as running,
            socket.create_connection(running.http.split(":")) as client,
        ):
            client.sendall(b"GET /v2/models/y HTTP/1.0\r\n\r\n")
            result = client.makefile("rb").read().lower()
        ids.add(result.partition(b"x-request-id: ")[2].partition(b"\r\n")[0])
    assert b"" not in ids
    assert len(ids) == 2


@needs_forking
def test_the_exit_is_noticed_despite_many_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    try:
        with ExitStack() as files:
            for _ in range(1024):
                files.enter_context(Path(os.devnull).open())
            result = run_forked(tmp_path, "--version")
            assert result is not None
            assert result.wait(100) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_lines_of_an_event_are_found_among_plain_and_incomplete_lines(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    gateway = Infergate("", "", "", 0, log)
    plain, warning = "a library warns\n\n", '{"event":"config_warning","message":"m"}\n'
    log.write_text(plain + warning[:20])
    assert gateway.logged("config_warning") == []
    log.write_text(plain + warning + '{"event":"serving"}\n' + warning[:-1])
    assert gateway.logged("config_warning") == [{"event": "config_warning", "message": "m"}]


def test_a_server_is_removed_with_its_children() -> None:
    (port,) = free_ports(1)
    with started(lambda _: launch(port)) as running:
        child = int(running.log.read_text().split()[1])
        folder = running.log.parent
        assert not _ended(child)
        assert running.addresses == [f"127.0.0.1:{port}"]
        socket.create_connection(("127.0.0.1", port)).close()
    assert has_exited(running.pid)
    assert has_exited(child)
    assert not folder.exists()


def test_a_taken_port_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        ports = iter([holder.getsockname()[1], *free_ports(1)])
        with started(lambda _: launch(next(ports))) as running:
            assert not _ended(running.pid)

"""Tests reloads that fail or change the listeners, and the signals and file changes that cause
reloads. Connected clients are served throughout."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.frames import FRAME, error_in
from faults.peer import Client, get, post
from faults.watch import (
    closes_descriptors,
    descriptors,
    logged_bugs,
    metric,
    open_files,
    rises,
    unharmed,
    until,
)
from peers.support.process import Launch, free_ports, started

RELOADS = "infergate_config_reloads_total"
CONFIG = """
drain: {delay: 0s, timeout: 10s}
reload: {watch: false, post: true}
helpers: 0
backends: {ours: {protocol: builtin}}
routes: [{model: "identity", backend: ours}]
"""
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}]}'


@dataclass
class Harness:
    gateway: Infergate
    file: Path
    first: str

    def page(self) -> dict[str, Any]:
        document: dict[str, Any] = get(self.gateway.admin, "/config").json
        return document

    def replace(self, text: str) -> None:
        """Replace the file by renaming another file, as editors do."""
        other = self.file.with_suffix(".new")
        other.write_text(text)
        other.rename(self.file)

    def with_listeners(self, more: str) -> str:
        return self.first.replace("drain:", f"{more}\ndrain:", 1)

    def reload(self) -> tuple[int, dict[str, Any]]:
        answer = post(self.gateway.admin, "/reload")
        return answer.status, answer.json

    def infer(self, model: str) -> int:
        return post(self.gateway.http, f"/v2/models/{model}/infer", BODY).status


@contextmanager
def started_harness(engine: str, config: str) -> Iterator[Harness]:
    with started_infergate(config, engine=engine) as gateway:
        file = gateway.log.parent / "routes.yaml"
        yield Harness(gateway, file, file.read_text())
        assert bugs_except_rejected_reloads(gateway) == ""


@pytest.fixture(scope="module", params=["own", "compat"])
def shared(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with started_harness(request.param, CONFIG) as harness:
        yield harness


@pytest.fixture
def harness(shared: Harness) -> Iterator[Harness]:
    """Run a gateway with the first configuration. Check that it serves another client meanwhile."""
    with unharmed(shared.gateway, lambda: shared.infer("identity") == 200):
        yield shared
        shared.file.write_text(shared.first)
        assert shared.reload()[0] == 200


def failing(harness: Harness) -> AbstractContextManager[None]:
    """Check that one reload within the block is reported as failed."""
    return rises(harness.gateway, RELOADS, result="failed")


def succeeding(harness: Harness, count: int = 1) -> AbstractContextManager[None]:
    """Check that ``count`` reloads within the block are reported as successful."""
    return rises(harness.gateway, RELOADS, by=count, result="ok")


def bugs_except_rejected_reloads(gateway: Infergate) -> str:
    lines = logged_bugs(gateway).splitlines()
    return "\n".join(line for line in lines if "configuration rejected" not in line)


def test_an_invalid_file_leaves_the_active_configuration(harness: Harness) -> None:
    with closes_descriptors(harness.gateway.pid), Client(harness.gateway.http) as client:
        before = harness.page()
        harness.file.write_text(harness.first + "nonsense: 1\n")
        with failing(harness):
            status, page = harness.reload()
        assert (status, page["number"], page["sha256"]) == (500, before["number"], before["sha256"])
        assert not page["last_reload"]["ok"]
        assert "unknown key 'nonsense'" in page["last_reload"]["error"]
        assert "unknown key 'nonsense'" in harness.gateway.log.read_text()
        assert metric(harness.gateway, "infergate_config_last_reload_successful") == 0
        assert f'sha256="{page["sha256"]}"' in harness.gateway.metrics()
        assert harness.infer("identity") == 200
        # After the correction, the file is loaded and applies to the existing connection.
        harness.file.write_text(harness.first.replace('model: "identity"', 'model: "id*"'))
        assert harness.reload()[0] == 200
        assert metric(harness.gateway, "infergate_config_last_reload_successful") == 1
        client.send(
            b"POST /v2/models/idle/infer HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        )
        assert "unknown model 'idle'" in client.answer().error


def test_a_reload_to_an_address_in_use_fails(harness: Harness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, closes_descriptors(harness.gateway.pid):
        port = other.getsockname()[1]
        (free,) = free_ports(1)
        more = f"""\
  graphpipe:
    - {{address: "127.0.0.1:{free}", model: identity}}
    - {{address: "127.0.0.1:{port}", model: identity}}"""
        harness.file.write_text(harness.with_listeners(more))
        with failing(harness):
            status, page = harness.reload()
        assert status == 500
        assert f"graphpipe[1]: cannot listen on 127.0.0.1:{port}" in page["last_reload"]["error"]
        assert harness.infer("identity") == 200
        with pytest.raises(ConnectionRefusedError):
            Client(f"127.0.0.1:{free}")


def test_listeners_are_added_and_removed(harness: Harness) -> None:
    before = descriptors(harness.gateway.pid)
    with succeeding(harness, 3):
        add_and_remove_listeners(harness)
    until(lambda: descriptors(harness.gateway.pid) <= before, f"descriptors are back to {before}")


def add_and_remove_listeners(harness: Harness) -> None:
    raw, other, grpc = free_ports(3)
    frames = f'{{address: "127.0.0.1:{raw}", model: identity, framing: size-prefixed}}'
    more = f'{{address: "127.0.0.1:{other}", model: identity}}'
    harness.file.write_text(harness.with_listeners(f"  graphpipe: [{more}, {frames}]"))
    assert harness.reload()[0] == 200
    with Client(f"127.0.0.1:{raw}") as client:
        client.send(FRAME)
        assert error_in(client) == ""
        # Removing the other listener changes the name of this listener, whose connection stays
        # open.
        harness.file.write_text(harness.with_listeners(f"  graphpipe: [{frames}]"))
        assert harness.reload()[0] == 200
        client.send(FRAME)
        assert error_in(client) == ""
        with pytest.raises(ConnectionRefusedError):
            Client(f"127.0.0.1:{other}")
        # Requests in progress on a removed listener are completed.
        client.send(FRAME[:6])
        until(
            lambda: "infergate_in_flight_requests 1.0" in harness.gateway.metrics(),
            "the request is in progress",
        )
        harness.file.write_text(harness.first.replace(harness.gateway.grpc, f"127.0.0.1:{grpc}"))
        assert harness.reload()[0] == 200
        client.send(FRAME[6:])
        assert error_in(client) == ""
        assert client.read_to_end() == b""
    with socket.create_connection(("127.0.0.1", grpc)):
        pass


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("engine: own", "engine: compat", "engine: changing 'own' to 'compat' requires a restart"),
        ("helpers: 0", "helpers: 0\nworkers: 2", "workers: changing 1 to 2 requires a restart"),
        ("helpers: 0", "limits: {body: 1KiB}\nhelpers: 0", ""),  # supported by the own engine
    ],
)
def test_unsupported_changes_are_rejected(harness: Harness, old: str, new: str, error: str) -> None:
    is_compat = "engine: compat" in harness.first
    if is_compat:
        old, new = old.replace("own", "compat"), new.replace("compat", "own")
        error = error.replace("changing 'own' to 'compat'", "changing 'compat' to 'own'")
        error = error or "listeners.grpc: changing limits.body on"
    assert old in harness.first
    harness.file.write_text(harness.first.replace(old, new))
    with failing(harness) if error else succeeding(harness):
        status, page = harness.reload()
    if error:
        assert (status, error in page["last_reload"]["error"]) == (500, True), page
        assert harness.infer("identity") == 200
    else:
        assert status == 200
        answer = post(harness.gateway.http, "/v2/models/identity/infer", b" " * 2000)
        assert answer.status == 413


def test_a_listener_cannot_change_its_transport(harness: Harness) -> None:
    (port,) = free_ports(1)
    harness.file.write_text(
        harness.with_listeners(f'  graphpipe: [{{address: "127.0.0.1:{port}", model: identity}}]')
    )
    assert harness.reload()[0] == 200
    harness.file.write_text(
        harness.file.read_text().replace("model: id", "framing: size-prefixed, model: id", 1)
    )
    with failing(harness):
        status, page = harness.reload()
    assert status == 500
    assert "changing the protocol on" in page["last_reload"]["error"]


def wait_until_watched(harness: Harness) -> None:
    """Wait until the file is watched. The watch opens descriptors shortly after the start, and
    ``unharmed`` would count them."""
    until(
        lambda: any("inotify" in each for each in open_files(harness.gateway.pid)),
        "the file is watched",
    )


def test_signals_and_changed_files_cause_reloads() -> None:
    with started_harness(
        "own", CONFIG.replace("watch: false", "watch: true, quiet: 50ms")
    ) as harness:
        wait_until_watched(harness)
        with (
            unharmed(harness.gateway, lambda: harness.infer("identity") == 200),
            succeeding(harness, 4),
        ):
            check_signals_and_files(harness)


def check_signals_and_files(harness: Harness) -> None:
    os.kill(harness.gateway.pid, signal.SIGHUP)
    until(lambda: harness.page()["number"] == 2, "SIGHUP reloads an unchanged file as well")
    assert harness.page()["last_reload"]["why"] == "SIGHUP"
    labels = harness.file.parent / "labels.txt"
    labels.write_text("cat\ndog\n")
    with_labels = harness.first.replace(
        "backend: ours}]", "backend: ours, labels: {OUTPUT0: labels.txt}}]"
    )
    harness.replace(with_labels)
    until(lambda: harness.page()["number"] == 3, "the changed file is loaded")
    assert harness.page()["last_reload"]["why"] == "a file changed"
    labels.write_text("cat\ndog\nbird\n")
    until(lambda: harness.page()["number"] == 4, "a changed referenced file causes a reload")
    labels.unlink()
    until(lambda: not harness.page()["last_reload"]["ok"], "the missing file is reported")
    labels.write_text("cat\n")
    until(lambda: harness.page()["number"] == 5, "the file exists again")
    assert harness.infer("identity") == 200


@contextmanager
def started_from_file(file: Path, ports: list[int]) -> Iterator[Infergate]:
    argv = [sys.executable, "-m", "infergate", "--config", str(file), "--log-format", "json"]
    launch = Launch("infergate", argv, dict(os.environ), ports, ready="/healthz")
    with started(lambda _: launch) as running:
        admin, grpc, http_ = running.addresses
        yield Infergate(http_, grpc, admin, running.pid, running.log)


def test_a_replaced_configmap_is_loaded(tmp_path: Path) -> None:
    """The file is a symlink through ``..data``, another symlink, which the test replaces as the
    kubelet does."""
    ports = free_ports(3)
    config = CONFIG.replace("watch: false", "watch: true, quiet: 50ms")
    text = "engine: own\n" + LISTENERS.format(*ports) + config

    def swap(name: str, text: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "routes.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    swap("..2026_01", text)
    (tmp_path / "routes.yaml").symlink_to("..data/routes.yaml")
    with started_from_file(tmp_path / "routes.yaml", ports) as gateway:
        harness = Harness(gateway, tmp_path / "routes.yaml", text)
        wait_until_watched(harness)
        assert harness.infer("other") == 404
        live = lambda: get(gateway.http, "/v2/health/live").status == 200  # noqa: E731
        with unharmed(gateway, live), succeeding(harness, 2):
            for number in (2, 3):
                swap(f"..2026_0{number}", text.replace('"identity"', f'"other{number}"'))
                until(
                    lambda n=number: harness.page()["number"] == n, "the replaced link is noticed"
                )  # type: ignore[misc]
        assert harness.page()["last_reload"]["why"] == "a file changed"
        answer = post(gateway.http, "/v2/models/other3/infer", BODY)
        assert "unknown model 'other3'" in answer.error

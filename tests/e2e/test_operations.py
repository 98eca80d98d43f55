"""Tests infergate as a process: its log, its admin listener, ``--check``, start and exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from e2e.clients import client
from e2e.running import LISTENERS, Infergate, started_infergate
from faults.peer import get, post
from faults.watch import sample, until
from peers.support.process import free_ports
from peers.support.triton import Triton

DEMO = """
backends:
  demo: {protocol: builtin}
routes:
  - {model: simple, backend: demo}
  - {model: "ident*", backend: demo}
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(DEMO) as running:
        yield running


def infer(address: str, model: str, headers: dict[str, str] | None = None) -> int:
    body = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1]}]}
    return post(address, f"/v2/models/{model}/infer", json.dumps(body).encode(), headers).status


def lines(gateway: Infergate, count: int, mark: str) -> list[dict[str, object]]:
    """Wait for ``count`` log lines that contain ``mark``, and return them parsed."""

    def matching() -> list[str]:
        complete, _, _ = gateway.log.read_text().rpartition("\n")
        return [line for line in complete.splitlines() if mark in line]

    until(lambda: len(matching()) >= count, f"{count} lines with {mark}")
    return [json.loads(line) for line in matching()]


def test_a_reload_by_sighup_is_logged_as_json(gateway: Infergate) -> None:
    os.kill(gateway.pid, signal.SIGHUP)
    (line,) = lines(gateway, 1, "SIGHUP")
    assert (line["event"], line["level"], line["logger"]) == ("config_loaded", "INFO", "infergate")


SECRET = "SECRET-4711"


def test_neither_secrets_nor_data_are_in_the_log(gateway: Infergate) -> None:
    """An error names the invalid part of a request, but never quotes its data."""
    secrets = {
        "authorization": f"Bearer {SECRET}",
        "x-api-key": SECRET,
        "cookie": f"session={SECRET}",
        "x-custom": SECRET,
    }
    head = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"BYTES","parameters":'
    text = json.dumps([SECRET])
    template = b'{"inputs":[{"name":"INPUT0","shape":%s,"datatype":"%s","data":%s}]}'
    bodies = [
        template % (b"[1]", b"BYTES", text.encode()),
        template % (b"[2]", b"BYTES", text.encode()),  # too few elements
        template % (b"[1]", b"FP32", text.encode()),  # text instead of a number
        template % (b"[1]", b"BOOL", text.encode()),
        template % (b"[1]", b"BYTES", text.encode()[:-1]),  # invalid JSON
        template % (b"[1]", b"BYTES", b'{"a":' + text.encode() + b"}"),
        head + b'{"binary_data_size":15}}]}\x0b\0\0\0' + SECRET.encode(),
        SECRET.encode(),
    ]
    number = 0
    for body in bodies:
        for path in ("/v2/models/identity/infer", "/v2/models/identity/generate"):
            for extra in ({}, {"inference-header-content-length": str(len(head) + 26)}):
                mark = {"x-request-id": f"leak-{number}"}
                post(gateway.http, f"{path}?key={SECRET}", body, secrets | extra | mark)
                number += 1
    last = {"x-request-id": "leak-last"}
    post(gateway.http, f"/nowhere?key={SECRET}", b"", secrets | last)
    lines(gateway, number + 1, '"leak-')
    assert SECRET not in gateway.log.read_text()


def test_an_error_returns_the_request_id(gateway: Infergate) -> None:
    path, headers = "/v2/models/none/infer", {"x-request-id": "given-1"}
    assert post(gateway.http, path, b"{}", headers).headers["x-request-id"] == "given-1"
    generated = post(gateway.http, path, b"{}").headers["x-request-id"]
    (line,) = lines(gateway, 1, f'"{generated}"')
    assert (line["outcome"], line["event"]) == ("not_found", "request")
    assert "add a route" in line["advice"]


def test_health_and_readiness(gateway: Infergate) -> None:
    assert get(gateway.admin, "/healthz").status == 200
    assert get(gateway.admin, "/readyz").status == 200
    for name in ("live", "ready"):
        response = get(gateway.http, f"/v2/health/{name}")
        assert (response.status, response.json) == (200, {name: True})


def test_the_data_port_has_no_admin_endpoints(gateway: Infergate) -> None:
    for path in ("/metrics", "/healthz", "/config", "/console"):
        assert get(gateway.http, path).status == 404


def test_models_are_listed(gateway: Infergate) -> None:
    response = get(gateway.http, "/v2/models")
    assert response.status == 200
    assert set(response.json["models"]) == {"simple", "identity"}


def test_metrics_are_labelled_from_the_config_only(gateway: Infergate) -> None:
    assert infer(gateway.http, "identity") == 200
    for number in range(20):
        assert infer(gateway.http, f"made-up-{number}") == 404
    text = gateway.metrics()
    assert "made-up" not in text
    labels = {"route": "ident*", "backend": "demo", "protocol": "v2-rest", "outcome": "ok"}
    name, builtin = "infergate_requests_total", {"backend_protocol": "builtin"}
    assert sample(text, name, operation="infer", **labels, **builtin) >= 1
    assert sample(text, name, outcome="not_found") >= 20
    for name in (
        "infergate_request_seconds_bucket",
        "infergate_backend_seconds_bucket",
        "infergate_request_bytes_total",
        "infergate_response_bytes_total",
        "infergate_in_flight_requests",
    ):
        assert name in text


def test_each_request_is_one_line_of_the_access_log(gateway: Infergate) -> None:
    infer(gateway.http, "identity", {"x-request-id": "log-test-1"})
    infer(gateway.http, "nowhere", {"x-request-id": "log-test-2"})
    entries = lines(gateway, 2, "log-test-")
    served, rejected = sorted(entries, key=lambda line: str(line["request_id"]))
    assert served["model"] == "identity"
    assert served["route"] == "ident*"
    assert served["backend"] == "demo"
    assert (served["protocol"], served["backend_protocol"]) == ("v2-rest", "builtin")
    assert served["outcome"] == "ok"
    assert int(str(served["bytes_in"])) > 0
    assert float(str(served["seconds"])) > 0
    assert rejected["outcome"] == "not_found"
    assert "nowhere" in str(rejected["error"])


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infergate", *argv], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_check_reports_every_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        "backends:\n"
        "  triton:\n"
        "    protocol: v2-grpcc\n"
        "    endpoint: [grpc://x:1]\n"
        "routes:\n"
        "  - {model: a, backend: tritn}\n"
    )
    completed = run("--config", str(file), "--check")
    assert completed.returncode == 2
    for text in (
        "routes.yaml:3: backends.triton.protocol",
        "did you mean 'v2-grpc'",
        "routes.yaml:4: backends.triton.endpoint",
        "did you mean 'endpoints'",
        "routes.yaml:6: routes[0].backend",
        "did you mean 'triton'",
    ):
        assert text in completed.stderr


def test_check_of_a_valid_file_prints_the_routes(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(DEMO)
    completed = run("--config", str(file), "--check")
    assert completed.returncode == 0
    assert "ident*" in completed.stdout


def test_an_address_in_use_is_named_in_the_error(gateway: Infergate, tmp_path: Path) -> None:
    for name in ("http", "grpc"):
        http_port, admin_port = free_ports(2)
        addresses = {"http": f"127.0.0.1:{http_port}", "grpc": "127.0.0.1:0"}
        addresses[name] = str(getattr(gateway, name))
        file = tmp_path / "routes.yaml"
        file.write_text(
            f"listeners:\n  http: {{address: '{addresses['http']}'}}\n"
            f"  grpc: {{address: '{addresses['grpc']}'}}\n"
            f"  admin: {{address: '127.0.0.1:{admin_port}'}}\n{DEMO}"
        )
        completed = run("--config", str(file))
        assert completed.returncode == 1
        assert addresses[name] in completed.stderr


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    completed = run("--config", str(tmp_path / "none.yaml"))
    assert completed.returncode == 2
    assert "none.yaml" in completed.stderr


TRITON = """
backends:
  triton: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
routes:
  - {{model: "*", backend: triton}}
"""


class ManagedGateway(NamedTuple):
    """A gateway process that the test itself stops. ``data`` and ``admin`` are ``host:port``."""

    process: subprocess.Popen[str]
    data: str
    admin: str


@contextmanager
def started_process(folder: Path, config: str) -> Iterator[ManagedGateway]:
    ports = free_ports(3)
    file = folder / "routes.yaml"
    file.write_text(LISTENERS.format(*ports) + config)
    process = subprocess.Popen(
        [sys.executable, "-m", "infergate", "--config", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            while "admin" not in process.stdout.readline():
                assert process.poll() is None
            yield ManagedGateway(process, f"127.0.0.1:{ports[2]}", f"127.0.0.1:{ports[0]}")
        finally:
            process.kill()


def test_readiness_fails_first_and_a_second_signal_exits_immediately(
    tmp_path: Path,
) -> None:
    config = "drain: {delay: 60s, timeout: 60s}\n" + DEMO
    with started_process(tmp_path, config) as (process, data, admin):
        assert get(admin, "/readyz").status == 200
        os.kill(process.pid, signal.SIGTERM)
        until(lambda: get(admin, "/readyz").status == 503, "the gateway is not ready")
        assert infer(data, "identity") == 200
        assert get(data, "/v2/health/ready").status == 400
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) == 0


def test_sigterm_completes_requests_and_exits_cleanly(triton: Triton, tmp_path: Path) -> None:
    results: list[object] = []
    config = "drain: {delay: 0s, timeout: 20s}\n" + TRITON.format(grpc=triton.grpc)
    with started_process(tmp_path, config) as (process, data, admin):

        def send_request() -> None:
            with client("http", data, "") as triton_client:
                tensor = triton_client.input("INPUT0", np.array([1], np.int32), "INT32")
                seconds = triton_client.input("SECONDS", np.array([1.0], np.float32), "FP32")
                results.append(
                    triton_client.infer("slow", [tensor, seconds]).as_numpy("OUTPUT0").tolist()
                )

        thread = threading.Thread(target=send_request)
        thread.start()
        until(
            lambda: b"infergate_in_flight_requests 1.0" in get(admin, "/metrics").body,
            "the request is in progress",
        )
        os.kill(process.pid, signal.SIGTERM)
        thread.join()
        assert results == [[1]]
        assert process.wait(20) == 0

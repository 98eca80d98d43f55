"""infergate routes, backends and health with a scripted admin port."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from scripted_admin import scripted_admin

from infergate.cli import main
from infergate.cli.admin_client import parse_admin_url
from infergate.cli.output import quantile

STATE: dict[str, Any] = {
    "version": "9", "time": 1.0, "ready": False,
    "workers": {"wanted": 2, "serving": 1, "reporting": 1},
    "config": {"source": "routes.yaml", "number": 3, "last_reload": {"ok": False, "error": "no!"}},
    "totals": {"in_flight": 4.0},
    "flows": [
        {
            "route": "bert", "protocol": "v2-rest", "backend": "a", "backend_protocol": "v2-grpc",
            "operation": "infer", "outcomes": {"ok": 8, "timeout": 1, "not_found": 1},
            "client_errors": 1,
            "seconds": {"sum": 0.1, "count": 10, "buckets": [[0.01, 5], [0.02, 10], [None, 10]]},
        },
        {
            "route": "bert", "protocol": "grpc", "backend": "a", "outcomes": {"ok": 2},
            "client_errors": 0, "seconds": {"sum": 0.02, "buckets": []},
        },
    ],
    "endpoints": [
        {
            "backend": "a", "endpoint": "grpc://x:1", "health": "down", "active": 1,
            "requests": {"ok": 8, "failed": 2}, "ejections": 5,
        },
        {"backend": "c", "endpoint": "grpc://x:1", "health": "up"},
    ],
    "backends": [{"backend": "a", "retries": {"not_sent": 3}, "waiting": 6}],
}  # fmt: skip
PLAN: dict[str, Any] = {
    "listeners": [
        {"name": "http", "address": "127.0.0.1:1", "protocols": ["v2-rest"], "tls": True},
    ],
    "routes": [
        {
            "label": "bert", "backend": "a", "split": [{"backend": "b", "percent": 5.0}],
            "fallback": "c", "mirror": "d", "rewrites": ["model: x"],
        },
        {
            "label": "*", "backend": "b", "split": [], "fallback": "", "mirror": "",
            "rewrites": [],
        },
    ],
    "backends": [
        {"name": "a", "protocol": "v2-grpc", "endpoints": ["grpc://x:1"]},
        {"name": "b", "protocol": "builtin", "endpoints": []},
        {"name": "c", "protocol": "v2-grpc", "endpoints": ["grpc://x:1"]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def admin() -> Iterator[str]:
    with scripted_admin({"/console/state": STATE, "/console/plan": PLAN}.get) as address:
        yield address


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_routes_are_printed_with_traffic(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "--admin", admin]) == 0
    rows = lines(capsys)
    assert " ".join(rows[2]).startswith(
        "1 bert a, 5% b, else c, copy d model: x 12 1 1 10 ms 19.8 ms"
    )
    assert rows[3] == ["2", "*", "b", "-", "0", "0", "0", "-", "-"]


def test_backends_and_endpoints_are_printed(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--admin", f"http://{admin}"]) == 0
    rows = lines(capsys)
    assert rows[2][:6] == ["a", "v2-grpc", "3", "6", "12", "1"]
    assert ["a", "grpc://x:1", "down", "1", "8", "2", "5"] in rows


def test_health_prints_the_state_and_fails_if_not_ready(
    admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--admin", f"http://{admin}/"]) == 1
    text = capsys.readouterr().out
    endpoints = [line.split() for line in text.splitlines() if "grpc://x:1" in line]
    assert endpoints == [["a", "grpc://x:1", "down"], ["c", "grpc://x:1", "up"]]
    for part in ("not ready", "1 of 2", "number 3, routes.yaml", "no!", "4 requests", "grpc://x:1"):
        assert part in text


@pytest.mark.parametrize("command", ["routes", "backends", "health"])
def test_programs_get_json(command: str, admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--admin", admin, "--json"]) == (command == "health")
    document = json.loads(capsys.readouterr().out)
    match command:
        case "routes":
            assert document[0]["traffic"]["requests"] == 12
            assert document[1]["traffic"]["p99_seconds"] is None
        case "backends":
            assert document[0]["endpoints"][0]["health"] == "down"
        case _:
            assert document["ready"] is False


@pytest.mark.parametrize("reply", [b"\0\0\x06\x04", b"HTTP/1.1 200 OK\r\n\r\n[]"])
def test_a_port_that_is_not_an_admin_port_is_reported(
    reply: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(reply)

        thread = Thread(target=respond)
        thread.start()
        assert main(["health", "--admin", f"127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()
    assert "returned an invalid response" in capsys.readouterr().err


def test_a_gateway_that_does_not_respond_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infergate.cli.admin_client._TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert main(["health", "--admin", f"127.0.0.1:{server.getsockname()[1]}"]) == 1
    assert "/console/state did not respond within 0.1 s" in capsys.readouterr().err


def test_a_missing_console_is_reported(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--admin", f"{admin}/elsewhere"]) == 1
    assert "the gateway's console is off" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x", "http://", "http://x:port", ""])
def test_an_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected|[Pp]ort"):
        parse_admin_url(url)
    with pytest.raises(SystemExit):
        main(["health", "--admin", url])


@pytest.mark.parametrize("url", ["http://me:hunter2@x:8002", "me:hunter2@x"])
def test_a_password_in_a_url_is_not_repeated(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["health", "--admin", url])
    text = capsys.readouterr().err
    assert "set the key in INFERGATE_ADMIN_KEY" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([], 0.5, None),
        ([(1.0, 0), (float("inf"), 0)], 0.5, None),
        ([(1.0, 10), (float("inf"), 10)], 0.5, 0.5),
        ([(1.0, 5), (2.0, 10), (float("inf"), 10)], 0.75, 1.5),
        ([(1.0, 5), (float("inf"), 10)], 0.99, 1.0),
    ],
)
def test_quantiles_are_interpolated_like_prometheus(
    buckets: list[tuple[float, float]], share: float, expected: float | None
) -> None:
    assert quantile(buckets, share) == expected

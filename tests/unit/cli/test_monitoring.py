"""``check``, and the commands that show a gateway's state, run against a scripted gateway."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_admin import scripted_admin

from infergate.cli import main
from infergate.cli.output import QUERIES
from infergate.cli.top import TrafficQuery, changes

LONG_ROUTE = "a-route-with-a-name-that-is-much-longer-than-its-column-would-be"
PLAN: dict[str, Any] = {
    "listeners": [
        {"name": "http", "address": "127.0.0.1:1", "protocols": ["v2-rest"] * 9, "tls": True}
    ],
    "routes": [
        {"label": label, "backend": backend, "split": [], "fallback": "other", "mirror": "copy",
         "rewrites": ["model: another-model-name", "version: 1"]}
        for label, backend in ((LONG_ROUTE, "busy"), ("idle", "busy"), ("bert", "failing"))
    ],
    "backends": [
        {"name": "busy", "protocol": "v2-grpc", "endpoints": ["grpc://busy.example.internal:8001"]},
        {"name": "failing", "protocol": "v2-grpc", "endpoints": ["grpc://a:1", "grpc://b:1"]},
        {"name": "dead", "protocol": "v2-grpc", "endpoints": ["grpc://dead.example.internal:8001"]},
    ],
}  # fmt: skip
FAILED_REQUEST = {
    "time": 1_700_000_000.25, "kind": "timeout", "error": "backend 'failing': too late\x1b[2J",
    "detail": "grpc://a:1", "protocol": "v2-rest", "operation": "infer", "model": "bert",
    "route": "bert", "backend": "failing", "backend_protocol": "v2-grpc", "request_id": "r-1",
    "seconds": 2.0, "worker": 1, "meaning": "There was no response in time.", "advice": "",
}  # fmt: skip


def flow(route: str, backend: str, outcomes: dict[str, int], client_errors: int) -> dict[str, Any]:
    count = sum(outcomes.values())
    return {
        "route": route, "protocol": "v2-rest", "backend": backend, "backend_protocol": "v2-grpc",
        "operation": "infer", "outcomes": outcomes, "client_errors": client_errors,
        "seconds": {"sum": count * 0.01, "buckets": [[0.01, count], [0.02, count], [None, count]]},
    }  # fmt: skip


class Gateway:
    """A scripted gateway; its counters grow with each query. With ``history``, it has timelines."""

    def __init__(self) -> None:
        self.queries = 0
        self.history = False

    def respond(self, path: str) -> Any:
        if path == "/console/plan":
            return PLAN
        if path == "/console/history" and self.history:
            phases = [("receive", 0.5), ("parse", 0.0), ("backend", 1.499), ("render", 0.001)]
            timeline = {
                "phases": [{"phase": name, "seconds": seconds} for name, seconds in phases],
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
            }
            return {"failed": [FAILED_REQUEST | timeline], "slowest": [FAILED_REQUEST | timeline]}
        if path != "/console/state":
            return None
        n = self.queries = self.queries + 1
        return {
            "version": "9", "time": 1.0, "ready": n % 2 == 0,
            "workers": {"wanted": 2, "serving": 1, "reporting": 1},
            "config": {"source": "a-long-path/" * 9, "number": 3, "last_reload": None},
            "totals": {"in_flight": 4.0},
            "flows": [
                flow(LONG_ROUTE, "busy", {"ok": 1000 * n, "bad_request": 500 * n}, 500 * n),
                flow("bert", "failing", {"ok": 7, "timeout": 10 * n}, 0),
            ],
            "endpoints": [
                {"backend": "busy", "endpoint": "grpc://busy.example.internal:8001",
                 "health": "up", "requests": {"ok": 9, "failed": 0}},
                {"backend": "failing", "endpoint": "grpc://a:1", "health": "up"},
                {"backend": "failing", "endpoint": "grpc://b:1", "health": "ejected"},
                {"backend": "dead", "endpoint": "grpc://dead.example.internal:8001",
                 "health": "down", "active": 1, "requests": {"ok": 0, "failed": 2}},
            ],
            "backends": [{"backend": "failing", "retries": {"not_sent": 3}, "waiting": 6}],
            "failures": [FAILED_REQUEST],
        }  # fmt: skip


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> Iterator[str]:
    with scripted_admin(gateway.respond) as address:
        yield address


@pytest.fixture
def timelines(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    monkeypatch.setattr(gateway, "history", True)


def first_cells(text: str, title: str, column: int = 0) -> list[str]:
    """Return a column of the table with ``title`` in plain text."""
    block = text[text.index(title) :].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return [line.split()[column] for line in block]


# ---- top


def test_top_shows_rates_since_the_previous_query_with_failures_first(
    admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--admin", admin, "--interval", "0.01", "--count", "2", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    for data in (first, second):
        routes = {route["label"]: route["traffic"] for route in data["routes"]}
        assert list(routes) == ["bert", LONG_ROUTE, "idle"]
        assert (routes["bert"]["requests"], routes["bert"]["failures"]) == (10, 10)
        assert (routes[LONG_ROUTE]["requests"], routes[LONG_ROUTE]["client_errors"]) == (1500, 500)
        assert routes[LONG_ROUTE]["failures"] == routes["idle"]["requests"] == 0
        assert routes[LONG_ROUTE]["requests_per_second"] == pytest.approx(1500 / data["seconds"])
        assert routes["bert"]["p99_seconds"] == pytest.approx(0.0099)
        assert [each["name"] for each in data["backends"]] == ["failing", "dead", "busy"]


def test_top_prints_tables(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--admin", admin, "--interval", "0.01", "--count", "1"]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 workers, 4 in flight" in text
    assert first_cells(text, "routes, failures first") == ["bert", LONG_ROUTE, "idle"]
    assert first_cells(text, "backends, failures first") == ["failing", "dead", "busy"]
    assert "1 ejected, 1 up" in text


@pytest.mark.parametrize("command", [*QUERIES, "top"])
def test_names_cannot_control_the_terminal(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = Gateway()

    def respond(path: str) -> Any:
        text = json.dumps(gateway.respond(path))
        return json.loads(text.replace("busy", "b\\u001b[2J\\u009b1m"))

    with scripted_admin(respond) as admin:
        repeat = ["--count", "1", "--interval", "0.01"] if command == "top" else []
        main([command, "--admin", admin, *repeat])
    out = capsys.readouterr().out
    assert "\\u001b[2J" in out.replace("\n", "")
    assert not any(each in out for each in "\x1b\x9b")


def requests_between(*states: tuple[dict[str, Any], int]) -> int:
    """Return the new requests of route ``bert`` that ``top`` shows for two states. A state consists
    of changed fields and the route's number of requests since the gateway started."""
    pending = iter(states)

    def respond(path: str) -> Any:
        if path == "/console/plan":
            return PLAN
        changed, count = next(pending)
        flows = [flow("bert", "failing", {"ok": count}, 0)]
        return Gateway().respond("/console/state") | {"flows": flows} | changed

    with scripted_admin(respond) as admin:
        data = TrafficQuery(f"http://{admin}", 0.01)().data
    [requests] = [e["traffic"]["requests"] for e in data["routes"] if e["label"] == "bert"]
    return int(requests)


@pytest.mark.parametrize(("since", "requests"), [("12:00", 0), ("13:00", 7)])
def test_lower_counters_count_from_zero_only_after_a_restart(since: str, requests: int) -> None:
    config = Gateway().respond("/console/state")["config"] | {"number": 1}
    before = {"config": config | {"since": "12:00"}}
    after = {"config": config | {"since": since}}
    assert requests_between((before, 100), (after, 7)) == requests


def test_counters_of_an_exited_worker_are_not_new_requests() -> None:
    key = ("r", "", "", "", "")
    before = {key: flow("r", "b", {"ok": 100, "timeout": 2}, 0)}
    assert list(changes({key: flow("r", "b", {"ok": 50, "timeout": 3}, 0)}, before)) == []
    [change] = changes({key: flow("r", "b", {"ok": 5}, 0)}, {})
    assert change["outcomes"] == {"ok": 5}


def test_requests_before_a_flow_was_listed_are_not_new() -> None:
    key = ("r", "", "", "", "")
    listed = flow("r", "b", {"ok": 500}, 0) | {"listed_since": 7.0}
    assert list(changes({key: listed}, {})) == []
    assert list(changes({key: listed}, {key: flow("r", "b", {"ok": 5}, 0)})) == []
    [change] = changes({key: listed | {"outcomes": {"ok": 502}}}, {key: listed})
    assert change["outcomes"] == {"ok": 2}


@pytest.mark.parametrize(
    ("before", "after", "requests"),
    [((2, 2), (2, 2), 900), ((2, 1), (2, 2), 0), ((2, 1), (1, 1), 0), ((1, 1), (2, 2), 900)],
    ids=["all respond", "a worker responds again", "a worker ended", "a worker was added"],
)
def test_requests_of_a_worker_that_responds_again_are_not_new(
    before: tuple[int, int], after: tuple[int, int], requests: int
) -> None:
    earlier, later = (
        {"workers": {"wanted": 2, "serving": serving, "reporting": reporting}}
        for serving, reporting in (before, after)
    )
    assert requests_between((earlier, 100), (later, 1000)) == requests


# ---- routes, backends, health


class CountingFlow(dict[str, Any]):
    """A flow that counts how often its route or backend is read."""

    reads = 0

    def __getitem__(self, name: str) -> Any:
        CountingFlow.reads += name in {"route", "backend"}
        return super().__getitem__(name)


@pytest.mark.parametrize("command", ["routes", "backends"])
def test_each_flow_is_read_once_however_many_routes_there_are(command: str) -> None:
    CountingFlow.reads = 0
    plan = {
        "routes": [PLAN["routes"][0] | {"label": f"r{n}", "backend": f"b{n}"} for n in range(50)],
        "backends": [PLAN["backends"][0] | {"name": f"b{n}"} for n in range(50)],
    }
    flows = [CountingFlow(flow(f"r{n}", f"b{n}", {"ok": n}, 0)) for n in range(50)]
    result = QUERIES[command]({"flows": flows, "endpoints": [], "backends": []}, plan)
    assert sorted(each["traffic"]["requests"] for each in result.data) == [*range(50)]
    assert CountingFlow.reads == 50


def test_failures_come_first(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "--admin", admin]) == 0
    assert first_cells(capsys.readouterr().out, "routes, failures first", 1) == [
        "bert", LONG_ROUTE, "idle",
    ]  # fmt: skip
    assert main(["backends", "--admin", admin]) == 0
    text = capsys.readouterr().out
    assert first_cells(text, "backends, failures first") == ["dead", "failing", "busy"]
    assert first_cells(text, "endpoints, failures first")[:2] == ["dead", "failing"]
    main(["health", "--admin", admin])
    text = capsys.readouterr().out
    assert first_cells(text, "endpoints, failures first")[:2] == ["dead", "failing"]


def test_an_unused_backend_comes_after_one_with_failures() -> None:
    def backend(name: str) -> dict[str, Any]:
        return {"name": name, "protocol": "v2-rest", "endpoints": [f"http://{name}"]}

    plan = {"backends": [backend("unused"), backend("errors")]}
    used = {"backend": "errors", "endpoint": "http://errors", "health": "up",
            "requests": {"ok": 9, "failed": 3}}  # fmt: skip
    state = {
        "endpoints": [
            {"backend": "unused", "endpoint": "http://unused", "health": "unknown"}, used,
        ],
        "backends": [], "flows": [flow("r", "errors", {"ok": 9, "timeout": 3}, 0)],
    }  # fmt: skip
    result = QUERIES["backends"](state, plan)
    assert [each["name"] for each in result.data] == ["errors", "unused"]
    assert [row[0] for row in result.tables[1].rows] == ["errors", "unused"]


def test_watch_repeats_the_query(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["health", "--watch", "--admin", admin, "--interval", "0.01", "--count", "2"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"readiness +(not )?ready", text)) == 2
    assert len(re.findall(r"readiness +not ready", text)) == 1


def test_a_failed_query_is_reported_and_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    responses = iter([True, False, True])
    working = Gateway()

    def respond(path: str) -> Any:
        if path == "/console/state" and not next(responses):
            return None
        return working.respond(path)

    with scripted_admin(respond) as address:
        argv = ["routes", "--admin", address, "--interval", "0.01", "--count", "3"]
        assert main(argv) == 0
    text = capsys.readouterr().out
    assert text.count("routes, failures first") == 2
    assert text.count("returned HTTP 404") == 1


@pytest.mark.parametrize("command", ["top", "routes", "health", "trace"])
def test_a_gateway_that_cannot_be_reached_at_first_is_an_error(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"health": [], "trace": ["x"]}.get(command, ["--count", "2"])
    assert main([command, "--admin", "127.0.0.1:9", *options]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("http://127.0.0.1:9 cannot be reached")) == ("", 1)


def test_health_waits_until_the_gateway_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    working = Gateway()
    ready = iter([None, False, True, True])  # no response, then not ready, then ready for good

    def respond(path: str) -> Any:
        response = working.respond(path)
        if path != "/console/state":
            return response
        state = next(ready)
        return None if state is None else response | {"ready": state}

    with scripted_admin(respond) as address:
        assert main(["health", "--wait", "30", "--admin", address]) == 0
    assert next(ready, None) is None
    assert main(["health", "--wait", "0.01", "--admin", "127.0.0.1:9"]) == 1
    capsys.readouterr()


# ---- trace


def test_trace_shows_a_failed_request(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "r-1", "--admin", admin]) == 0
    text = capsys.readouterr().out
    for part in ("request r-1", "2023-11-14T22:13:20.250+00:00", "2 s", "timeout", "too late"):
        assert part in text
    assert "\x1b" not in text
    assert "timeline" not in text


@pytest.mark.usefixtures("timelines")
def test_trace_shows_the_timeline_and_the_inputs_that_a_gateway_keeps(
    admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "r-1", "--admin", admin]) == 0
    text = capsys.readouterr().out
    assert main(["trace", "r-1", "--admin", admin, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert text.count("request r-1") == 1
    timeline = text[text.index("timeline") :].splitlines()
    assert timeline[2].split()[:4] == ["receive", "0", "ms", "500"]
    assert timeline[4].split()[:5] == ["backend", "500", "ms", "1.5", "s"]
    assert [line.count("█") for line in timeline[2:6]] == [8, 0, 22, 0]
    assert timeline[5].endswith("▏|")
    assert len({len(line) for line in timeline[2:6]}) == 1
    assert "[1, 2]" in text


def test_trace_of_an_unknown_request_refers_to_the_access_log(
    admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "no-\x1bsuch", "--admin", admin]) == 1
    err = capsys.readouterr().err
    assert "remembers no request with the ID 'no-�such'" in err
    assert "access log" in err


# ---- 80 columns


@pytest.mark.usefixtures("timelines")
@pytest.mark.parametrize(
    "argv", [["top", "--count", "1", "--interval", "0.01"], ["routes"], ["backends"], ["health"],
             ["trace", "r-1"]], ids=lambda argv: argv[0],
)  # fmt: skip
def test_the_tables_of_each_query_fit_80_columns(
    argv: list[str],
    admin: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main([*argv, "--admin", admin])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80


# ---- on a terminal


class TerminalCommand:
    """A command on a terminal of 80 columns and 24 lines."""

    def __init__(self, argv: list[str]) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        # Background jobs of a shell ignore Ctrl-C's signal.
        default = ["env", "--default-signal=INT"]
        argv = ["setsid", "--ctty", *default, sys.executable, "-m", "infergate", *argv]
        self.process = subprocess.Popen(
            argv, stdin=terminal, stdout=terminal, stderr=terminal,
            env=environ | {"TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(terminal)
        self.output = ""

    def read_until(self, text: str | None) -> None:
        """Read until the output contains ``text``; if ``text`` is None, until the command ends."""
        while text is None or text not in self.output:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the command has closed the terminal
                data = b""
            if not data:
                assert text is None, self.output
                return
            self.output += data.decode(errors="replace")

    def press_control_c(self) -> int:
        os.write(self._master, b"\x03")
        self.read_until(None)
        os.close(self._master)
        return self.process.wait(30)


@pytest.mark.parametrize("command", [["top"], ["backends", "--watch"]], ids=["top", "watch"])
def test_control_c_ends_a_live_command_and_restores_the_terminal(
    command: list[str], admin: str
) -> None:
    running = TerminalCommand([*command, "--admin", admin, "--interval", "0.05"])
    running.read_until("failures first")
    assert running.press_control_c() == 0
    assert "Traceback" not in running.output
    assert "\x1b[?1049h" in running.output
    assert running.output.rindex("\x1b[?1049l") > running.output.rindex("failures first")


# ---- check

VALID_CONFIGS = Path(__file__).parents[2] / "config" / "good"
INVALID_CONFIGS = Path(__file__).parents[2] / "config" / "bad"


def test_check_separates_warnings_from_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(VALID_CONFIGS)
    assert main(["check", "without-effect.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "routes, first match wins" in out
    assert [line.partition(":")[0] for line in err.splitlines()[:-1]] == ["warning"] * 4
    assert err.splitlines()[-1] == "without-effect.yaml: valid, 4 warnings"
    monkeypatch.chdir(INVALID_CONFIGS)
    assert main(["check", "many.yaml"]) == 2
    out, err = capsys.readouterr()
    errors = (INVALID_CONFIGS / "many.txt").read_text("utf-8").splitlines()
    assert out == ""
    assert err.splitlines() == [
        *(f"error: {line}" for line in errors), f"many.yaml: {len(errors)} errors",
    ]  # fmt: skip


def test_check_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(VALID_CONFIGS / "without-effect.yaml")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["valid"], document["errors"], len(document["warnings"])) == (True, [], 4)
    assert document["warnings"][0]["path"] == "backends.spare"
    assert document["warnings"][0]["line"] == 5
    assert main(["check", "--json", "no-such.yaml"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["valid"], document["warnings"]) == (False, [])
    assert document["errors"][0]["message"] == "cannot be read: No such file or directory"


@pytest.mark.parametrize("file", ["everything", "traffic", "branches", "endpoints"])
def test_the_tables_of_check_fit_80_columns(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["check", str(VALID_CONFIGS / f"{file}.yaml")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80

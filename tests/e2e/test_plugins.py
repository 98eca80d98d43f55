"""Tests that plug-ins in a running gateway serve clients, and that faulty plug-ins fail only their
own calls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from e2e.running import Infergate, started_infergate
from faults.peer import post

PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH}
CONFIG = """
log: {access: false}
backends:
  py: {protocol: python, model: "plugin_kit:Double", options: {factor: 3}}
  hangs: {protocol: python, model: "plugin_kit:Double", options: {outcome: hangs}, timeout: 200ms}
  demo: {protocol: builtin}
hooks:
  adds: {hook: "plugin_kit:Hook", options: {before: adds}, timeout: 60s}
  rejects: {hook: "plugin_kit:Hook", options: {before: rejects}, timeout: 60s}
  blocks: {hook: "plugin_kit:Hook", options: {before: blocks}, timeout: 200ms}
routes:
  - {model: double, backend: hangs, headers: {x-case: hangs}}
  - {model: double, backend: py, headers: {x-case: rejects}, hooks: [rejects]}
  - {model: double, backend: py, headers: {x-case: blocks}, hooks: [blocks]}
  - {model: double, backend: py, hooks: [adds]}
  - {model: "*", backend: demo}
"""
BODY = json.dumps(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
).encode()


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        with started_infergate(CONFIG) as running:
            yield running


def infer(gateway: Infergate, case: str = "") -> tuple[int, Any]:
    headers = {"x-case": case} if case else {}
    response = post(gateway.http, "/v2/models/double/infer", BODY, headers)
    return response.status, response.json if response.status == 200 else response.error


def test_a_model_and_a_hook_serve_rest_and_grpc(gateway: Infergate) -> None:
    status, response = infer(gateway)
    assert (status, response["outputs"][0]["data"]) == (200, [6, 9])
    with triton.InferenceServerClient(gateway.grpc) as client:
        x = triton.InferInput("X", [1, 2], "FP32")
        x.set_data_from_numpy(np.array([[1, 2]], np.float32))
        assert client.infer("double", [x]).as_numpy("Y").tolist() == [[6, 9]]
        assert client.get_model_metadata("double").inputs[0].shape == [-1, 2]


def test_failures_name_the_plugin_and_affect_no_other_request(gateway: Infergate) -> None:
    with ThreadPoolExecutor() as pool:
        failing = {
            case: [pool.submit(infer, gateway, case) for _ in range(4)]
            for case in ("hangs", "rejects", "blocks")
        }
        responses = [infer(gateway) for _ in range(5)]
        results = {case: {each.result() for each in calls} for case, calls in failing.items()}
    # On a busy machine, less than the timeout of 0.2 s is left when the plug-in is called.
    seconds = re.compile(r"0\.[012]\d* seconds")
    assert {
        case: {(status, seconds.sub("N seconds", error)) for status, error in errors}
        for case, errors in results.items()
    } == {
        "hangs": {(504, "backend 'hangs' did not respond within N seconds")},
        "rejects": {(403, "not today")},
        "blocks": {(504, "hook 'blocks' did not respond within N seconds")},
    }
    assert {status for status, _ in responses} == {200}
    metrics = gateway.metrics()
    hanging = 'infergate_plugin_hanging_calls{kind="hook",plugin="blocks"} 4.0'
    assert hanging in metrics, "the hanging calls are not counted"
    assert 'infergate_plugin_calls_total{kind="hook",plugin="rejects",result="rejected"} 4.0' in (
        metrics
    )
    assert {"hook 'blocks'", "backend 'hangs'"} <= {
        line["message"].split(" did not")[0] for line in gateway.logged("plugin_hangs")
    }


def test_check_reports_a_missing_plugin_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        "hooks:\n  guard: {hook: 'missing_package:Guard'}\n"
        + CONFIG.split("hooks:", maxsplit=1)[0]
        + "routes: [{model: a, backend: demo}]\n"
    )
    completed = subprocess.run(
        [sys.executable, "-m", "infergate", "--config", str(file), "--check"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 2
    assert completed.stderr == (
        f"{file}:2: hooks.guard.hook: importing 'missing_package:Guard' failed: "
        "ModuleNotFoundError: No module named 'missing_package'\n"
    )


def test_a_plugin_that_hangs_while_it_is_created_does_not_keep_the_process_from_ending(
    tmp_path: Path,
) -> None:
    file = tmp_path / "routes.yaml"
    text = """
log: {access: false}
listeners: {http: {address: "127.0.0.1:0"}, grpc: null, admin: null}
backends:
  py: {protocol: python, model: "plugin_kit:Double"}
routes:
  - {model: "*", backend: py}
"""
    file.write_text(text)
    command = [sys.executable, "-m", "infergate", "--config", str(file)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            _read_until(process.stdout, "routes, first match wins")
            file.write_text(text.replace("Double", "HangsInConstructor"))
            process.send_signal(signal.SIGHUP)
            _read_until(process.stdout, "the constructor hangs")
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def _read_until(lines: IO[str], expected: str) -> None:
    assert any(expected in line for line in lines)

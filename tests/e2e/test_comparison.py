"""Tests the comparison of an old Triton with a new one that gets mirrored requests: its verdicts,
metrics and stored mismatches."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from e2e.clients import Client, client
from e2e.running import LISTENERS, Infergate, started_infergate
from faults.peer import post
from faults.watch import until
from infergate.comparison.model_summary import ModelSummary
from infergate.comparison.summary import Summary
from infergate.comparison.verdict import Verdict
from infergate.recording.reader import RecordedExchange, read_recording
from peers.support.triton import Triton, started_triton

REPEATS = 4
NOISE_REPEATS = 40
SCORES = np.array([0.1, 0.7, 0.2], np.float32)
MODELS = ("perturbed", "accumulate", "repeat_int32")
CONFIG = """
workers: 2
backends:
  old: {{protocol: v2-rest, endpoints: ["http://{old}"]}}
  old-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{old_grpc}"]}}
  twin: {{protocol: v2-rest, endpoints: ["http://{old}"]}}
  new: {{protocol: v2-grpc, endpoints: ["grpc://{new}"]}}
  spare: {{protocol: builtin}}
routes:
  - model: classes
    backend: old
    rewrite: &perturbed {{model: perturbed, outputs: {{scores: SCORES, label: LABEL}}}}
    mirror: {{backend: new, max_requests: 1000, compare: {{outputs: {{scores: {{top_k: 1}}}}}}}}
  - model: with-twin
    backend: old
    rewrite: *perturbed
    mirror:
      {{backend: new, max_requests: 1000, compare: {{baseline: {{backend: twin, percent: 100}}}}}}
  - model: repeated
    backend: old
    rewrite: *perturbed
    mirror: {{backend: new, max_requests: 1000, compare: {{baseline: {{percent: 100}}}}}}
  - model: sums
    backend: old
    rewrite: {{model: accumulate}}
    mirror: {{backend: new, max_requests: 1000, compare: {{}}}}
  - model: repeat
    backend: old-grpc
    rewrite: {{model: repeat_int32}}
    mirror: {{backend: new, compare: {{}}}}
  - model: "*"
    backend: old
    rewrite: *perturbed
    mirror:
      backend: new
      max_requests: 1000
      compare: {{keep: {{path: "{mismatches}", count: 1, headers: ["*"]}}}}
"""
ACTIONS = LISTENERS.replace('{0}"}}', '{0}", actions: true}}')


class Servers:
    """The gateway between clients and the old and the new server."""

    def __init__(self, gateway: Infergate, triton_client: Client, mismatches: Path) -> None:
        self.gateway = gateway
        self.mismatches = mismatches
        self._client = triton_client

    def infer(self, model: str, change: str) -> None:
        inputs = [
            self._client.input("INPUT0", SCORES, "FP32"),
            self._client.input("CHANGE", np.array([change.encode()], np.object_), "BYTES"),
        ]
        headers = {"authorization": "Bearer secret", "x-team": "blue"}
        response = self._client.infer(model, inputs, headers=headers)
        assert response.as_numpy("scores") is not None

    def add(self, value: int, sequence: int, **more: bool) -> None:
        tensor = self._client.input("INPUT", np.array([value], np.int32), "INT32")
        self._client.infer("sums", [tensor], sequence_id=sequence, **more)

    def admin(self, method: str, path: str) -> Any:
        response = post(self.gateway.admin, path, method=method)
        assert response.status == 200, response
        return response.json if method == "GET" else response.body

    def compared(self, route: str, model: str, number: int) -> ModelSummary:
        """Return the summary of ``model`` once it has ``number`` comparisons."""

        def current() -> ModelSummary:
            summary = Summary.from_json(self.admin("GET", "/comparisons"))
            return summary.routes.get(route, {}).get(model, ModelSummary())

        until(lambda: current().compared >= number, f"{number} comparisons")
        assert current().compared == number
        return current()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    mismatches = tmp_path_factory.mktemp("comparison") / "mismatches"
    with (
        started_triton(MODELS) as old,
        perturbed_triton() as new,
        started_infergate(config(old, new, mismatches), ACTIONS) as gateway,
        client("http", gateway.http, gateway.grpc) as triton_client,
    ):
        yield Servers(gateway, triton_client, mismatches)


@contextmanager
def perturbed_triton() -> Iterator[Triton]:
    """Run the new server, whose responses can differ from the old server's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PERTURBED", "1")
        with started_triton(MODELS) as running:
            yield running


def config(old: Triton, new: Triton, mismatches: Path) -> str:
    return CONFIG.format(old=old.http, old_grpc=old.grpc, new=new.grpc, mismatches=mismatches)


def summary_of(servers: Servers, case: str) -> ModelSummary:
    for _ in range(REPEATS):
        servers.infer(case, case)
    return servers.compared("*", case, REPEATS)


def test_equal_responses_have_the_verdict_equal(servers: Servers) -> None:
    summary = summary_of(servers, "same")
    assert summary.verdict() is Verdict.EQUAL
    assert set(summary.outputs) == {"scores", "label"}
    assert summary.outputs["scores"].stats.max_absolute == 0
    assert summary.expected_latencies.count == summary.actual_latencies.count == REPEATS


@pytest.mark.parametrize(("case", "verdict"), [("1e-6", "equal"), ("1e-3", "different")])
def test_the_error_of_an_element_is_exact(servers: Servers, case: str, verdict: str) -> None:
    summary = summary_of(servers, case)
    scores = summary.outputs["scores"]
    changed = SCORES[0] + np.float32(float(case))
    error = float(np.float64(changed) - np.float64(SCORES[0]))
    assert scores.judge().verdict.value == verdict
    assert scores.stats.max_absolute == pytest.approx(error, rel=1e-9)
    assert (scores.stats.elements, scores.differences.compared) == (3 * REPEATS, REPEATS)
    assert summary.equal == (REPEATS if verdict == "equal" else 0)
    assert scores.worst[0].difference.index == (0,)
    if verdict == "different":
        required = error - 1e-4 * float(SCORES[0])
        assert scores.required_atol == pytest.approx(required, rel=1e-6)
        assert scores.causes == {"values": REPEATS}
    assert summary.outputs["label"].judge().verdict is Verdict.EQUAL


def test_only_swapped_classes_differ_in_the_top_class(servers: Servers) -> None:
    for change in ("swapped", "1e-3"):
        servers.infer("classes", change)
    scores = servers.compared("classes", "classes", 2).outputs["scores"]
    assert (scores.rows, scores.differing_rows, scores.differences.differing) == (2, 1, 1)


def test_a_single_nan_is_found(servers: Servers) -> None:
    scores = summary_of(servers, "nan").outputs["scores"]
    worst = scores.worst[0].difference
    assert (worst.index, worst.expected, worst.actual) == ((2,), "0.2", "nan")
    assert scores.differences.differing == REPEATS
    assert scores.stats.failing == REPEATS


@pytest.mark.parametrize(
    ("case", "output", "cause"),
    [("datatype", "scores", "datatype"), ("missing", "label", "missing")],
)
def test_wrong_outputs_are_explained(servers: Servers, case: str, output: str, cause: str) -> None:
    summary = summary_of(servers, case)
    assert summary.outputs[output].causes == {cause: REPEATS}
    assert summary.verdict() is Verdict.DIFFERENT


@pytest.mark.parametrize("route", ["with-twin", "repeated"])
def test_a_noisy_twin_is_within_noise_and_a_broken_server_is_not(
    servers: Servers, route: str
) -> None:
    servers.admin("DELETE", "/comparisons")
    for _ in range(NOISE_REPEATS):
        servers.infer(route, "noise")
    summary = servers.compared(route, route, NOISE_REPEATS)
    assert summary.outputs["scores"].noise.compared == NOISE_REPEATS
    assert summary.equal < NOISE_REPEATS
    assert summary.verdict() in {Verdict.WITHIN_NOISE, Verdict.EQUAL}
    for _ in range(NOISE_REPEATS):
        servers.infer(route, "broken noise")
    assert servers.compared(route, route, 2 * NOISE_REPEATS).verdict() is Verdict.DIFFERENT


def test_without_a_baseline_noise_is_a_difference(servers: Servers) -> None:
    assert summary_of(servers, "noise").verdict() is Verdict.DIFFERENT


def test_sequences_are_compared_in_order(servers: Servers) -> None:
    for number in range(1, 6):
        for step in range(4):
            servers.add(step + 1, number, sequence_start=step == 0, sequence_end=step == 3)
    summary = servers.compared("sums", "sums", 20)
    assert (summary.equal, summary.outcomes) == (20, {"ok/ok": 20})


def test_streams_are_compared_response_by_response(servers: Servers) -> None:
    stream = tritonclient.grpc.InferenceServerClient(servers.gateway.grpc)
    received: queue.Queue[Any] = queue.Queue()
    stream.start_stream(lambda result, error: received.put(error or result))
    inputs = []
    for name, array, datatype in (
        ("IN", np.arange(5, dtype=np.int32), "INT32"),
        ("DELAY", np.zeros(5, np.uint32), "UINT32"),
        ("WAIT", np.zeros(1, np.uint32), "UINT32"),
    ):
        tensor = tritonclient.grpc.InferInput(name, array.shape, datatype)
        inputs.append(tensor.set_data_from_numpy(array))
    stream.async_stream_infer("repeat", inputs)
    values = [int(received.get(timeout=20).as_numpy("OUT")[0]) for _ in range(5)]
    stream.stop_stream()
    stream.close()
    assert values == [0, 1, 2, 3, 4]
    summary = servers.compared("repeat", "repeat", 1)
    assert summary.equal == 1
    assert summary.outputs["OUT"].stats.elements == 5


def test_a_backend_that_no_route_uses_is_a_warning_in_the_log(servers: Servers) -> None:
    until(lambda: bool(servers.gateway.logged("config_warning")), "the warning is logged")
    (warning,) = servers.gateway.logged("config_warning")
    assert warning["message"].endswith("backends.spare: no route uses the backend 'spare'")


def test_the_metrics_add_up_over_the_workers(servers: Servers) -> None:
    metrics = servers.gateway.metrics()
    assert 'infergate_comparisons_total{result="different",route="classes"} 1.0' in metrics
    assert 'infergate_output_differences_total{cause="missing"' in metrics


def test_one_mismatch_is_stored_without_credentials(servers: Servers) -> None:
    summary_of(servers, "broken")
    until(lambda: any(servers.mismatches.glob("*.igrec")), "the mismatch is stored")
    (file,) = servers.mismatches.glob("*.igrec")
    (exchange,) = read_recording(file)
    assert isinstance(exchange, RecordedExchange)
    assert exchange.exchange.backend == "old"
    assert set(exchange.further_outcomes) == {"new"}
    assert exchange.exchange.headers["x-team"] == "blue"
    assert "authorization" not in exchange.exchange.headers

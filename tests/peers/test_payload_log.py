"""Tests of the events of the payload log, as the CloudEvents SDK reads them, and of its files."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import client
from e2e.running import Infergate, started_infergate
from peers.support.kserve import started_event_display

pytestmark = pytest.mark.peers

CONFIG = """
backends:
  demo: {protocol: builtin}
routes:
  - {model: simple, backend: demo, payload_log: {}}
  - {model: identity, backend: demo, payload_log: {mode: request}}
  - {model: repeat, backend: demo, payload_log: {mode: response}}
  - {model: "*", backend: demo}
payload_log:
  SINK
  headers: [x-tenant]
  namespace: models
"""
ENCODINGS = ("binary", "structured", "batch")
PAIRS = 6
SECONDS = 20
Event = dict[str, Any]


@pytest.fixture(scope="module", params=ENCODINGS)
def events(request: pytest.FixtureRequest) -> list[Event]:
    """Return the events of the requests that ``send`` sends."""
    with started_event_display() as display:
        sink = f'http: {{url: "http://{display}/", encoding: {request.param}}}'
        with started_infergate(CONFIG.replace("SINK", sink)) as running:
            send(running)
            received: list[Event] = []
            deadline = time.monotonic() + SECONDS
            while len(received) < 2 * PAIRS + 4 and time.monotonic() < deadline:
                time.sleep(0.05)
                with urllib.request.urlopen(f"http://{display}/events") as response:
                    received = json.load(response)
            metrics = running.metrics()
    assert f'infergate_payload_events_total{{result="sent"}} {len(received)}.0' in metrics
    return received


def send(running: Infergate) -> None:
    """Send three inferences of ``simple`` (the last is invalid) over each of two protocols, a long
    inference of ``identity``, and an inference of ``repeat`` with three responses."""
    for form in ("http", "grpc"):
        with client(form, running.http, running.grpc) as triton:
            for value in (1, 2):
                inputs = [
                    triton.input(f"INPUT{i}", np.full((1, 16), value + i, np.int32), "INT32")
                    for i in (0, 1)
                ]
                triton.infer("simple", inputs, headers={"x-tenant": form})
            with pytest.raises(InferenceServerException):
                triton.infer("simple", inputs[:1])
            if form == "grpc":
                long = np.arange(200_000, dtype=np.float32)
                triton.infer("identity", [triton.input("INPUT0", long, "FP32")])
    body = {
        "inputs": [
            {"name": "IN", "datatype": "INT32", "shape": [3], "data": [5, 6, 7]},
            {"name": "DELAY", "datatype": "UINT32", "shape": [3], "data": [0, 0, 0]},
        ],
        "parameters": {"stream": True},
    }
    url = f"http://{running.http}/v2/models/repeat/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode()) as response:
        assert response.read().count(b"data:") == 3


def events_of_model(events: list[Event], model: str) -> dict[str, dict[str, list[Event]]]:
    """Return the events of ``model`` by their id and kind."""
    by_id: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event["subject"] == model:
            by_id[event["id"]][event["type"].rpartition(".")[2]].append(event)
    return by_id


def test_each_inference_is_a_pair_with_its_values(events: list[Event]) -> None:
    pairs = events_of_model(events, "simple").values()
    assert len(pairs) == PAIRS
    outcomes = []
    for pair in pairs:
        (request,), (response,) = pair["request"], pair["response"]
        assert request["datacontenttype"] == response["datacontenttype"] == "application/json"
        inputs = {each["name"]: each["data"] for each in request["data"]["inputs"]}
        outcomes.append((response["protocol"], int(response["statuscode"]), response["outcome"]))
        if response["outcome"] == "ok":
            outputs = {each["name"]: each["data"] for each in response["data"]["outputs"]}
            total = np.add(inputs["INPUT0"], inputs["INPUT1"])
            assert outputs["OUTPUT0"] == total.tolist()
            assert request["metadata"] == json.dumps(
                {"X-Tenant": ["http" if request["protocol"] == "v2-rest" else "grpc"]},
                separators=(",", ":"),
            )
        else:
            assert response["data"].keys() == {"error"}
    ok = [(protocol, 200, "ok") for protocol in ("v2-grpc", "v2-rest")]
    rejected = [(protocol, 400, "bad_request") for protocol in ("v2-grpc", "v2-rest")]
    assert sorted(outcomes) == sorted([*ok, *ok, *rejected])


def test_events_have_kserves_attributes(events: list[Event]) -> None:
    for event in events:
        assert event["specversion"] == "1.0"
        assert event["type"].startswith("org.kubeflow.serving.inference.")
        assert event["namespace"] == "models"
        assert event["component"] == "predictor"
        assert event["inferenceservicename"] == event["subject"]
        assert event["endpoint"] == "demo"
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])


def test_a_long_tensor_arrives_exactly(events: list[Event]) -> None:
    ((pair),) = events_of_model(events, "identity").values()
    (request,) = pair["request"]
    assert pair["response"] == []
    assert request["data"]["inputs"][0]["data"] == list(range(200_000))


def test_a_stream_has_an_event_for_each_response(events: list[Event]) -> None:
    ((pair),) = events_of_model(events, "repeat").values()
    responses = sorted(pair["response"], key=lambda event: event["sequence"])
    assert pair["request"] == []
    values = [event["data"]["outputs"][0]["data"] for event in responses]
    assert values == [[5], [6], [7]]


def test_files_contain_the_same_events(tmp_path: Path) -> None:
    config = CONFIG.replace("SINK", f"file: {{path: {tmp_path}/events}}") + "workers: 2\n"
    with started_infergate(config) as running:
        send(running)
    lines = [line for file in tmp_path.glob("events/*") for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    assert len(events) == 2 * PAIRS + 4
    test_each_inference_is_a_pair_with_its_values(events)
    test_a_long_tensor_arrives_exactly(events)
    test_a_stream_has_an_event_for_each_response(events)

"""Replays every captured stream of the legacy API, and tests that the responses equal the captured
responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.running import Infergate, started_infergate
from faults.legacy import OLD
from faults.rpc import channel
from faults.watch import SECONDS
from legacy.captures import Call, calls
from legacy.messages import SERVICE

LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}", trtis: {{server_id: trtis-gold}}}}
  admin: {{address: "127.0.0.1:{0}"}}
"""
# Routes give the embedded models the names of the captured models.
CONFIG = """
backends: {embedded: {protocol: builtin}}
routes:
  - {model: sequence, backend: embedded, rewrite: {model: accumulate}}
  - {model: slow, backend: embedded, rewrite: {model: identity}}
  - {model: "*", backend: embedded}
models:
  slow:
    max_batch_size: 8
    inputs: [{name: INPUT0, datatype: INT32, shape: [-1, 1]}]
    outputs: [{name: OUTPUT0, datatype: INT32, shape: [-1, 1]}]
"""
STREAMS = [call for call in calls() if call.method == "StreamInfer"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG, LISTENERS) as running:
        yield running


def parse(response: bytes) -> Any:
    """Return a parsed response without its request number, which differs on each server."""
    message = OLD.InferResponse.FromString(response)
    message.request_status.ClearField("request_id")
    return message


def test_the_captures_contain_streams() -> None:
    assert [len(call.requests) for call in STREAMS] == [3, 4, 0]


@pytest.mark.parametrize("capture", STREAMS, ids=str)
def test_a_replayed_stream_gets_the_captured_responses(gateway: Infergate, capture: Call) -> None:
    with channel(gateway.grpc) as connection:
        stream = connection.stream_stream(f"/{SERVICE}/StreamInfer")
        responses = list(stream(iter(capture.requests), timeout=SECONDS))
    assert [*map(parse, responses)] == [*map(parse, capture.responses)]

"""Tests tritonclient and GraphPipe's client through infergate with real servers of graphpipe-py.

The servers speak HTTP/1.0 and serve one connection at a time.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, Array, Client
from e2e.probing import probe, protocols_of, run_requests, serve_config
from e2e.running import Infergate, started_infergate
from peers.support.graphpipe import graphpipe_report, started_graphpipe_server
from peers.support.installed import Installed

CONFIG = """
backends:
  identity: {{protocol: graphpipe, endpoints: ["http://{identity}"], connections: 1}}
  new: {{protocol: graphpipe, endpoints: ["http://{new}"]}}
  sum: {{protocol: graphpipe, endpoints: ["http://{sum}"]}}
  mute: {{protocol: graphpipe, endpoints: ["http://{mute}"]}}
routes:
  - {{model: identity, backend: identity, cast: {{BOOL: UINT8, BF16: FP32}}}}
  - {{model: new, backend: new}}
  - {{model: sum, backend: sum}}
  - model: renamed
    backend: sum
    rewrite: {{inputs: {{first: a, second: b}}, outputs: {{s: sum}}}}
  - {{model: mute, backend: mute}}
  - {{model: undeclared, backend: mute}}
models:
  mute:
    inputs:
      - {{name: words, datatype: BYTES, shape: [-1]}}
      - {{name: n, datatype: INT64, shape: [-1]}}
    outputs:
      - {{name: same, datatype: BYTES, shape: [-1]}}
      - {{name: too, datatype: INT64, shape: [-1]}}
"""
ONES = np.ones((2, 3), np.float32)
UNSUPPORTED = ("BOOL", "BF16")


@pytest.fixture(scope="module")
def servers(graphpipe: Installed, graphpipe_new: Installed) -> Iterator[dict[str, str]]:
    """Map each model to the address of its server."""
    with ExitStack() as stack:
        addresses = {
            model: stack.enter_context(started_graphpipe_server(model, graphpipe))
            for model in ("identity", "sum", "mute")
        }
        addresses["new"] = stack.enter_context(started_graphpipe_server("identity", graphpipe_new))
        yield addresses


@pytest.fixture(scope="module")
def gateway(servers: dict[str, str]) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(**servers)) as running:
        yield running


def identity(triton_client: Client, model: str, array: Array, datatype: str) -> Array:
    return triton_client.infer(model, [triton_client.input("x", array, datatype)]).as_numpy("y")  # type: ignore[no-any-return]


# The server of the model ``new`` has a newer version of flatbuffers, with which graphpipe-py writes
# an unreadable errors vector beside outputs.
@pytest.mark.parametrize("model", ["identity", "new"])
@pytest.mark.parametrize("datatype", [kind for kind in ARRAYS if kind not in UNSUPPORTED])
def test_each_datatype(triton_client: Client, model: str, datatype: str) -> None:
    array = ARRAYS[datatype]
    assert identity(triton_client, model, array, datatype).tolist() == array.tolist()


@pytest.mark.parametrize("datatype", UNSUPPORTED)
def test_datatypes_that_graphpipe_does_not_support_need_a_cast(
    triton_client: Client, datatype: str
) -> None:
    array = ARRAYS[datatype]
    result = identity(triton_client, "identity", array, datatype)
    np.testing.assert_array_equal(result, array.astype(result.dtype))
    with pytest.raises(
        InferenceServerException,
        match=f"'x' is {datatype}, .*configure 'cast' on the route",
    ):
        identity(triton_client, "new", array, datatype)


def test_the_payload_of_nan_is_unchanged(triton_client: Client) -> None:
    array = np.array([0x7FC00001, 0xFFA00001, 0x80000000], np.uint32).view(np.float32)
    assert identity(triton_client, "identity", array, "FP32").tobytes() == array.tobytes()


def test_scalars_and_tensors_without_elements(triton_client: Client) -> None:
    assert identity(triton_client, "identity", np.array(2.5, np.float32), "FP32").tolist() == 2.5
    assert identity(triton_client, "identity", np.zeros((0, 3), np.float32), "FP32").shape == (0, 3)


# tritonclient itself causes this warning.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_large_tensor(triton_client: Client) -> None:
    array = np.arange(5_000_000, dtype=np.float32)
    assert (identity(triton_client, "identity", array, "FP32") == array).all()


def test_strings_of_any_bytes(triton_client: Client) -> None:
    array = np.array([b"a\0b", b"\xff\xfe", b""], np.object_)
    assert identity(triton_client, "identity", array, "BYTES").tolist() == array.tolist()


def test_inputs_and_outputs_are_identified_by_name(triton_client: Client) -> None:
    """graphpipe-py's metadata lists tensors in reverse order."""
    inputs = [triton_client.input("b", ONES, "FP32"), triton_client.input("a", 3 * ONES, "FP32")]
    all_outputs = triton_client.infer("sum", inputs)
    one_output = triton_client.infer("sum", inputs, outputs=[triton_client.output("difference")])
    for result in (all_outputs, one_output):
        np.testing.assert_array_equal(result.as_numpy("difference"), 2 * ONES)
    np.testing.assert_array_equal(all_outputs.as_numpy("sum"), 4 * ONES)
    assert one_output.as_numpy("sum") is None


def test_renamed_tensors(triton_client: Client) -> None:
    inputs = [
        triton_client.input("second", ONES, "FP32"),
        triton_client.input("first", 3 * ONES, "FP32"),
    ]
    result = triton_client.infer("renamed", inputs, outputs=[triton_client.output("s")])
    np.testing.assert_array_equal(result.as_numpy("s"), 4 * ONES)


def test_metadata(triton_client: Client) -> None:
    metadata = triton_client.get_model_metadata("sum", **triton_client.as_json)
    assert {each["name"] for each in metadata["inputs"]} == {"a", "b"}
    assert {each["name"] for each in metadata["outputs"]} == {"sum", "difference"}
    assert {each["datatype"] for each in metadata["inputs"] + metadata["outputs"]} == {"FP32"}
    assert triton_client.is_model_ready("sum")


def test_a_declared_model(triton_client: Client) -> None:
    words, counts = np.array([b"one", b"\0two"], np.object_), np.array([1, 2])
    inputs = [
        triton_client.input("words", words, "BYTES"),
        triton_client.input("n", counts, "INT64"),
    ]
    result = triton_client.infer("mute", inputs)
    assert result.as_numpy("same").tolist() == words.tolist()
    assert result.as_numpy("too").tolist() == counts.tolist()
    metadata = triton_client.get_model_metadata("mute", **triton_client.as_json)
    assert [each["name"] for each in metadata["inputs"]] == ["words", "n"]
    assert triton_client.is_model_ready("mute")


def test_a_server_without_metadata_needs_a_declared_model(triton_client: Client) -> None:
    with pytest.raises(InferenceServerException, match="declare it under 'models'"):
        identity(triton_client, "undeclared", ONES, "FP32")


def test_a_closed_connection_is_reported_as_a_backend_error(triton_client: Client) -> None:
    """The server closes the connection instead of reporting the wrong shape."""
    inputs = [
        triton_client.input("a", ONES, "FP32"),
        triton_client.input("b", np.ones(7, np.float32), "FP32"),
    ]
    with pytest.raises(InferenceServerException, match="backend 'sum'") as caught:
        triton_client.infer("sum", inputs)
    assert caught.value.status() in {"502", "StatusCode.UNAVAILABLE", "StatusCode.INTERNAL"}
    assert identity(triton_client, "identity", ONES, "FP32").tolist() == ONES.tolist()


def test_concurrent_requests_to_a_serial_server(gateway: Infergate) -> None:
    """The server handles one connection at a time, and its backlog is short."""

    def send_request(number: int) -> int:
        body = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [number]}]}
        url = f"http://{gateway.http}/v2/models/identity/infer"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=30) as response:
            (output,) = json.load(response)["outputs"]
        return int(output["data"][0])

    with ThreadPoolExecutor(64) as threads:
        assert list(threads.map(send_request, range(400))) == list(range(400))


def test_graphpipes_own_client_through_the_gateway(gateway: Infergate) -> None:
    models = (*(f"id_{kind}" for kind in ARRAYS), "id_photo", "id_words")
    address = f"http://{gateway.http}/graphpipe/"
    report = graphpipe_report(dict.fromkeys(models, f"{address}new"))
    for scenario in (
        "float32",
        "special_floats",
        "photo",
        "strings",
        "scalar",
        "no_elements",
        "big",
    ):
        assert "ok" in report[scenario], (scenario, report[scenario])


def test_a_probe_finds_the_models_of_graphpipe_servers_and_its_requests_run(
    servers: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "routes.yaml"
    addresses = [servers[name] for name in ("new", "sum", "mute")]
    document = probe(*addresses, "--timeout", "1", "--write", str(file))
    assert list(protocols_of(document).values()) == [{"graphpipe"}, {"graphpipe"}, set()]
    assert "GraphPipe" in document["addresses"][2]["advice"]
    with serve_config(file) as written:
        models = [listener["model"] for listener in written["listeners"]["graphpipe"]]
        assert [route["model"] for route in written["routes"]] == models
        for server in document["servers"]:
            [model] = server["models"]
            for response in run_requests(model):
                assert len(response["outputs"]) == len(model["outputs"])

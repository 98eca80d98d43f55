"""The requests that a probe prints. tests/e2e/test_probe.py runs them."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probe_kit import model, server, tensor

from infergate.config.values import Url
from infergate.migration.probe.example_requests import (
    MAX_ELEMENTS,
    ExampleRequest,
    GatewayAddress,
    example_request,
)
from infergate.migration.probe.findings import ProbedModel
from infergate.migration.probe.options import ProbeOptions

GATEWAY = GatewayAddress(Url("http", "127.0.0.1", 8000))
REST = {"protocol": "v2-rest", "url": "http://a:8000"}


def example(probed: ProbedModel, options: ProbeOptions | None = None, **address: str) -> Any:
    target = server(probed, **(address or REST))
    return example_request(target, probed, options or ProbeOptions(), GATEWAY)


def bodies(request: ExampleRequest) -> list[Any]:
    """Return the bodies that curl and Python would send, without sending them."""
    words = shlex.split(request.curl)
    if "|" in words:
        program = words[2]
        curl_body = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
    else:
        curl_body = words[words.index("-d") + 1]
    [line] = [line for line in request.python.splitlines() if line.startswith("body = ")]
    scope: dict[str, Any] = {}
    exec(line, scope)
    return [json.loads(curl_body), scope["body"]]


def test_a_v2_server_gets_its_tensors_with_variable_dimensions_of_one() -> None:
    inputs = (
        tensor("image", "FP32", -1, 2, -1),
        tensor("ids", "INT64", -1, 3),
        tensor("on", "BOOL", -1),
        tensor("text", "BYTES", -1, 1),
        tensor("scalar", "UINT8"),
    )
    request = example(model("m", inputs=inputs))
    assert not request.needs_gateway
    assert request.curl.endswith(" http://a:8000/v2/models/m/infer")
    for body in bodies(request):
        assert [
            (item["name"], item["datatype"], item["shape"], item["data"]) for item in body["inputs"]
        ] == [
            ("image", "FP32", [1, 2, 1], [0.5, 0.5]),
            ("ids", "INT64", [1, 3], [0, 0, 0]),
            ("on", "BOOL", [1], [False]),
            ("text", "BYTES", [1, 1], ["0"]),
            ("scalar", "UINT8", [], [0]),
        ]


def test_long_inputs_are_written_briefly() -> None:
    request = example(model("m", inputs=(tensor("image", "FP32", -1, 3, 224, 224),)))
    assert len(request.curl) < 400
    assert len(request.python) < 600
    for body in bodies(request):
        assert body["inputs"][0]["data"] == [0.5] * math.prod((3, 224, 224))


def test_nested_rows_are_written_briefly_for_tensorflow_serving() -> None:
    request = example(
        model("m", inputs=(tensor("image", "FP32", -1, 8, 8, 3),)),
        protocol="tfs-rest",
        url="http://a:8501",
    )
    assert request.curl.endswith(" http://a:8501/v1/models/m:predict")
    expected = np.full((1, 8, 8, 3), 0.5).tolist()
    for body in bodies(request):
        assert expected in (body.get("inputs"), body.get("instances"), body["inputs"].get("image"))


@pytest.mark.parametrize(
    ("probed", "address"),
    [
        (model("m"), {"protocol": "v2-grpc", "url": "grpc://a:8001"}),
        (model("m"), {"protocol": "graphpipe", "url": "http://a:9000"}),
        (model("m", inputs=(tensor("x", "FP16", 3),)), REST),
        (model("m", outputs=(tensor("y", "BF16", 3),)), REST),
    ],
)
def test_requests_that_a_server_does_not_accept_as_json_go_through_infergate(
    probed: ProbedModel, address: dict[str, str]
) -> None:
    request = example(probed, **address)
    assert request.needs_gateway
    assert request.curl.endswith(" http://127.0.0.1:8000/v2/models/m/infer")


def test_a_model_with_many_responses_is_streamed_through_infergate() -> None:
    request = example(model("m", decoupled=True))
    assert request.needs_gateway
    assert request.curl.endswith("/v2/models/m/infer_stream")


def test_a_request_through_infergate_has_the_gateways_name_of_the_model() -> None:
    probed = model("model")
    target = server(probed, protocol="graphpipe", url="http://a:9000")
    names = {(target.best.url, "model"): "model-2"}
    request = example_request(target, probed, ProbeOptions(), replace(GATEWAY, names=names))
    assert "/v2/models/model-2/infer" in request.curl
    assert "/v2/models/model-2/infer" in request.python


def test_a_sequence_begins_and_ends_with_the_request() -> None:
    request = example(model("m", sequence_batching={}))
    for body in bodies(request):
        assert body["parameters"] == {
            "sequence_id": 1,
            "sequence_start": True,
            "sequence_end": True,
        }


@pytest.mark.parametrize(
    ("probed", "problem"),
    [
        (ProbedModel("m", problem="not ready"), "not ready"),
        (
            model("m", inputs=(tensor("x", "COMPLEX64", 3),)),
            "the datatype of input 'x' is COMPLEX64; expected a V2 datatype",
        ),
        (
            model("m", inputs=(tensor("x", ""),)),
            "the datatype of input 'x' is not reported; expected a V2 datatype",
        ),
        (
            model("m", inputs=(tensor("x", "FP32", MAX_ELEMENTS), tensor("z", "FP32", 1))),
            f"the inputs have {MAX_ELEMENTS + 1} elements, too many for an example",
        ),
        (model("m", inputs=(tensor("x", "FP32", 2**62, 2**62),)), "too many for an example"),
        (
            model("m", inputs=tuple(tensor(f"x{n}") for n in range(1025))),
            "the model has 1025 inputs, too many for a request",
        ),
        (model(".."), "a name or version must not be '..' in a REST path"),
    ],
)
def test_a_model_without_an_example_has_a_reason(probed: ProbedModel, problem: str) -> None:
    request = example(probed)
    assert (request.curl, request.python) == ("", "")
    assert problem in request.problem


NAMES = ["it's", 'a "quoted" $name', "`rm -rf /`", "$(id)", "a\\b", "ä\u2028b", "{}"]


@pytest.mark.parametrize("name", NAMES)
def test_names_reach_the_request_unchanged(name: str) -> None:
    request = example(model(name, inputs=(tensor(name, "FP32", 1),)))
    for body in bodies(request):
        assert body["inputs"][0]["name"] == name
    assert len(shlex.split(request.curl)) == 7


def test_credentials_are_read_from_the_environment() -> None:
    options = ProbeOptions(headers={"authorization": "Bearer secret", "x-api-key": "secret"})
    request = example(model("m"), options)
    assert "secret" not in request.curl + request.python
    assert '-H "authorization: $AUTHORIZATION" -H "x-api-key: $X_API_KEY"' in request.curl
    assert "'authorization': os.environ['AUTHORIZATION']" in request.python
    compile(request.python, "example", "exec")


@pytest.mark.parametrize(
    ("options", "curl", "python"),
    [
        (ProbeOptions(ca=Path("/ca.pem")), "--cacert /ca.pem", "cafile='/ca.pem'"),
        (ProbeOptions(verify=False), "--insecure", "_create_unverified_context()"),
    ],
)
def test_tls_options_are_those_of_the_probe(options: ProbeOptions, curl: str, python: str) -> None:
    request = example(model("m"), options, protocol="v2-rest", url="https://a:443")
    assert curl in request.curl
    assert python in request.python
    assert request.python.startswith("import json, ssl, urllib.request\n")


def test_a_unix_socket_has_a_curl_command_only() -> None:
    probed = model("m")
    target = server(probed, **REST)
    best = replace(target.best, url=Url("http+unix", "", None, "/run/s.sock"))
    request = example_request(replace(target, protocols=[best]), probed, ProbeOptions(), GATEWAY)
    assert "--unix-socket /run/s.sock" in request.curl
    assert request.curl.endswith(" http://localhost/v2/models/m/infer")
    assert request.python.startswith("#")

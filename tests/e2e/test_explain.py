"""Tests the programs and curl commands that ``infergate explain`` prints, and when it requests
metadata. tests/peers/test_explained_code.py runs the code for other clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.running import Infergate, started_infergate
from infergate.backends.builtin import embedded_models
from infergate.cli import main
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.core.tensor import Tensor, tensor_from_array, unpack_bytes
from infergate.core.wire import HttpRequest, RpcRequest, join_parts
from infergate.migration.recorded import client_message

CONFIG = """
backends: {b: {protocol: builtin}}
routes: [{model: '*', backend: b}]
"""
ARRAY = np.array([[1.5, -0.0, np.inf]], np.float32)
TENSORS = {
    "literals": tensor_from_array("INPUT0", Datatype.FP32, np.array([[1.5, -0.0]], np.float32)),
    "not finite": tensor_from_array("INPUT0", Datatype.FP32, ARRAY),
    "base64": tensor_from_array("INPUT0", Datatype.INT64, np.arange(100) * 2**50),
    "a file": tensor_from_array("INPUT0", Datatype.FP64, np.arange(2000) / 3),
    "bytes": Tensor("INPUT0", Datatype.BYTES, (2, 1), b"\2\0\0\0\xff'\0\0\0\0"),
    "a file of bytes": Tensor("INPUT0", Datatype.BYTES, (1,), b"\x88\x13\0\0" + b"\xfe" * 5000),
    "bfloat16": Tensor("INPUT0", Datatype.BF16, (2,), b"\x80\x3f\xc0\x7f"),
    "empty": tensor_from_array("INPUT0", Datatype.FP32, np.zeros((0, 3), np.float32)),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as running:
        yield running


def printed_code(
    gateway: Infergate, wire: HttpRequest | RpcRequest, folder: Path, client: str,
    capsys: pytest.CaptureFixture[str],
) -> str:  # fmt: skip
    """Return the code for ``client`` that ``infergate explain`` prints for ``wire``."""
    config, body = folder / "routes.yaml", folder / "body"
    listeners = f"http: {{address: '{gateway.http}'}}, grpc: {{address: '{gateway.grpc}'}}"
    config.write_text(f"{CONFIG}listeners: {{{listeners}}}\n")
    if isinstance(wire, HttpRequest):
        body.write_bytes(bytes(join_parts(wire.body)))
        headers = [f"--header={name}: {value}" for name, value in wire.headers.items()]
        argv = [wire.method, f"{wire.path}?{wire.query}", *headers]
    else:
        body.write_bytes(bytes(join_parts(wire.message)))
        argv = [wire.method]
    argv += ["--config", str(config), "--body", str(body), "--json"]
    argv += ["--code", client, "--save", str(folder / "saved")]
    assert main(["explain", *argv]) == 0
    code: str = json.loads(capsys.readouterr().out)["code"][client]
    return code


def output_of(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a Python program in this process, where its imports are cached, and return its output."""
    capsys.readouterr()
    exec(compile(program, "printed", "exec"), {})
    return capsys.readouterr().out


@pytest.mark.parametrize("client", ["tritonclient", "tritonclient-grpc"])
@pytest.mark.parametrize("name", TENSORS)
def test_the_printed_program_sends_the_same_bytes(
    client: str, name: str, gateway: Infergate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensor = TENSORS[name]
    request = InferRequest("identity", id="7", inputs=(tensor,))
    code = printed_code(gateway, client_message("v2-grpc", request), tmp_path, client, capsys)
    if tensor.datatype is Datatype.BYTES:
        expected: Any = np.array(list(unpack_bytes(tensor.data)), np.object_)
        expected = expected.reshape(tensor.shape).tolist()
    else:
        code = code.replace(".tolist())", ".tobytes().hex())")
        expected = bytes(tensor.data).hex()
    assert output_of(code, capsys) == f"OUTPUT0 {expected}\n"


def test_the_printed_program_has_the_outputs_the_version_and_the_parameters(
    gateway: Infergate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    array = np.full((1, 16), 2, np.int32)
    inputs = tuple(tensor_from_array(f"INPUT{n}", Datatype.INT32, array) for n in range(2))
    outputs = (RequestedOutput("OUTPUT1", {"classification": 1}),)
    request = InferRequest("simple", "1", "7", {"p": "q"}, inputs, outputs)
    wire = client_message("v2-grpc", request)
    for client in ("tritonclient", "tritonclient-grpc"):
        code = printed_code(gateway, wire, tmp_path, client, capsys)
        assert "parameters={'p': 'q'}" in code
        assert output_of(code, capsys) == "OUTPUT1 [[b'0:0']]\n"


def test_the_printed_programs_of_a_sequence_continue_it(
    gateway: Infergate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outputs = []
    for client in ("tritonclient", "tritonclient-grpc"):
        tensor = tensor_from_array("INPUT", Datatype.INT32, np.array([5], np.int32))
        parameters = {"sequence_id": 9, "sequence_start": client == "tritonclient"}
        request = InferRequest("accumulate", parameters=parameters, inputs=(tensor,))
        code = printed_code(gateway, client_message("v2-grpc", request), tmp_path, client, capsys)
        outputs.append(output_of(code, capsys))
    assert outputs == ["OUTPUT [5]\n", "OUTPUT [10]\n"]


def run_curl(command: str, folder: Path) -> bytes:
    """Run a curl command, check that the status is 200, and return the body."""
    command = command.replace("curl ", "curl -sS -i --noproxy '*' ", 1)
    completed = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, timeout=60, check=True
    )
    head, _, body = completed.stdout.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), completed.stdout
    return body


@pytest.mark.parametrize("protocol", ["v2-rest", "v2-grpc"])
@pytest.mark.parametrize("name", sorted(TENSORS.keys() - {"empty"}))
def test_the_printed_curl_command_sends_the_same_values(
    protocol: str, name: str, gateway: Infergate, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    tensor = TENSORS[name]
    wire = client_message(protocol, InferRequest("identity", inputs=(tensor,)))
    code = printed_code(gateway, wire, tmp_path, "curl", capsys)
    body = run_curl(code, tmp_path)
    if bytes(tensor.data) not in body:
        (output,) = json.loads(body)["outputs"]
        np.testing.assert_equal(output["data"], tensor.numpy().reshape(-1).tolist())


@pytest.mark.parametrize("protocol", ["trtis-http", "tfs-rest", "graphpipe"])
def test_the_printed_curl_command_of_a_legacy_request_gets_the_same_response(
    protocol: str, gateway: Infergate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.full((1, 16), 2, np.int32)
    inputs = tuple(tensor_from_array(f"INPUT{n}", Datatype.INT32, array) for n in range(2))
    model = next(each.metadata for each in embedded_models() if each.metadata.name == "simple")
    wire = client_message(protocol, InferRequest("simple", inputs=inputs), model)
    body = run_curl(printed_code(gateway, wire, tmp_path, "curl", capsys), tmp_path)
    if protocol == "tfs-rest":
        assert json.loads(body)["outputs"]["OUTPUT0"] == [[4] * 16]
    else:
        assert (array + array).tobytes() in body


@pytest.mark.parametrize("protocol", ["graphpipe", "trtis-http", "tfs-rest", "v2-rest"])
def test_metadata_is_queried_only_on_request_and_no_inference_is_sent(
    protocol: str, gateway: Infergate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.full((1, 16), 2, np.int32)
    inputs = tuple(tensor_from_array(f"INPUT{n}", Datatype.INT32, array) for n in range(2))
    wire = client_message("v2-rest", InferRequest("simple", inputs=inputs))
    assert isinstance(wire, HttpRequest)
    (tmp_path / "body").write_bytes(bytes(join_parts(wire.body)))
    path = "/graphpipe/simple" if protocol == "graphpipe" else ""
    (tmp_path / "routes.yaml").write_text(
        f"backends: {{b: {{protocol: {protocol}, endpoints: ['http://{gateway.http}{path}']}}}}\n"
        "routes: [{model: simple, backend: b}]\n"
    )
    argv = ["explain", "POST", wire.path, "--body", str(tmp_path / "body")]
    argv += ["--config", str(tmp_path / "routes.yaml")]
    before = requests_served(gateway)
    assert (main(argv) == 0) is (protocol == "v2-rest"), capsys.readouterr().out
    assert requests_served(gateway) == before
    assert main([*argv, "--metadata"]) == 0, capsys.readouterr().out
    after = requests_served(gateway)
    assert after.get("infer") == before.get("infer")
    assert after != before
    assert f"http://{gateway.http}" in capsys.readouterr().out


def requests_served(server: Infergate) -> dict[str, float]:
    """Return the number of requests by operation."""
    counts: dict[str, float] = {}
    for line in server.metrics().splitlines():
        if line.startswith("infergate_requests_total{"):
            operation = line.partition('operation="')[2].partition('"')[0]
            counts[operation] = counts.get(operation, 0) + float(line.rpartition(" ")[2])
    return counts

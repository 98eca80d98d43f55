"""Client programs that ``explain`` prints. Tests of tests/e2e and tests/peers run some of them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, ModelMetadata, RequestedOutput, TensorMetadata
from infergate.core.tensor import Tensor, float32_from_bf16, pack_bytes, tensor_from_array
from infergate.core.wire import HttpRequest
from infergate.migration.explain.array_code import READ_STRINGS, ArraySource
from infergate.migration.explain.client_code import CLIENTS, code_of
from infergate.migration.explain.client_inference import ClientAddresses, ClientInference
from infergate.migration.explain.client_request import parse_command
from infergate.testing.strategies import tensors as any_tensor

X = tensor_from_array("x", Datatype.FP32, np.array([[1.5, -0.0]], np.float32))
ADDRESSES = ClientAddresses("h:8000", "h:8001")
METADATA = ModelMetadata("m", outputs=(TensorMetadata("y", "FP32", (-1, 2)),), max_batch_size=4)


def inference(*inputs: Tensor, **changes: Any) -> ClientInference:
    request = InferRequest("m", inputs=inputs or (X,), **changes.pop("request", {}))
    return ClientInference(request, ADDRESSES, **changes)


def evaluate_source(tensor: Tensor, folder: Path | None = None) -> Any:
    """Return the array that the source of ``tensor`` creates."""
    arrays = ArraySource(folder)
    source = arrays.source(tensor)
    names: dict[str, Any] = {"np": np, "base64": base64}
    exec(READ_STRINGS, names)
    return eval(source, names)


@given(any_tensor())
def test_the_source_of_a_tensor_creates_the_same_bytes(tensor: Tensor) -> None:
    array = evaluate_source(tensor)
    assert array.shape == tensor.shape
    if tensor.datatype is Datatype.BYTES:
        assert pack_bytes(array.reshape(-1).tolist()) == bytes(tensor.data)
    elif tensor.datatype is Datatype.BF16:
        bits = np.frombuffer(bytes(tensor.data), "<u2")
        assert array.tobytes() == float32_from_bf16(bits).tobytes()
    else:
        assert array.tobytes() == bytes(tensor.data)


@pytest.mark.parametrize("datatype", ["f4", "S"])
def test_a_long_tensor_is_read_from_a_file(datatype: str, tmp_path: Path) -> None:
    if datatype == "S":
        tensor = Tensor("a/b", Datatype.BYTES, (2, 1), pack_bytes([b"x" * 5000, b"\xff"]))
        assert evaluate_source(tensor, tmp_path).tolist() == [[b"x" * 5000], [b"\xff"]]
    else:
        tensor = tensor_from_array(
            "a/b", Datatype.FP32, np.arange(2000, dtype=np.float32).reshape(2, 1000)
        )
        assert evaluate_source(tensor, tmp_path).tobytes() == bytes(tensor.data)
    assert [file.name for file in tmp_path.iterdir()] == ["0-a_b.bin"]


def test_a_program_without_a_folder_names_the_files_to_write() -> None:
    long = tensor_from_array("x", Datatype.FP32, np.zeros(2000, np.float32))
    code = code_of(["tritonclient"], inference(long))["tritonclient"]
    assert code.startswith("# write 0-x.bin with --save FOLDER\n")


@pytest.mark.parametrize("client", sorted(CLIENTS.keys() - {"curl"}))
def test_a_program_with_special_characters_in_names_compiles(client: str) -> None:
    name = 'it\'s "quoted"\n\\'
    tensor = Tensor(name, X.datatype, X.shape, X.data)
    request = {
        "version": "3",
        "id": name,
        "parameters": {} if client in {"graphpipe", "tensorflow-serving-api"} else {name: name},
        "outputs": (RequestedOutput(name),),
    }
    call = inference(tensor, request=request, headers={"x-a": name, "x-api-key": name})
    code = code_of([client], call)[client]
    compile(code, client, "exec")
    assert "not possible" not in code


def test_credentials_are_read_from_the_environment() -> None:
    headers = {
        "authorization": "Bearer s3cret",
        "x-team": "a",
        "content-type": "x",
        "te": "trailers",
    }
    for client, code in code_of(CLIENTS, inference(headers=headers, metadata=METADATA)).items():
        assert "s3cret" not in code
        assert ("AUTHORIZATION" in code and "x-team" in code) or client == "graphpipe"
        assert "trailers" not in code


def test_a_secret_header_cannot_run_a_command() -> None:
    headers = {"x-key$(touch /tmp/x)`id`": "v"}
    code = code_of(["curl"], inference(headers=headers))["curl"]
    assert "-H 'x-key$(touch /tmp/x)`id`: '\"$X_KEY__TOUCH__TMP_X__ID_\"" in code


@pytest.mark.parametrize(
    "body", [b"", b'{"a": "it\'s"}', b"@file", b"\xff\0", "é\n".encode(), b"\x1b[0m"]
)
def test_the_curl_command_repeats_the_clients_own_message(body: bytes) -> None:
    wire = HttpRequest("POST", "/v2/models/m%20n/infer", "a=%20", {"x-a": "it's"}, (body,))
    code = code_of(["curl"], inference(wire=wire, headers=wire.headers))["curl"]
    pipe, _, command = code.rpartition("|\n")
    if pipe:
        assert base64.b64decode(pipe.split()[1]) == body
        command = command.replace("@-", "''")
    parsed = parse_command(command, 1000, Path())
    assert isinstance(parsed.wire, HttpRequest)
    assert parsed.authority == "h:8000"
    assert (parsed.wire.path, parsed.wire.query) == (wire.path, wire.query)
    assert parsed.wire.headers["x-a"] == "it's"
    if not pipe:
        assert b"".join(map(bytes, parsed.wire.body)) == body


def test_a_request_over_grpc_becomes_v2_rest_for_curl() -> None:
    code = code_of(["curl"], inference())["curl"]
    wire = parse_command(code, 1000, Path()).wire
    assert isinstance(wire, HttpRequest)
    assert wire.path == "/v2/models/m/infer"
    assert b"-0.0" in bytes(wire.body[0])


def test_a_long_body_is_read_from_a_file(tmp_path: Path) -> None:
    wire = HttpRequest("POST", "/", body=(b"x" * 70_000,))
    assert "write body.bin with --save" in code_of(["curl"], inference(wire=wire))["curl"]
    call = inference(wire=wire, folder=tmp_path / "new")
    code = code_of(["curl"], call)["curl"]
    assert (tmp_path / "new" / "body.bin").read_bytes() == b"x" * 70_000
    assert f"@{tmp_path}/new/body.bin" in code


@pytest.mark.parametrize(
    ("clients", "changes", "reason"),
    [
        (["graphpipe", "tensorflow-serving-api"],
         {"request": {"parameters": {"sequence_id": 7}}}, "no sequences"),
        (["tensorrtserver"], {}, "names of the outputs"),
    ],
)  # fmt: skip
def test_a_client_that_cannot_send_the_inference_gets_the_reason(
    clients: list[str], changes: dict[str, Any], reason: str
) -> None:
    for code in code_of(clients, inference(**changes)).values():
        assert code.startswith("# not possible: ")
        assert reason in code


def test_a_datatype_that_a_client_does_not_have_is_named() -> None:
    tensor = Tensor("x", Datatype.BF16, (1,), b"\x80\x3f")
    code = code_of(CLIENTS, inference(tensor, metadata=METADATA))
    clients = {client for client, text in code.items() if "has no BF16" in text}
    assert clients == {"kserve", "tensorflow-serving-api", "tensorrtserver", "graphpipe"}


def test_without_a_listener_there_is_no_code() -> None:
    call = ClientInference(InferRequest("m", inputs=(X,)), ClientAddresses(), metadata=METADATA)
    for code in code_of(CLIENTS, call).values():
        assert "the configuration has no" in code


def test_tls_is_used_where_the_listener_has_it() -> None:
    addresses = ClientAddresses("h:1", "h:2", http_tls=True, grpc_tls=True)
    call = ClientInference(InferRequest("m", inputs=(X,)), addresses, metadata=METADATA)
    code = code_of(CLIENTS, call)
    assert "https://h:1" in code["curl"]
    assert "https://h:1" in code["kserve"]
    assert "https://h:1" in code["graphpipe"]
    assert "ssl=True" in code["tritonclient"]
    assert "ssl=True" in code["tritonclient-grpc"]
    assert "secure_channel" in code["tensorflow-serving-api"]
    assert "does not support TLS" in code["tensorrtserver"]


def test_credentials_in_the_query_are_read_from_the_environment() -> None:
    query = "a=1&api_key=SECRETQ&%70ass=SECRETR&b=x%20y&sig=&token&2fa-token=SECRETS"
    wire = HttpRequest("POST", "/p", query, {}, (b"{}",))
    (code,) = code_of(["curl"], inference(wire=wire)).values()
    assert "SECRET" not in code
    environ = {"API_KEY": "1", "PASS": "2", "_2FA_TOKEN": "3"}
    script = f'curl() {{ printf %s "$1"; }}\n{code}'
    shell = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, check=True)
    assert shell.stdout.decode() == (
        "http://h:8000/p?a=1&api_key=1&%70ass=2&b=x%20y&sig=&token&2fa-token=3"
    )

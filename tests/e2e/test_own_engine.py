"""Tests ``engine: own`` in a whole gateway, with all options of real clients and with other HTTP/2
tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults.rpc import INFER, RpcBackend, call, channel, infer_message
from faults.watch import alive, logged_bugs

CONFIG = """
backends:
  ours: {{protocol: builtin}}
  depot: {{protocol: v2-grpc, endpoints: ["grpc://{rpc}"], profile: infergate}}
  again: {{protocol: v2-grpc, endpoints: ["grpc://{own}"], profile: infergate}}
routes:
  - {{model: '/again\\.(.+)/', backend: again, rewrite: {{model: '\\1'}}}}
  - {{model: depot, backend: depot}}
  - {{model: "*", backend: ours}}
limits: {{body: 80MiB}}
readiness: lenient
"""
INNER = 'backends: {ours: {protocol: builtin}}\nroutes: [{model: "*", backend: ours}]\n'
TALL = "limits: {body: 80MiB}\n"


@pytest.fixture(scope="module")
def gateway(rpc: RpcBackend) -> Iterator[Infergate]:
    with started_infergate(INNER + TALL, engine="own") as inner:
        config = CONFIG.format(rpc=rpc.address, own=inner.grpc)
        with started_infergate(config, engine="own") as outer:
            yield outer
            assert alive(outer)
            assert logged_bugs(outer) == ""


def tensors(size: int = 4) -> list[triton.InferInput]:
    created = []
    for name in ("INPUT0", "INPUT1"):
        tensor = triton.InferInput(name, [size], "UINT8")
        tensor.set_data_from_numpy(np.arange(size, dtype=np.uint8))
        created.append(tensor)
    return created


@pytest.mark.parametrize("model", ["identity", "again.identity"])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("size", [4, 3_000_000])
def test_tritonclient(gateway: Infergate, model: str, compression: str | None, size: int) -> None:
    options = triton.KeepAliveOptions(keepalive_time_ms=1000, keepalive_permit_without_calls=True)
    with triton.InferenceServerClient(gateway.grpc, keepalive_options=options) as client:
        answer = client.infer(
            model,
            tensors(size),
            client_timeout=30,
            compression_algorithm=compression,
            headers={"x-request-id": "mine"},
        )
        assert (answer.as_numpy("OUTPUT0") == np.arange(size, dtype=np.uint8)).all()


def test_32_mib_each_way_through_two_gateways(gateway: Infergate) -> None:
    with triton.InferenceServerClient(gateway.grpc) as client:
        answer = client.infer("again.identity", tensors(32 << 20), client_timeout=60)
        assert answer.as_numpy("OUTPUT1").size == 32 << 20


def test_a_stream(gateway: Infergate) -> None:
    result = pb.ModelInferRequest(model_name="again.identity")
    for name in ("INPUT0", "INPUT1"):
        result.inputs.add(name=name, datatype="UINT8", shape=[1])
        result.raw_input_contents.append(b"\7")
    message = result.SerializeToString()
    with channel(gateway.grpc) as rpc_channel:
        stream = rpc_channel.stream_stream(INFER.replace("ModelInfer", "ModelStreamInfer"))
        answers = list(stream(iter([message] * 20), timeout=30))
    assert len(answers) == 20
    parsed = [pb.ModelStreamInferResponse.FromString(each) for each in answers]
    assert all(not each.error_message for each in parsed)


def test_deadlines_and_cancellation_are_forwarded(gateway: Infergate, rpc: RpcBackend) -> None:
    quick = rpc.answer
    with channel(gateway.grpc) as rpc_channel:
        _, timeout = rpc.late_call(rpc_channel, infer_message("depot"))
        assert rpc.cancelled.wait(20)
        assert rpc.remaining[-1] is not None
        assert rpc.remaining[-1] <= timeout
        rpc.cancelled.clear()
        rpc.entered.clear()
        pending = rpc_channel.unary_unary(INFER).future(infer_message("depot"), timeout=30)
        assert rpc.entered.wait(20)
        pending.cancel()
        assert rpc.cancelled.wait(20)
        rpc.answer = quick
        rpc.release.set()
        assert call(rpc_channel, infer_message("depot")).code is grpc.StatusCode.OK


def test_h2load(gateway: Infergate, tmp_path: object) -> None:
    tool = shutil.which("h2load")
    if tool is None:
        pytest.skip("h2load is not installed")
    body = f"{tmp_path}/body"
    with open(body, "wb") as file:  # noqa: PTH123
        file.write(bytes(5))  # ServerLive
    done = subprocess.run(
        [
            tool, "-n3000", "-c10", "-m50", f"-d{body}", "-Hcontent-type: application/grpc",
            "-Hte: trailers", f"http://{gateway.grpc}{INFER.replace('ModelInfer', 'ServerLive')}",
        ],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "3000 succeeded, 0 failed, 0 errored" in done.stdout


def test_curl(gateway: Infergate, tmp_path: object) -> None:
    tool = shutil.which("curl")
    if tool is None:
        pytest.skip("curl is not installed")
    url = f"http://{gateway.grpc}{INFER.replace('ModelInfer', 'ServerLive')}"
    requests = [tool, "-sS", "--http2-prior-knowledge", "-i", "--data-binary", "@-", url]
    kinds = [("application/grpc", "200", "0"), ("text/html", "415", "2")]
    for kind, status, code in kinds:
        headers = ["-H", f"content-type: {kind}", "-H", "te: trailers"]
        done = subprocess.run(
            [*requests, *headers], input=bytes(5), check=False, capture_output=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"HTTP/2 {status}".encode())
        assert f"grpc-status: {code}".encode() in done.stdout

"""Tests ``engine: own`` over gRPC with tritonclient, h2load and curl."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton

from e2e.running import Infergate, started_infergate
from faults.rpc import INFER
from faults.watch import alive, logged_bugs

CONFIG = """
backends:
  demo: {{protocol: builtin}}
  inner: {{protocol: v2-grpc, endpoints: ["grpc://{own}"], profile: infergate}}
routes:
  - {{model: '/inner\\.(.+)/', backend: inner, rewrite: {{model: '\\1'}}}}
  - {{model: "*", backend: demo}}
limits: {{body: 80MiB}}
readiness: lenient
"""
INNER = 'backends: {demo: {protocol: builtin}}\nroutes: [{model: "*", backend: demo}]\n'
LARGE_BODIES = "limits: {body: 80MiB}\n"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with (
        started_infergate(INNER + LARGE_BODIES, engine="own") as inner,
        started_infergate(CONFIG.format(own=inner.grpc), engine="own") as outer,
    ):
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


@pytest.mark.parametrize("model", ["identity", "inner.identity"])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("size", [4, 3_000_000])
def test_tritonclient(gateway: Infergate, model: str, compression: str | None, size: int) -> None:
    options = triton.KeepAliveOptions(keepalive_time_ms=1000, keepalive_permit_without_calls=True)
    with triton.InferenceServerClient(gateway.grpc, keepalive_options=options) as client:
        result = client.infer(
            model,
            tensors(size),
            client_timeout=30,
            compression_algorithm=compression,
            headers={"x-request-id": "mine"},
        )
        assert (result.as_numpy("OUTPUT0") == np.arange(size, dtype=np.uint8)).all()


def test_32_mib_each_way_through_two_gateways(gateway: Infergate) -> None:
    with triton.InferenceServerClient(gateway.grpc) as client:
        result = client.infer("inner.identity", tensors(32 << 20), client_timeout=60)
        assert result.as_numpy("OUTPUT1").size == 32 << 20


def test_h2load(gateway: Infergate, tmp_path: object) -> None:
    tool = shutil.which("h2load")
    if tool is None:
        pytest.skip("h2load is not installed")
    body = f"{tmp_path}/body"
    with open(body, "wb") as file:  # noqa: PTH123
        file.write(bytes(5))  # an empty message
    completed = subprocess.run(
        [
            tool, "-n3000", "-c10", "-m50", f"-d{body}", "-Hcontent-type: application/grpc",
            "-Hte: trailers", f"http://{gateway.grpc}{INFER.replace('ModelInfer', 'ServerLive')}",
        ],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "3000 succeeded, 0 failed, 0 errored" in completed.stdout


def test_curl(gateway: Infergate, tmp_path: object) -> None:
    tool = shutil.which("curl")
    if tool is None:
        pytest.skip("curl is not installed")
    url = f"http://{gateway.grpc}{INFER.replace('ModelInfer', 'ServerLive')}"
    argv = [tool, "-sS", "--http2-prior-knowledge", "-i", "--data-binary", "@-", url]
    cases = [("application/grpc", "200", "0"), ("text/html", "415", "2")]
    for content_type, status, code in cases:
        headers = ["-H", f"content-type: {content_type}", "-H", "te: trailers"]
        completed = subprocess.run(
            [*argv, *headers], input=bytes(5), check=False, capture_output=True, timeout=30
        )
        assert completed.returncode == 0, completed.stderr
        assert completed.stdout.startswith(f"HTTP/2 {status}".encode())
        assert f"grpc-status: {code}".encode() in completed.stdout

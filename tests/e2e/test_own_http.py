"""Tests ``engine: own`` over HTTP through two gateways, with tritonclient, curl and h2load."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from e2e.running import Infergate, started_infergate
from faults.watch import alive, logged_bugs

INNER = 'backends: {demo: {protocol: builtin}}\nroutes: [{model: "*", backend: demo}]\n'
OUTER = """
backends:
  inner: {{protocol: v2-rest, endpoints: ["http://{inner}"], profile: infergate}}
routes:
  - {{model: "*", backend: inner}}
"""
LARGE_BODIES = "limits: {body: 80MiB}\n"
PATH = "/v2/models/identity/infer"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with (
        started_infergate(INNER + LARGE_BODIES, engine="own") as inner,
        started_infergate(OUTER.format(inner=inner.http) + LARGE_BODIES, engine="own") as outer,
    ):
        yield outer
        for each in (inner, outer):
            assert alive(each)
            assert logged_bugs(each) == ""


@pytest.fixture
def body(tmp_path: Path) -> Path:
    inputs = [
        {"name": name, "datatype": "UINT8", "shape": [100_000], "data": [7] * 100_000}
        for name in ("INPUT0", "INPUT1")
    ]
    file = tmp_path / "body"
    file.write_text(json.dumps({"inputs": inputs}))
    return file


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("size", [4, 3_000_000])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient(gateway: Infergate, compression: str | None, size: int, binary: bool) -> None:
    size = size if binary else min(size, 30_000)
    array = np.arange(size, dtype=np.uint8)
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensors.append(triton.InferInput(name, [size], "UINT8"))
        tensors[-1].set_data_from_numpy(array, binary_data=binary)
    with triton.InferenceServerClient(gateway.http) as client:
        for _ in range(2):
            result = client.infer(
                "identity",
                tensors,
                request_compression_algorithm=compression,
                response_compression_algorithm=compression,
            )
            assert (result.as_numpy("OUTPUT0") == array).all()


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--http1.0",),
        ("--header", "Expect: 100-continue"),
        ("--header", "Transfer-Encoding: chunked"),
        ("--header", "Transfer-Encoding: chunked", "--header", "Expect: 100-continue"),
        ("--limit-rate", "400k"),
    ],
    ids=str,
)
def test_curl(gateway: Infergate, body: Path, options: tuple[str, ...]) -> None:
    tool = shutil.which("curl")
    if tool is None:
        pytest.skip("curl is not installed")
    completed = subprocess.run(
        [
            tool, "--silent", "--show-error", "--fail", *options, "--data-binary", f"@{body}",
            f"http://{gateway.http}{PATH}",
        ],
        check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    assert json.loads(completed.stdout)["outputs"][0]["data"] == [7] * 100_000


def test_h2load(gateway: Infergate, tmp_path: Path) -> None:
    tool = shutil.which("h2load")
    if tool is None:
        pytest.skip("h2load is not installed")
    inputs = [
        {"name": name, "datatype": "UINT8", "shape": [1], "data": [7]}
        for name in ("INPUT0", "INPUT1")
    ]
    file = tmp_path / "tiny"
    file.write_text(json.dumps({"inputs": inputs}))
    completed = subprocess.run(
        [tool, "--h1", "-n3000", "-c10", f"-d{file}", f"http://{gateway.http}{PATH}"],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "3000 succeeded, 0 failed, 0 errored" in completed.stdout
    assert "3000 2xx" in completed.stdout

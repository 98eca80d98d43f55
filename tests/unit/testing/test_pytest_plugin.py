"""The pytest plugin, in pytest runs that the tests start."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from peers.support.installed import PROJECT
from recordings import exchange, write_recording

pytest_plugins = ["pytester"]

MODULE = "infergate.pytest_plugin"
IS_INSTALLED = any(each.value == MODULE for each in entry_points(group="pytest11"))
"""Whether pytest loads the plugin without an option."""
OPTIONS = ("-q", "--strict-markers", "-p", "no:asyncio", "-p", "no:xdist", "-p", "no:randomly")
TESTS = """
import urllib.request

import numpy as np
import pytest
import tritonclient.http as triton

from infergate.testing import FakeModel


def infer(gateway, value):
    with triton.InferenceServerClient(gateway.http) as client:
        entry = triton.InferInput("x", [1], "FP32")
        entry.set_data_from_numpy(np.array([value], np.float32))
        return client.infer("m", [entry]).as_numpy("y").tolist()


DOUBLE = FakeModel(
    "m",
    lambda inputs: {"y": inputs["x"] * 2},
    inputs={"x": ("FP32", [1])},
    outputs={"y": ("FP32", [1])},
)


def test_embedded(infergate_gateway):
    url = infergate_gateway.addresses["http"].url
    assert urllib.request.urlopen(f"{url}/v2/models/simple/ready").status == 200


@pytest.mark.infergate(models=[DOUBLE])
def test_fake(infergate_gateway):
    assert infer(infergate_gateway, 3) == [6]
    assert len(infergate_gateway.requests) == 1


@pytest.mark.infergate(recordings=["a.igrec"])
def test_recording(infergate_gateway):
    assert infer(infergate_gateway, 1) == [1]


@pytest.mark.infergate("routes.yaml", models=[DOUBLE])
def test_configuration_file(infergate_gateway):
    assert infer(infergate_gateway, 2) == [4]


def test_factory(infergate_gateway_factory):
    first = infergate_gateway_factory(models=[DOUBLE])
    second = infergate_gateway_factory("routes.yaml", models=[DOUBLE])
    assert infer(first, 1) == infer(second, 1) == [2]
    assert first.http != second.http


@pytest.mark.infergate({"rutes": []})
def test_mistake(infergate_gateway):
    pass
"""


def test_the_fixtures_start_gateways(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    write_recording(pytester.path / "a.igrec", [exchange(1)])
    (pytester.path / "routes.yaml").write_text(
        "backends: {triton: {protocol: v2-grpc, endpoints: ['grpc://triton:8001']}}\n"
        "routes: [{model: '*', backend: triton}]\n"
    )
    options = OPTIONS if IS_INSTALLED else (*OPTIONS, "-p", MODULE)
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(["*ConfigError: configuration: rutes: unknown key*"])


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"infergate": MODULE}


def test_the_installed_plugin_imports_and_rewrites_no_other_modules(tmp_path: Path) -> None:
    """By default, pytest rewrites the assertions of all modules of a package with a plugin."""
    installed = tmp_path / "infergate-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: infergate\nVersion: 0\n")
    (installed / "RECORD").write_text("infergate/__init__.py,,\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\ninfergate = {MODULE}\n")
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    loaded = {name for name in sys.modules if name.partition('.')[0] == 'infergate'}\n"
        "    assert loaded == {'infergate', 'infergate.pytest_plugin'}\n"
        "    assert not {'pydantic', 'google.protobuf'} & sys.modules.keys()\n"
        "    import infergate.core.tensor\n"
        "    assert 'rewrite' not in type(infergate.core.tensor.__loader__).__module__\n"
        "    assert 'rewrite' in type(__loader__).__module__\n"
    )
    options = ("-q", "-o", "asyncio_default_fixture_loop_scope=function")
    argv = [sys.executable, "-m", "pytest", *options, "test_nothing.py"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    finished = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr

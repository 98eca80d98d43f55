"""Clients for TensorFlow Serving's APIs, a server of its gRPC API, and TensorFlow itself.

ovmsclient is OpenVINO's client. The stubs of tensorflow-serving-api run without TensorFlow, with
the messages of tensorflow-protobuf. pythie-serving is a server that supports only Predict; its
model here is a lookup table. tensorflow-cpu (1.2 GB installed) is the reference for TensorProtos.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

from peers import tfs_client

from .installed import Installed, install
from .process import Launch, client_environment, free_ports, scenario_results, started

_PROGRAMS = Path(tfs_client.__file__).parent
_SECONDS = 60
_TABLE = "a,b,price\n1,2,30\n1,3,40\n"
_TABLE_METADATA = {
    "feature_names": ["a", "b"],
    "target_name": "price",
    "data_type": {"a": "int", "b": "int", "price": "int"},
}
_TABLE_CONFIG = """
model_config_list {{
  config {{ name: "prices" base_path: "{}" model_platform: "table" }}
}}
"""


def prepare_ovmsclient() -> Installed:
    """Install ovmsclient if it is missing."""
    return install("ovmsclient", ("ovmsclient==2023.1",))


def prepare_tfserving_api() -> Installed:
    """Install the stubs if they are missing."""
    requirements = ("grpcio", "numpy", "protobuf>=6.31", "tensorflow-protobuf==2.11.0")
    return install("tfserving-api", requirements, bare=("tensorflow-serving-api==2.21.0",))


def prepare_pythie() -> Installed:
    """Install pythie-serving if it is missing."""
    return install("pythie", ("pythie-serving==3.4.3",))


def prepare_tensorflow() -> Installed:
    """Install TensorFlow if it is missing."""
    return install("tensorflow", ("tensorflow-cpu==2.21.0",))


def ovmsclient_report(address: str, transport: str = "grpc") -> dict[str, Any]:
    """Return the results of the scenarios of ``tfs_client/ovms.py`` over grpc or http."""
    program = _PROGRAMS / "ovms.py"
    return scenario_results(prepare_ovmsclient().python, program, address, transport)


def ovmsclient_photo(address: str, transport: str, model: str, file: Path) -> dict[str, Any]:
    """Return the result of sending an image file with ``tfs_client/ovms_photo.py``."""
    program = _PROGRAMS / "ovms_photo.py"
    return scenario_results(prepare_ovmsclient().python, program, address, transport, model, file)


def tfserving_api_report(address: str) -> dict[str, Any]:
    """Return the results of the scenarios of ``tfs_client/api.py``."""
    return scenario_results(prepare_tfserving_api().python, _PROGRAMS / "api.py", address)


@contextmanager
def started_pythie() -> Iterator[str]:
    """Run pythie-serving with the table ``prices``, which maps (a, b) to a price. Yield its
    ``host:port``."""
    peer = prepare_pythie()

    def prepare(folder: Path) -> Launch:
        (folder / "prices.csv").write_text(_TABLE)
        (folder / "metadata.json").write_text(json.dumps(_TABLE_METADATA))
        config = folder / "models.txt"
        config.write_text(_TABLE_CONFIG.format(folder))
        (port,) = free_ports(1)
        program = str(peer.python.with_name("pythie-serving"))
        argv = [program, str(config), "--port", str(port), "--maximum-concurrent-rpcs", "-1"]
        return Launch("pythie-serving", argv, client_environment(), [port], ready="")

    with started(prepare) as running:
        yield running.addresses[0]


class TensorFlow:
    """TensorFlow in a separate process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response of ``tfs_client/judge.py`` to ``request``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        response: dict[str, Any] = json.loads(self._process.stdout.readline())
        return response


@contextmanager
def started_tensorflow() -> Iterator[TensorFlow]:
    """Run ``tfs_client/judge.py`` in a process."""
    argv, env = [prepare_tensorflow().python, _PROGRAMS / "judge.py"], client_environment()
    with subprocess.Popen(
        argv, env=env, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield TensorFlow(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_SECONDS)

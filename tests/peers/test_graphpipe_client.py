"""Tests of the released GraphPipe clients with infergate.

A run of a client executes every scenario of ``graphpipe_client/client.py`` or ``client.js``. Each
scenario is a test of each target in ``TARGETS``: the embedded models (on the shared port, on
listeners for one model, and behind a second infergate on raw sockets), and a real Triton over both
V2 protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from peers.models.triton.models import DATATYPES
from peers.support.graphpipe import graphpipe_js_report, graphpipe_report
from peers.support.installed import Installed
from peers.support.process import free_ports
from peers.support.triton import Triton

CASTS = "cast: {{BOOL: UINT8, BF16: FP32}}"
CONFIG = f"""
backends:
  embedded: {{{{protocol: builtin}}}}
  rest: {{{{protocol: v2-rest, endpoints: ["http://{{t.http}}"]}}}}
  grpc: {{{{protocol: v2-grpc, endpoints: ["grpc://{{t.grpc}}"]}}}}
  tcp: {{{{protocol: graphpipe, endpoints: ["tcp://127.0.0.1:{{tcp}}"]}}}}
  unix: {{{{protocol: graphpipe, endpoints: ["unix:{{folder}}/sum.sock"]}}}}
routes:
  - {{{{model: '/rest\\.(.*)/', backend: rest, rewrite: {{{{model: '\\1'}}}}, {CASTS}}}}}
  - {{{{model: '/grpc\\.(.*)/', backend: grpc, rewrite: {{{{model: '\\1'}}}}, {CASTS}}}}}
  - {{{{model: '/raw\\.id_.*/', backend: tcp}}}}
  - {{{{model: raw.simple, backend: unix}}}}
  - {{{{model: 'id_*', backend: embedded, rewrite: {{{{model: identity}}}}}}}}
  - {{{{model: simple, backend: embedded}}}}
  - {{{{model: nosuch, backend: embedded}}}}
"""
RAW = """
backends: {embedded: {protocol: builtin}}
routes: [{model: "*", backend: embedded}]
"""
IDENTITIES = (*(f"id_{datatype}" for datatype in DATATYPES), "id_photo", "id_words")
SUMS = ("simple", "simple/versions/1", "simple/versions/9")


def array(values: Any, kind: str) -> list[Any]:
    created = np.array(values, kind)
    return [created.dtype.str, list(created.shape), created.tobytes().hex()]


A = np.arange(16, dtype="<i4").reshape(1, 16)
SUM, DIFFERENCE = array(A + 3, "<i4"), array(A - 3, "<i4")
OPPOSITE = array(3 - A, "<i4")
PHOTO = np.arange(60, dtype="u1").reshape(1, 4, 5, 3)
TRANSPOSED = np.arange(60, dtype="u1").reshape(1, 3, 5, 4).T.reshape(4, 5, 3, 1)
NUMBERS: dict[str, tuple[str, list[float]]] = {
    "UINT8": ("u1", [0, 1, 255]), "INT8": ("i1", [0, -1, -128]),
    "UINT16": ("<u2", [0, 1, 65535]), "INT16": ("<i2", [0, -1, -32768]),
    "UINT32": ("<u4", [0, 1, 2**32 - 1]), "INT32": ("<i4", [0, -1, -(2**31)]),
    "UINT64": ("<u8", [0, 1, 2**64 - 1]), "INT64": ("<i8", [0, -1, -(2**63)]),
    "FP16": ("<f2", [0, -1.5, 65504]), "FP32": ("<f4", [0, -1.5, 3.4028235e38]),
    "FP64": ("<f8", [0, -1.5, 1.7976931348623157e308]),
}  # fmt: skip
INT32 = 6


def ok(value: Any) -> dict[str, Any]:
    return {"ok": value}


def status(code: int) -> dict[str, Any]:
    return {"status": code}


OUTCOMES: dict[str, Any] = {
    "float32": ok(array([1.5, -2, 0], "<f4")),
    "special_floats": ok(["<f4", [4], "0100c07f0100a0ff0000807f00000080"]),
    "all_types": ok({name: array(values, kind) for name, (kind, values) in NUMBERS.items()}),
    "photo": ok(array(PHOTO, "u1")),
    "photo_with_other_strides": ok(array(np.transpose(TRANSPOSED, (3, 1, 0, 2)), "u1")),
    "strings": ok(["S", [2, 2], ["foo", "", "h\xc3\xa9llo", "four"]]),
    "arbitrary_bytes": ok(["S", [1, 2], ["a\0b", "\xff\xfe"]]),
    "no_elements": ok(["<f4", [0], ""]),
    "no_strings": ok(["<f8", [0], ""]),  # the client's encoding of an empty list of strings
    "scalar": ok(array(1.5, "<f4")),
    "big": ok(True),
    "cast_bool": ok(array([0, 1, 5], "u1")),
    "cast_bf16": ok(array([1.0, 3.14159], "<f4")),
    "named": ok([SUM, DIFFERENCE]),
    "unnamed": ok([SUM, DIFFERENCE]),
    "empty_names": ok([SUM, DIFFERENCE]),
    "inputs_in_reverse_order": ok([SUM, OPPOSITE]),
    "outputs_in_reverse_order": ok([DIFFERENCE, SUM]),
    "first_input_named": ok([SUM, DIFFERENCE]),
    "one_output": ok([DIFFERENCE]),
    "default_output": ok([SUM]),
    "output_twice": ok([DIFFERENCE, DIFFERENCE]),
    "doubled_names": ok([SUM, DIFFERENCE]),
    "tensorflow_names": ok([DIFFERENCE]),
    "version": ok([SUM, DIFFERENCE]),
    "json_config": ok([SUM, DIFFERENCE]),
    "text_config": ok([SUM, DIFFERENCE]),
    "metadata": ok(
        {
            "name": "simple",
            "ios": [[name, INT32, [-1, 16]] for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")],
        }
    ),
    "metadata_helpers": ok(
        [
            ["INPUT0", "INPUT1"],
            ["OUTPUT0", "OUTPUT1"],
            *[["int32", "int32"]] * 2,
            *[[[None, 16], [None, 16]]] * 2,
        ]
    ),
    "error_unknown_model": status(404),
    "error_unknown_version": status(404),
    "error_metadata_of_unknown_model": status(404),
    "error_missing_input": status(400),
    "error_inputs_without_names": status(400),
    "error_unknown_input": status(400),
    "error_unknown_output": status(400),
    "error_shape": status(400),
    "error_datatype": status(400),
    "error_from_the_model": status(404),  # only Triton has such a model
}


def numbers(dtype: str, shape: list[int], values: list[Any]) -> list[Any]:
    return [[dtype, shape, [str(value) for value in values]]]


JS_OUTCOMES: dict[str, Any] = {
    "float32": ok(numbers("float32", [3], [1.5, -2, "NaN"])),
    "float64": ok(numbers("float64", [3], [1.5, "NaN", "-Infinity"])),
    "int32": ok(numbers("int32", [2], [1, -2])),
    "uint16": ok(numbers("uint16", [2], [1, 65535])),
    "int8": ok(numbers("int8", [3], [1, -128, 127])),
    "photo": ok(numbers("uint8", [1, 4, 5, 3], list(range(60)))),
    "many": ok(
        numbers("int32", [1, 16], (A + 3).ravel().tolist())
        + numbers("int32", [1, 16], (A - 3).ravel().tolist())
    ),
    "big": ok(True),
    "metadata": ok(
        {
            "name": "simple",
            "ios": [[name, INT32, 16] for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")],
        }
    ),
    "error_unknown_model": status(404),
    "error_missing_input": status(400),
}


@dataclass(frozen=True)
class Target:
    """The URLs of the models. ``overrides`` are the outcomes that differ from ``OUTCOMES``."""

    urls: Callable[[Server], dict[str, str]]
    overrides: dict[str, Any] = field(default_factory=dict)
    name: str = "simple"
    """The model's name in its metadata."""


class Server:
    """A gateway with the routes and listeners that ``TARGETS`` need. ``ports`` has the ports of the
    listeners of one model, by name."""

    def __init__(self, gateway: Infergate, ports: dict[str, int]) -> None:
        self.gateway = gateway
        self.ports = ports

    def shared(self, prefix: str = "", words: str = "id_words") -> dict[str, str]:
        base = f"http://{self.gateway.http}/graphpipe/{prefix}"
        models = (*IDENTITIES, *SUMS, "nosuch", "fail")
        return {**{model: base + model for model in models}, "id_words": base + words}

    def listeners(self) -> dict[str, str]:
        """Return URLs of the listeners of one model. These listeners ignore the path."""
        ports = self.ports
        return {
            **{model: f"http://127.0.0.1:{ports['id_any']}/{model}" for model in IDENTITIES},
            **{model: f"http://127.0.0.1:{ports['simple']}/{model}" for model in SUMS},
            **dict.fromkeys(("nosuch", "fail"), f"http://127.0.0.1:{ports['nosuch']}"),
        }

    def responding(self) -> dict[str, str]:
        """Return URLs of listeners that report errors in a response instead of a status."""
        port = self.ports["responding"]
        fields = dict.fromkeys((*SUMS, *IDENTITIES), f"http://127.0.0.1:{port}")
        return {**fields, "nosuch": f"http://127.0.0.1:{self.ports['nosuch, responding']}"}


TRITON_OUTCOMES = {
    "scalar": status(400),  # the tensors of Triton's models have one dimension
    "cast_bool": ok(array([0, 1, 1], "u1")),
    "cast_bf16": ok(array([1.0, 3.140625], "<f4")),
    "error_from_the_model": status(503),
}
NO_VERSIONS = {"error_unknown_version": OUTCOMES["version"]}
"""A listener of one model ignores the path, and GraphPipe messages contain no model name."""
TARGETS = {
    "embedded": Target(Server.shared),
    "listeners": Target(Server.listeners, NO_VERSIONS),
    "raw": Target(lambda s: s.shared("raw."), NO_VERSIONS, "raw.simple"),
    "rest": Target(lambda s: s.shared("rest.", "simple_identity"), TRITON_OUTCOMES, "rest.simple"),
    "grpc": Target(lambda s: s.shared("grpc.", "simple_identity"), TRITON_OUTCOMES, "grpc.simple"),
}


@pytest.fixture(scope="module")
def server(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("raw")
    names = ("id_any", "simple", "nosuch", "responding", "nosuch, responding", "tcp")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    inner_config = f"""{LISTENERS}  graphpipe:
    - {{{{address: "tcp://127.0.0.1:{ports["tcp"]}", model: identity, framing: size-prefixed}}}}
    - {{{{address: "unix:{folder}/sum.sock", model: simple, framing: size-prefixed}}}}
"""
    outer_config = f"""{LISTENERS}  graphpipe:
    - {{{{address: "127.0.0.1:{ports["id_any"]}", model: id_any}}}}
    - {{{{address: "127.0.0.1:{ports["simple"]}", model: simple}}}}
    - {{{{address: "127.0.0.1:{ports["nosuch"]}", model: nosuch}}}}
    - {{{{address: "127.0.0.1:{ports["responding"]}", model: simple, errors: response}}}}
    - {{{{address: "127.0.0.1:{ports["nosuch, responding"]}", model: nosuch, errors: response}}}}
"""
    config = CONFIG.format(t=triton, tcp=ports["tcp"], folder=folder)
    with started_infergate(RAW, inner_config), started_infergate(config, outer_config) as gateway:
        yield Server(gateway, ports)


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]


@pytest.fixture(scope="module")
def py_outcomes(server: Server, target: Target, graphpipe: Installed) -> dict[str, Any]:
    return graphpipe_report(target.urls(server))


@pytest.fixture(scope="module")
def js_outcomes(server: Server, target: Target, graphpipe_js: None) -> dict[str, Any]:
    return graphpipe_js_report(target.urls(server))


def expected(scenario: str, outcomes: dict[str, Any], target: Target) -> Any:
    outcome = target.overrides.get(scenario, outcomes[scenario])
    return ok({**outcome["ok"], "name": target.name}) if scenario == "metadata" else outcome


@pytest.mark.parametrize("scenario", OUTCOMES)
def test_python_outcomes(target: Target, py_outcomes: dict[str, Any], scenario: str) -> None:
    assert py_outcomes[scenario] == expected(scenario, OUTCOMES, target)


@pytest.mark.parametrize("scenario", JS_OUTCOMES)
def test_js_outcomes(target: Target, js_outcomes: dict[str, Any], scenario: str) -> None:
    assert js_outcomes[scenario] == expected(scenario, JS_OUTCOMES, target)


def test_every_python_scenario_is_tested(py_outcomes: dict[str, Any]) -> None:
    assert set(py_outcomes) == set(OUTCOMES)


def test_every_js_scenario_is_tested(js_outcomes: dict[str, Any]) -> None:
    assert set(js_outcomes) == set(JS_OUTCOMES)


def test_python_reads_the_error_text_of_a_response(server: Server, graphpipe: Installed) -> None:
    """The client reads the text of an error in a response, but not the text of an error status."""
    result = graphpipe_report(server.responding() | {"fail": server.responding()["nosuch"]})
    assert result["error_unknown_model"]["error"].startswith("unknown model 'nosuch'")
    assert "missing required input(s) ['INPUT1']" in result["error_missing_input"]["error"]
    assert "input 2 has no name" in result["error_inputs_without_names"]["error"]
    assert "unexpected inference input 'nope'" in result["error_unknown_input"]["error"]
    assert "unexpected inference output 'nope'" in result["error_unknown_output"]["error"]
    assert "Expected [-1,16], got [1,3]" in result["error_shape"]["error"]
    assert "data-type is 'FP64'" in result["error_datatype"]["error"]
    assert result["unnamed"] == OUTCOMES["unnamed"]


def test_js_ignores_errors_in_a_response(server: Server, graphpipe_js: None) -> None:
    result = graphpipe_js_report(server.responding())
    assert result["error_missing_input"] == ok([])
    assert result["many"] == JS_OUTCOMES["many"]

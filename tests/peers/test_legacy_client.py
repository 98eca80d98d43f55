"""Tests of NVIDIA's legacy client with servers of the legacy API, over HTTP and gRPC.

A run of the client executes every scenario of ``legacy_client/client.py``. Each scenario is a test
of each target in ``legacy.targets``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from legacy.targets import TARGETS, Target
from peers.support.legacy_client import legacy_client_report


def ok(value: Any) -> dict[str, Any]:
    return {"ok": value}


def error(message: str) -> dict[str, Any]:
    return {"error": message}


def tensors(datatype: int, dims: list[int]) -> list[list[Any]]:
    return [[name, datatype, dims] for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")]


SUM, DIFFERENCE = list(range(1, 17)), list(range(-1, 15))
SUM_100, DIFFERENCE_100 = [n + 100 for n in SUM], [n + 100 for n in DIFFERENCE]
DOG, FISH = [1, 0.699999988079071, "dog"], [3, 0.15000000596046448, 'fish "q"']
CAT = [0, 0.10000000149011612, "cat"]
SEQUENCE_NOT_STARTED = (
    "inference request for sequence 9 to model 'sequence' must specify the START flag on the first"
    " request of the sequence"
)
ALL_TYPES = {
    "BOOL": [True, False], "UINT8": [1, 255], "UINT16": [1, 65535], "UINT32": [1, 2**32 - 1],
    "UINT64": [1, 2**64 - 1], "INT8": [-1, 127], "INT16": [-1, 2**15 - 1],
    "INT32": [-1, 2**31 - 1], "INT64": [-1, 2**63 - 1], "FP16": [1.5, -2.0],
    "FP32": [1.5, -2.0], "FP64": [1.5, -2.0], "STRING": ["x", "\xc3\0\xa9"],
}  # fmt: skip

OUTCOMES: dict[str, Any] = {
    "health": ok([True, True]),
    "status": ok([True, 2]),
    "status_model": ok({"max_batch_size": 8, "tensors": tensors(8, [16]), "ready": [1]}),
    "status_model_without_batches": ok(
        {"max_batch_size": 0, "tensors": tensors(11, [4]), "ready": [1, 3]}
    ),
    "status_unknown_model": error("no status available for unknown model 'nosuch'"),
    "repository": ok(True),
    "load": error("explicit model load / unload is not allowed if polling is enabled"),
    "shared_memory": ok(0),
    "infer": ok([{"OUTPUT0": [SUM], "OUTPUT1": [DIFFERENCE]}, 1]),
    "infer_version": ok([{"OUTPUT0": [SUM], "OUTPUT1": [DIFFERENCE]}, 1]),
    "infer_batch": ok([{"OUTPUT0": [SUM, SUM_100], "OUTPUT1": [DIFFERENCE, DIFFERENCE_100]}, 1]),
    "infer_in_reverse_order": ok([{"OUTPUT0": [SUM], "OUTPUT1": [DIFFERENCE]}, 1]),
    "infer_one_output": ok([{"OUTPUT1": [DIFFERENCE]}, 1]),
    "infer_twice_in_a_context": ok([{"OUTPUT0": [SUM]}, {"OUTPUT0": [list(range(1, 32, 2))]}]),
    "infer_without_batches": ok([{"OUTPUT0": [[3, 5, -6, 8]], "OUTPUT1": [[0, 0, 0, 0]]}, 3]),
    "infer_older_version": ok([{"OUTPUT0": [[3, 5, -6, 8]]}, 1]),
    "infer_strings": ok([{"OUTPUT0": [["a", "bcd", "", "\xc3\xa9"]]}, 1]),
    "infer_strings_batch": ok([{"OUTPUT0": [["a", "bb"], ["ccc", "dddd"]]}, 1]),
    "infer_variable_dims": ok([{"OUTPUT0": [[[0, 1, 2], [3, 4, 5]]]}, 1]),
    "infer_no_elements": ok([{"OUTPUT0": [[]]}, 1]),
    "infer_all_types": ok([{name: [value] for name, value in ALL_TYPES.items()}, 1]),
    "infer_classes": ok([{"OUTPUT0": [[DOG, FISH]]}, 1]),
    "infer_classes_batch": ok(
        [
            {
                "OUTPUT0": [
                    [DOG, FISH, CAT],
                    [[0, 4, "cat"], [1, 3, "dog"], [2, 2, "bird with space"]],
                ]
            },
            1,
        ]
    ),
    "infer_classes_without_labels": ok(
        [{"OUTPUT0": [[[1, 9, ""], [3, 7, ""], [0, 3, ""], [2, 1, ""]]]}, 1]
    ),
    "infer_classes_and_raw": ok(
        [{"OUTPUT0": [[[3, 8, 'fish "q"'], [2, 6, "bird with space"]]], "OUTPUT1": [[0] * 4]}, 3]
    ),
    "infer_large": ok(True),
    "infer_async": ok([[1, 1, 1], [1, 2, 3], [1, 3, 5], [1, 4, 7]]),
    "sequence": ok([{"OUTPUT": [[5]]}, {"OUTPUT": [[11]]}, {"OUTPUT": [[18]]}]),
    "error_unknown_model": error("no status available for unknown model 'nosuch'"),
    "error_unknown_version": error("Inference request for unknown model 'simple'"),
    "error_wrong_shape": error(
        "unexpected shape for input 'INPUT0' for model 'identity_fp32'. Expected [-1,3], got [3,2]"
    ),
    "error_failing_model": error("payload error for 'failing_0_0_cpu': (7) deliberate failure"),
    "error_no_sequence": error(
        "inference request to model 'sequence' must specify a non-zero correlation ID"
    ),
    "error_classes_of_strings": error(
        "class result not available for output 'OUTPUT0' due to unsupported type 'TYPE_STRING'"
    ),
    "error_then_success": ok([SEQUENCE_NOT_STARTED, {"OUTPUT": [[3]]}]),
}
GRPC_OUTCOMES = {**OUTCOMES, "stream": ok([[[5]], [[11]], [[18]]])}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, legacy_client: None) -> Iterator[Target]:
    with TARGETS[request.param]() as running:
        yield running


@pytest.fixture(scope="module")
def http_report(target: Target) -> dict[str, Any]:
    return legacy_client_report("http", target.http)


@pytest.fixture(scope="module")
def grpc_report(target: Target) -> dict[str, Any]:
    return legacy_client_report("grpc", target.grpc)


@pytest.mark.parametrize("scenario", OUTCOMES)
def test_outcomes_over_http(target: Target, http_report: dict[str, Any], scenario: str) -> None:
    assert http_report[scenario] == target.other_outcomes.get(scenario, OUTCOMES[scenario])


@pytest.mark.parametrize("scenario", GRPC_OUTCOMES)
def test_outcomes_over_grpc(target: Target, grpc_report: dict[str, Any], scenario: str) -> None:
    assert grpc_report[scenario] == target.other_outcomes.get(scenario, GRPC_OUTCOMES[scenario])


def test_every_scenario_is_tested(http_report: dict[str, Any], grpc_report: dict[str, Any]) -> None:
    assert set(http_report) == set(OUTCOMES)
    assert set(grpc_report) == set(GRPC_OUTCOMES)

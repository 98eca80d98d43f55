"""Triton behaves as its test models declare, without the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as client
from ml_dtypes import bfloat16
from tritonclient.utils import InferenceServerException

from peers.models.triton.models import LABELS, MODELS
from peers.support.triton import Triton

NUMBERS = {
    "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8",
    "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8",
    "FP16": "f2", "FP32": "f4", "FP64": "f8",
}  # fmt: skip
VALUES = {
    "BOOL": np.array([True, False]),
    "BF16": np.array([1.5, -2.0], bfloat16),
    "BYTES": np.array([b"a", b"\xff\x00"], np.object_),
    **{name: np.array([0, 1, 100], kind) for name, kind in NUMBERS.items()},
}


@pytest.fixture
def triton_client(triton: Triton) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(triton.grpc) as inference_server_client:
        yield inference_server_client


def infer_input(name: str, datatype: str, array: npt.NDArray[np.generic]) -> client.InferInput:
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.mark.parametrize("datatype", VALUES)
def test_identity_of_each_datatype(
    triton_client: client.InferenceServerClient, datatype: str
) -> None:
    array = VALUES[datatype]
    answer = triton_client.infer(f"id_{datatype}", [infer_input("INPUT0", datatype, array)])
    assert answer.get_output("OUTPUT0").datatype == datatype
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("model", [model.name for model in MODELS])
def test_every_model_is_ready(triton_client: client.InferenceServerClient, model: str) -> None:
    version = "3" if model == "versions" else "1"
    assert triton_client.is_model_ready(model, version)


def test_simple(triton_client: client.InferenceServerClient) -> None:
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    answer = triton_client.infer(
        "simple", [infer_input("INPUT0", "INT32", a), infer_input("INPUT1", "INT32", b)]
    )
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), a - b)


def test_simple_string(triton_client: client.InferenceServerClient) -> None:
    a = np.array([[str(n).encode() for n in range(16)]], np.object_)
    answer = triton_client.infer(
        "simple_string", [infer_input("INPUT0", "BYTES", a), infer_input("INPUT1", "BYTES", a)]
    )
    assert answer.as_numpy("OUTPUT0").ravel().tolist() == [b"%d" % (2 * n) for n in range(16)]
    assert answer.as_numpy("OUTPUT1").ravel().tolist() == [b"0"] * 16


def test_classification_has_labels(triton_client: client.InferenceServerClient) -> None:
    scores = np.zeros(10, np.float32)
    scores[3] = 4
    answer = triton_client.infer(
        "classify",
        [infer_input("INPUT0", "FP32", scores)],
        outputs=[client.InferRequestedOutput("OUTPUT0", class_count=1)],
    )
    assert answer.as_numpy("OUTPUT0").tolist() == [f"4.000000:3:{LABELS[3]}".encode()]


@pytest.mark.parametrize(("requested", "expected"), [("1", 1), ("3", 3), ("", 3)])
def test_versions(
    triton_client: client.InferenceServerClient, requested: str, expected: int
) -> None:
    nothing = infer_input("INPUT0", "INT32", np.zeros(1, np.int32))
    answer = triton_client.infer("versions", [nothing], model_version=requested)
    assert answer.as_numpy("VERSION").tolist() == [expected]


def test_slow_meets_a_deadline(triton_client: client.InferenceServerClient) -> None:
    value = np.array([7], np.int32)

    def slow(seconds: float, timeout: float | None) -> client.InferResult:
        wait = infer_input("SECONDS", "FP32", np.array([seconds], np.float32))
        return triton_client.infer(
            "slow", [infer_input("INPUT0", "INT32", value), wait], client_timeout=timeout
        )

    before = slow(0, None).as_numpy("CANCELLED").item()
    with pytest.raises(InferenceServerException, match=r"Deadline|CANCELLED"):
        slow(60, 0.2)
    after = slow(0, None)  # served only after the cancelled request released the instance
    assert after.as_numpy("OUTPUT0").tolist() == [7]
    assert after.as_numpy("CANCELLED").item() == before + 1


@pytest.mark.parametrize("kind", ["NOT_FOUND", "UNAVAILABLE", "INVALID_ARG", "anything"])
def test_fail(triton_client: client.InferenceServerClient, kind: str) -> None:
    with pytest.raises(InferenceServerException, match=kind):
        triton_client.infer(
            "fail", [infer_input("INPUT0", "BYTES", np.array([kind.encode()], np.object_))]
        )


def test_repeat_sends_many_responses(triton: Triton) -> None:
    values = np.array([5, 6, 7], np.int32)
    tensors = [
        infer_input("IN", "INT32", values),
        infer_input("DELAY", "UINT32", np.zeros(3, np.uint32)),
        infer_input("WAIT", "UINT32", np.zeros(1, np.uint32)),
    ]
    received: list[int] = []
    with client.InferenceServerClient(triton.grpc) as streaming:
        streaming.start_stream(lambda result, error: received.append(result.as_numpy("OUT").item()))
        streaming.async_stream_infer("repeat_int32", tensors)
        streaming.stop_stream()
    assert received == [5, 6, 7]

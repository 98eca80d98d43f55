"""Tests the embedded models with every form of tritonclient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, Client
from e2e.running import Infergate, started_infergate

CONFIG = """
backends:
  demo: {protocol: builtin}
routes:
  - {model: "*", backend: demo}
"""
HELD_OUT = Path(__file__).parents[1] / "data" / "digits_heldout.npz"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as running:
        yield running


@pytest.mark.parametrize("datatype", ARRAYS)
def test_identity_returns_its_inputs(triton_client: Client, datatype: str) -> None:
    array = ARRAYS[datatype]
    inputs = [
        triton_client.input("INPUT0", array, datatype),
        triton_client.input("INPUT1", array, datatype),
    ]
    result = triton_client.infer("identity", inputs, request_id="7")
    assert result.as_numpy("OUTPUT0").tolist() == array.tolist()
    assert result.as_numpy("OUTPUT1").tolist() == array.tolist()


def test_simple_and_simple_string_add_and_subtract(triton_client: Client) -> None:
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    inputs = [triton_client.input("INPUT0", a, "INT32"), triton_client.input("INPUT1", b, "INT32")]
    np.testing.assert_array_equal(triton_client.infer("simple", inputs).as_numpy("OUTPUT0"), a + b)
    strings = [np.vectorize(lambda n: str(n).encode(), otypes=[object])(x) for x in (a, b)]
    inputs = [triton_client.input(f"INPUT{i}", w, "BYTES") for i, w in enumerate(strings)]
    response = triton_client.infer("simple_string", inputs).as_numpy("OUTPUT1")
    np.testing.assert_array_equal(response.astype(np.int32), a - b)


def test_digits_are_classified(triton_client: Client) -> None:
    held_out = np.load(HELD_OUT)
    images, labels = held_out["images"].astype(np.float32), held_out["labels"]
    scores = triton_client.infer("digits", [triton_client.input("IMAGE", images, "FP32")]).as_numpy(
        "SCORES"
    )
    assert (scores.argmax(axis=1) == labels).mean() >= 0.95
    result = triton_client.infer(
        "digits",
        [triton_client.input("IMAGE", images[:1], "FP32")],
        outputs=[triton_client.output("SCORES", classes=3)],
    )
    assert result.as_numpy("SCORES").shape == (1, 3)


def test_metadata_and_readiness(triton_client: Client) -> None:
    assert triton_client.is_model_ready("simple")
    metadata = triton_client.get_model_metadata("digits", **triton_client.as_json)
    assert metadata["inputs"][0]["name"] == "IMAGE"


def test_unknown_models_and_missing_inputs_are_rejected(triton_client: Client) -> None:
    tensor = triton_client.input("INPUT0", np.ones((1, 16), np.int32), "INT32")
    with pytest.raises(InferenceServerException, match="nosuch") as caught:
        triton_client.infer("nosuch", [tensor])
    assert caught.value.status() in {"404", "StatusCode.NOT_FOUND"}
    with pytest.raises(InferenceServerException, match="INPUT1"):
        triton_client.infer("simple", [tensor])

"""The embedded models through every form of tritonclient, no server behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.clients import ARRAYS, FORMS, Client, client
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


@pytest.fixture(params=FORMS)
def asked(request: pytest.FixtureRequest, gateway: Infergate) -> Iterator[Client]:
    with client(request.param, gateway.http, gateway.grpc) as made:
        yield made


@pytest.mark.parametrize("datatype", ARRAYS)
def test_identity(asked: Client, datatype: str) -> None:
    array = ARRAYS[datatype]
    inputs = [asked.input("INPUT0", array, datatype), asked.input("INPUT1", array, datatype)]
    answer = asked.infer("identity", inputs, request_id="7")
    assert answer.as_numpy("OUTPUT0").tolist() == array.tolist()
    assert answer.as_numpy("OUTPUT1").tolist() == array.tolist()


def test_simple_and_simple_string(asked: Client) -> None:
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    inputs = [asked.input("INPUT0", a, "INT32"), asked.input("INPUT1", b, "INT32")]
    np.testing.assert_array_equal(asked.infer("simple", inputs).as_numpy("OUTPUT0"), a + b)
    words = [np.vectorize(lambda n: str(n).encode(), otypes=[object])(x) for x in (a, b)]
    inputs = [asked.input(f"INPUT{i}", w, "BYTES") for i, w in enumerate(words)]
    told = asked.infer("simple_string", inputs).as_numpy("OUTPUT1")
    np.testing.assert_array_equal(told.astype(np.int32), a - b)


def test_digits_are_read_and_classified(asked: Client) -> None:
    held_out = np.load(HELD_OUT)
    images, labels = held_out["images"].astype(np.float32), held_out["labels"]
    scores = asked.infer("digits", [asked.input("IMAGE", images, "FP32")]).as_numpy("SCORES")
    assert (scores.argmax(axis=1) == labels).mean() >= 0.95
    answer = asked.infer(
        "digits",
        [asked.input("IMAGE", images[:1], "FP32")],
        outputs=[asked.output("SCORES", classes=3)],
    )
    assert answer.as_numpy("SCORES").shape == (1, 3)


def test_metadata_and_readiness(asked: Client) -> None:
    assert asked.is_model_ready("simple")
    told = asked.get_model_metadata("digits", **({} if asked.http else {"as_json": True}))
    assert told["inputs"][0]["name"] == "IMAGE"


def test_errors(asked: Client) -> None:
    tensor = asked.input("INPUT0", np.ones((1, 16), np.int32), "INT32")
    with pytest.raises(InferenceServerException, match="nosuch") as caught:
        asked.infer("nosuch", [tensor])
    assert caught.value.status() in {"404", "StatusCode.NOT_FOUND"}
    with pytest.raises(InferenceServerException, match="INPUT1"):
        asked.infer("simple", [tensor])

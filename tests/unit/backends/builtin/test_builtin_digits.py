import re
from pathlib import Path

import numpy as np
import pytest
from builtin_requests import fp32, infer, rejection, requested_outputs

from infergate.backends.builtin import BuiltinBackend, digits
from infergate.core.messages import InferRequest

HELD_OUT = Path(__file__).parents[3] / "data" / "digits_heldout.npz"


async def test_unseen_images_are_classified(backend: BuiltinBackend) -> None:
    with np.load(HELD_OUT, allow_pickle=False) as held_out:
        images, labels = held_out["images"], held_out["labels"]
    assert images.shape == (40, 8, 8)
    response = await infer(backend, InferRequest("digits", inputs=(fp32("IMAGE", images),)))
    (scores,) = response.outputs
    assert scores.shape == (40, 10)
    is_correct = scores.numpy().argmax(axis=1) == labels
    assert is_correct.sum() >= 38
    np.testing.assert_allclose(scores.numpy().sum(axis=1), 1, rtol=1e-5)


async def test_the_documented_image_is_classified(backend: BuiltinBackend) -> None:
    rows = re.findall(r"^ +((?:\d+ +){7}\d+)$", digits.__doc__ or "", re.MULTILINE)
    image = [[int(pixel) for pixel in row.split()] for row in rows]
    assert len(image) == 8
    request = InferRequest(
        "digits",
        inputs=(fp32("IMAGE", [image]),),
        outputs=requested_outputs("SCORES", classification=20),
    )
    (classes,) = (await infer(backend, request)).outputs
    assert classes.shape == (1, 10)
    first, *others = classes.numpy()[0]
    assert re.fullmatch(rb"(1\.0|0\.9)\d+:7:seven", first)
    assert {c.split(b":")[2].decode() for c in [first, *others]} == set(digits.LABELS)


@pytest.mark.parametrize("pixel", [np.nan, np.inf, -np.inf, 3e38, -3e38])
async def test_extreme_pixels_cause_no_warning_and_affect_no_other_image(
    backend: BuiltinBackend, pixel: float
) -> None:
    plain = np.zeros((1, 8, 8))
    images = np.concatenate([np.full((1, 8, 8), pixel), plain])
    response = await infer(backend, InferRequest("digits", inputs=(fp32("IMAGE", images),)))
    alone = await infer(backend, InferRequest("digits", inputs=(fp32("IMAGE", plain),)))
    np.testing.assert_allclose(
        response.outputs[0].numpy()[1], alone.outputs[0].numpy()[0], rtol=1e-5
    )


async def test_an_empty_batch_has_no_scores(backend: BuiltinBackend) -> None:
    request = InferRequest("digits", inputs=(fp32("IMAGE", np.zeros((0, 8, 8))),))
    assert (await infer(backend, request)).outputs[0].shape == (0, 10)


async def test_batches_over_64_are_refused(backend: BuiltinBackend) -> None:
    error = await rejection(
        backend, InferRequest("digits", inputs=(fp32("IMAGE", np.zeros((65, 8, 8))),))
    )
    assert error == "inference request batch-size must be <= 64 for 'digits', input 'IMAGE' has 65"

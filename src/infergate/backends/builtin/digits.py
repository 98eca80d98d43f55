"""``digits``: a small trained classifier of handwritten digits, shipped with its weights.

An image is 8 by 8 pixels from 0 (paper) to 16 (ink), row by row, as in the Optical Recognition of
Handwritten Digits data set (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, CC BY 4.0;
the copy that scikit-learn bundles). The model scales the pixels itself. With ``classification: 1``
on SCORES, this image yields ``…:7:seven``::

     0  0  5 13 16 16  6  0
     0  0 12  6  4 13  9  0
     0  0  0  0  1 15  3  0
     0  0  0  2 10 13  2  0
     0  2 12 16 16 12  5  0
     0  1  6  9 11  0  0  0
     0  0  0 15  1  0  0  0
     0  0  6 11  0  0  0  0

The network has one hidden layer of 48 rectified units and a softmax. ``train_digits.py`` wrote
the weights in ``digits.npz``. The network classifies 98 % of the held-out fifth of the data set
correctly.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.model import Signature, UnaryModel
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import tensor_from_array

MAX_PIXEL: Final = 16.0
"""The value of the darkest pixel."""
LABELS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Floats = npt.NDArray[np.float32]


class Digits(UnaryModel):
    """IMAGE FP32 [-1,8,8] → SCORES FP32 [-1,10], the probability of each digit, for up to 64
    images."""

    signature = Signature(
        "digits",
        (TensorMetadata("IMAGE", "FP32", (-1, 8, 8)),),
        (TensorMetadata("SCORES", "FP32", (-1, 10)),),
        max_batch_size=64,
        labels={"SCORES": LABELS},
    )

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the probabilities. Pixels that are not finite may yield NaN scores."""
        images = self.signature.checked_inputs(request)["IMAGE"].numpy()
        scores = class_probabilities(images.reshape(len(images), 64), load_weights())
        return self.signature.build_response(
            request, (tensor_from_array("SCORES", Datatype.FP32, scores),)
        )


@cache
def load_weights() -> Mapping[str, Floats]:
    """Return the trained weights. The first call loads them."""
    path = resources.files(__package__).joinpath("digits.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def class_probabilities(pixels: npt.NDArray[Any], weights: Mapping[str, Floats]) -> Floats:
    """Return the network's probabilities [n,10] for ``pixels`` [n,64] from 0 to MAX_PIXEL."""
    with np.errstate(all="ignore"):  # clients may send NaN or Infinity
        hidden = pixels / np.float32(MAX_PIXEL) @ weights["hidden"] + weights["hidden_bias"]
        logits = np.maximum(hidden, 0) @ weights["output"] + weights["output_bias"]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores: Floats = powers / powers.sum(axis=1, keepdims=True)
    return scores

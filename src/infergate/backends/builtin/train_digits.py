"""Trains the model ``digits``, and writes its weights and held-out images for its test.

infergate does not import this module. The module needs scikit-learn, which
contains the data set::

    python -m infergate.backends.builtin.train_digits WEIGHTS.npz HELD_OUT.npz
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.digits import MAX_PIXEL, Floats, class_probabilities

SEED: Final = 20
HIDDEN: Final = 48
EPOCHS: Final = 120
BATCH: Final = 32
LEARNING_RATE: Final = 2e-3
WEIGHT_DECAY: Final = 1e-4
TEST_IMAGES: Final = 40
"""Number of held-out images written for the test."""


def train(pixels: Floats, labels: npt.NDArray[Any]) -> dict[str, Floats]:
    """Train the weights with Adam on ``pixels`` [n,64] and ``labels`` [n], minimizing the
    cross-entropy. Return the weights by name."""
    rng = np.random.default_rng(SEED)
    fitted = {
        "hidden": rng.normal(0, (2 / 64) ** 0.5, (64, HIDDEN)).astype(np.float32),
        "hidden_bias": np.zeros(HIDDEN, np.float32),
        "output": rng.normal(0, (2 / HIDDEN) ** 0.5, (HIDDEN, 10)).astype(np.float32),
        "output_bias": np.zeros(10, np.float32),
    }
    first_moment = {name: np.zeros_like(value) for name, value in fitted.items()}
    second_moment = {name: np.zeros_like(value) for name, value in fitted.items()}
    step = 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(pixels))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            step += 1
            for name, gradient in gradients(pixels[batch], labels[batch], fitted).items():
                first_moment[name] += 0.1 * (gradient - first_moment[name])
                second_moment[name] += 0.001 * (gradient**2 - second_moment[name])
                mean = first_moment[name] / (1 - 0.9**step)
                deviation = np.sqrt(second_moment[name] / (1 - 0.999**step)) + 1e-8
                fitted[name] -= LEARNING_RATE * (mean / deviation + WEIGHT_DECAY * fitted[name])
    return fitted


def gradients(
    pixels: Floats, labels: npt.NDArray[Any], weights: dict[str, Floats]
) -> dict[str, Floats]:
    """Return the gradient of the mean cross-entropy."""
    active = np.maximum(
        pixels / np.float32(MAX_PIXEL) @ weights["hidden"] + weights["hidden_bias"], 0
    )
    error = class_probabilities(pixels, weights)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    hidden_error = (error @ weights["output"].T) * (active > 0)
    return {
        "hidden": (pixels / np.float32(MAX_PIXEL)).T @ hidden_error,
        "hidden_bias": hidden_error.sum(axis=0),
        "output": active.T @ error,
        "output_bias": error.sum(axis=0),
    }


def main(weights_path: Path, held_out_path: Path) -> None:
    """Split the data, train, print the accuracy on the held-out fifth, and write both files."""
    # scikit-learn is not a dependency of the project, so mypy does not find it.
    data = importlib.import_module("sklearn.datasets").load_digits()
    pixels, labels = data.data.astype(np.float32), data.target
    order = np.random.default_rng(SEED).permutation(len(labels))
    held_out, training = order[: len(order) // 5], order[len(order) // 5 :]
    fitted = train(pixels[training], labels[training])
    is_correct = class_probabilities(pixels[held_out], fitted).argmax(axis=1) == labels[held_out]
    print(f"held out: {is_correct.mean():.2%} of {len(held_out)} correct")  # noqa: T201
    np.savez_compressed(weights_path, allow_pickle=False, **fitted)
    shipped = held_out[:TEST_IMAGES]
    images = pixels[shipped].astype(np.uint8).reshape(-1, 8, 8)
    np.savez_compressed(
        held_out_path, allow_pickle=False, images=images, labels=labels[shipped].astype(np.uint8)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

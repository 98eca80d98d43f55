"""Classifies outputs (the V2 classification extension) if the backend does not classify them.

The first dimension is the batch if ``max_batch_size`` in the metadata is above 0. If
``max_batch_size`` is unknown, the first dimension is the batch if it is dynamic and the output has
other dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from infergate.core.classification import CLASSIFICATION, class_count, classify
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata


def requests_classes(request: InferRequest) -> bool:
    """Return whether ``request`` requests the classes of an output."""
    for output in request.outputs:  # noqa: SIM110 - this runs for every request, and any() is slower
        if CLASSIFICATION in output.parameters:
            return True
    return False


def request_values(request: InferRequest) -> InferRequest:
    """Return a copy of ``request`` that requests values instead of classes."""
    outputs = tuple(
        replace(
            output, parameters={k: v for k, v in output.parameters.items() if k != CLASSIFICATION}
        )
        for output in request.outputs
    )
    return replace(request, outputs=outputs)


def add_classes(
    response: InferResponse,
    request: InferRequest,
    model: ModelMetadata,
    labels: Mapping[str, Sequence[str]],
) -> InferResponse:
    """Classify the outputs for which ``request`` requests classes, and return the new response.

    All names are the client's names. ``labels`` are keyed by output. Raises BAD_REQUEST for an
    output that cannot be classified."""
    counts = {output.name: class_count(output) for output in request.outputs}
    outputs = tuple(
        tensor
        if (count := counts.get(tensor.name)) is None
        else classify(tensor, count, _batch_rank(model, tensor.name), labels.get(tensor.name, ()))
        for tensor in response.outputs
    )
    return replace(response, outputs=outputs)


def _batch_rank(model: ModelMetadata, output: str) -> int:
    if model.max_batch_size is not None:
        return min(model.max_batch_size, 1)
    shapes = (tensor.shape for tensor in model.outputs if tensor.name == output)
    shape = next(shapes, ())
    return 1 if len(shape) > 1 and shape[0] == -1 else 0

"""Classes where the backend has none to give: from its values, by the V2 classification extension.

*Rule.* Metadata tells what is a batch: a ``max_batch_size`` over 0 does. Where it is not told, a
free first dimension beside others is taken for the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from infergate.core.classification import PARAMETER, class_count, classify
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata


def asks_for_classes(request: InferRequest) -> bool:
    """Whether an output is to be classified."""
    for output in request.outputs:  # noqa: SIM110 - asked of every request, and any() is dear
        if PARAMETER in output.parameters:
            return True
    return False


def asking_values(request: InferRequest) -> InferRequest:
    """``request`` for the values of all its outputs."""
    outputs = tuple(
        replace(output, parameters={k: v for k, v in output.parameters.items() if k != PARAMETER})
        for output in request.outputs
    )
    return replace(request, outputs=outputs)


def with_classes(
    answer: InferResponse,
    request: InferRequest,
    model: ModelMetadata,
    labels: Mapping[str, Sequence[str]],
) -> InferResponse:
    """``answer`` with those outputs classified that ``request`` asks it of.

    All names are the client's; ``labels`` by output. Raises BAD_REQUEST for outputs that cannot be
    classified.
    """
    counts = {output.name: class_count(output) for output in request.outputs}
    outputs = tuple(
        tensor
        if (count := counts.get(tensor.name)) is None
        else classify(tensor, count, _batch_rank(model, tensor.name), labels.get(tensor.name, ()))
        for tensor in answer.outputs
    )
    return replace(answer, outputs=outputs)


def _batch_rank(model: ModelMetadata, output: str) -> int:
    if model.max_batch_size is not None:
        return min(model.max_batch_size, 1)
    shapes = (told.shape for told in model.outputs if told.name == output)
    shape = next(shapes, ())
    return 1 if len(shape) > 1 and shape[0] == -1 else 0

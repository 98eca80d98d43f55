"""Batches of comparisons for a helper process.

Outcomes are sent as tuples, because pickling the objects takes four times as long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infergate.comparison.outcomes import Comparison, compare
from infergate.comparison.rules import ComparisonRuleError, ComparisonRules
from infergate.comparison.summary import Summary
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.errors import GatewayError
from infergate.core.exchange import Outcome
from infergate.core.messages import InferResponse
from infergate.core.tensor import Buffer, Tensor

_PackedTensor = tuple[str, str, tuple[int, ...], Buffer]


class PackedOutcome(NamedTuple):
    """The parts of an outcome that are compared."""

    responses: Sequence[Sequence[_PackedTensor]]
    error: GatewayError | None
    duration: float


class PackedPair(NamedTuple):
    """The outcomes of an inference on ``model``: the served outcome, the outcome of the copy, and
    the outcome of the noise baseline or None. ``started_at`` is in seconds since the Unix epoch."""

    model: str
    started_at: float
    request_id: str
    expected: PackedOutcome
    actual: PackedOutcome
    baseline: PackedOutcome | None


class ComparedBatch(NamedTuple):
    """The result of a batch: its summary, and the pairs that differ or could not be compared, by
    their positions in the batch."""

    summary: Summary
    different: dict[int, Comparison]
    errors: dict[int, str]


def pack_outcome(outcome: Outcome) -> PackedOutcome:
    """Return the parts of ``outcome`` that are compared. Tensors are not copied."""
    return PackedOutcome(
        [
            [(item.name, item.datatype.v2_name, item.shape, item.data) for item in response.outputs]
            for response in outcome.responses
        ],
        outcome.error,
        outcome.duration,
    )


def compare_batch(route: str, rules: ComparisonRules, pairs: Sequence[PackedPair]) -> ComparedBatch:
    """Compare ``pairs`` of inferences on ``route``."""
    batch = ComparedBatch(Summary(), {}, {})
    for position, pair in enumerate(pairs):
        expected, noise = _unpack(pair.expected), None
        try:
            comparison = compare(rules, expected, _unpack(pair.actual))
            if pair.baseline is not None:
                noise = compare(rules, expected, _unpack(pair.baseline))
        except ComparisonRuleError as error:
            batch.errors[position] = str(error)
            continue
        batch.summary.add(
            route,
            pair.model,
            comparison,
            noise,
            time=pair.started_at,
            request_id=pair.request_id,
        )
        if not comparison.is_equal:
            batch.different[position] = comparison
    return batch


def _unpack(packed: PackedOutcome) -> Outcome:
    responses = [
        InferResponse(
            "",
            outputs=tuple(
                [
                    Tensor(name, DATATYPES_BY_NAME[datatype], shape, data)
                    for name, datatype, shape, data in tensors
                ]
            ),
        )
        for tensors in packed.responses
    ]
    return Outcome(tuple(responses), packed.error, packed.duration)

"""Batches of comparisons for a helper process.

- Outcomes are sent as tuples, because pickling the objects takes four times as long.
- Short pairs are pickled one at a time when they are packed, so that a batch of short pairs blocks
the event loop no longer than a single pair.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Final, NamedTuple

from infergate.comparison.outcomes import Comparison, compare, without_values
from infergate.comparison.rules import ComparisonRuleError, ComparisonRules
from infergate.comparison.summary import Summary
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.errors import GatewayError
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferResponse
from infergate.core.name_globs import name_matcher
from infergate.core.tensor import Buffer, Tensor

MAX_SHORT_BYTES: Final = 16 * 1024
"""A pair without errors whose tensors have at most this total size is pickled when it is packed.
Pickling copies the tensors."""
_PackedTensor = tuple[str, str, tuple[int, ...], Buffer]


class PackedOutcome(NamedTuple):
    """The parts of an outcome that are compared."""

    responses: Sequence[Sequence[_PackedTensor]]
    error: GatewayError | None
    duration: float


class PackedPair(NamedTuple):
    """The outcomes of an inference on ``model``: the served outcome, the outcome of the copy, and
    the outcome of the noise baseline or None. ``started_at`` is in seconds since the Unix epoch.
    ``is_forwarded`` is ``InferRequest.is_forwarded``."""

    model: str
    started_at: float
    request_id: str
    expected: PackedOutcome
    actual: PackedOutcome
    baseline: PackedOutcome | None
    is_forwarded: bool


class ComparedBatch(NamedTuple):
    """The result of a batch: its summary, and the pairs that differ or could not be compared, by
    their positions in the batch."""

    summary: Summary
    different: dict[int, Comparison]
    errors: dict[int, str]


def pack_pair(exchange: Exchange, actual: Outcome, baseline: Outcome | None) -> PackedPair | bytes:
    """Pack the outcomes of an inference: the served outcome in ``exchange``, the outcome ``actual``
    of the copy, and the outcome ``baseline`` of the noise baseline or None. A short pair without
    errors is returned pickled."""
    outcomes = [exchange.outcome, actual, *(() if baseline is None else (baseline,))]
    is_short = sum([outcome.size for outcome in outcomes]) <= MAX_SHORT_BYTES
    expected, packed, *noise = [_pack(outcome, copy=is_short) for outcome in outcomes]
    pair = PackedPair(
        exchange.request.model,
        exchange.started_at,
        exchange.request_id,
        expected,
        packed,
        noise[0] if noise else None,
        exchange.request.is_forwarded,
    )
    if is_short and all(outcome.error is None for outcome in outcomes):
        return pickle.dumps(tuple(pair), pickle.HIGHEST_PROTOCOL)
    return pair  # ``pickle`` alone cannot serialize a GatewayError; ``ipc_message`` can


def _pack(outcome: Outcome, *, copy: bool) -> PackedOutcome:
    """Return the parts of ``outcome`` that are compared. Tensors are copied only if ``copy`` is
    set."""
    responses = [
        [
            (
                item.name,
                item.datatype.v2_name,
                item.shape,
                bytes(item.data) if copy else item.data,
            )
            for item in response.outputs
        ]
        for response in outcome.responses
    ]
    return PackedOutcome(responses, outcome.error, outcome.duration)


def compare_batch(
    route: str,
    rules: ComparisonRules,
    redacted: Sequence[str],
    pairs: Sequence[PackedPair | Buffer],
) -> ComparedBatch:
    """Compare ``pairs`` of inferences on ``route``. The result contains no elements of outputs that
    match a glob in ``redacted``. If there are any globs, it also contains no elements of inferences
    with ``is_forwarded``, whose output is a complete response body."""
    batch = ComparedBatch(Summary(), {}, {})
    is_redacted = name_matcher(redacted)
    for position, packed in enumerate(pairs):
        pair = packed if isinstance(packed, PackedPair) else _load(packed)
        expected, noise = _unpack(pair.expected), None
        try:
            comparison = compare(rules, expected, _unpack(pair.actual))
            if pair.baseline is not None:
                noise = compare(rules, expected, _unpack(pair.baseline))
        except ComparisonRuleError as error:
            batch.errors[position] = str(error)
            continue
        if is_redacted is not None:
            hides = (lambda _: True) if pair.is_forwarded else is_redacted
            comparison = without_values(comparison, hides)
            noise = noise and without_values(noise, hides)
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


def _load(pickled: Buffer) -> PackedPair:
    return PackedPair(*pickle.loads(pickled))  # noqa: S301 - from the serving process


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

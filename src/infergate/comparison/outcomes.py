"""Comparison of two outcomes: the errors or responses of two servers to the same request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from infergate.comparison.rules import ComparisonRules
from infergate.comparison.tensors import (
    DATATYPE,
    EXTRA,
    MISSING,
    SHAPE,
    ElementDifference,
    OutputComparison,
    compare_tensors,
    merge_outputs,
)
from infergate.core.exchange import Outcome
from infergate.core.messages import InferResponse
from infergate.core.records import record
from infergate.core.tensor import Tensor

OUTCOME: Final = "outcome"
RESPONSES: Final = "responses"
MAX_OUTPUTS: Final = 64
HIDDEN: Final = "(hidden)"
"""The text that replaces a value of a redacted output."""
_MAX_TEXT: Final = 256
OTHER: Final = "(others)"
"""The name under which outputs and models beyond a limit are aggregated."""


@record
class Comparison:
    """The result of comparing two outcomes. It is small even for large responses.

    ``expected_kind`` and ``actual_kind`` are ``Outcome.kind``: ``ok``, or the kind of the error.
    ``cause`` is OUTCOME if these kinds differ, RESPONSES if the numbers of responses differ, or
    else an empty string. Durations are in seconds. ``outputs`` has at most MAX_OUTPUTS + 1 entries,
    sorted by name; further outputs are merged into an entry named OTHER."""

    expected_kind: str
    actual_kind: str
    cause: str = ""
    outputs: tuple[OutputComparison, ...] = ()
    expected_duration: float = 0.0
    actual_duration: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Whether no difference exceeds the rules. Known differences do not count."""
        return not self.cause and not any(each.cause for each in self.outputs if not each.is_known)

    @property
    def has_known_difference(self) -> bool:
        return any(each.cause for each in self.outputs if each.is_known)

    @property
    def required_atol(self) -> float:
        """The smallest ``atol`` with which the outputs that differ would pass. It is infinite if
        no ``atol`` suffices, and 0 if the outcomes are equal."""
        if self.cause:
            return math.inf
        different = [each for each in self.outputs if each.cause and not each.is_known]
        return max((each.required_atol for each in different), default=0.0)


def compare(rules: ComparisonRules, expected: Outcome, actual: Outcome) -> Comparison:
    """Compare two outcomes of the same request. Responses of streams are compared pairwise.

    Errors are equal if their kinds are equal. The texts of errors, and the ids, versions and
    parameters of responses, are not compared. Raises ComparisonRuleError if a rule does not apply
    to the datatype of its output.
    """
    cause = ""
    if expected.kind != actual.kind:
        cause = OUTCOME
    elif len(expected.responses) != len(actual.responses):
        cause = RESPONSES
    outputs: dict[str, OutputComparison] = {}
    pairs = zip(expected.responses, actual.responses, strict=False)
    for position, (first, second) in enumerate(pairs):
        for each in _compare_responses(rules, first, second):
            result = _with_elements(each, response=position) if position else each
            earlier = outputs.get(each.name)
            outputs[each.name] = merge_outputs(earlier, result) if earlier else result
    return Comparison(
        expected.kind,
        actual.kind,
        cause,
        tuple(_limit_outputs(outputs)),
        expected.duration,
        actual.duration,
    )


def _compare_responses(
    rules: ComparisonRules, expected: InferResponse, actual: InferResponse
) -> list[OutputComparison]:
    unmatched = {tensor.name: tensor for tensor in actual.outputs}
    results = [
        _compare_output(rules, each, unmatched.pop(each.name, None)) for each in expected.outputs
    ]
    return [*results, *(_compare_output(rules, None, each) for each in unmatched.values())]


def _compare_output(
    rules: ComparisonRules, expected: Tensor | None, actual: Tensor | None
) -> OutputComparison:
    present = expected or actual
    assert present is not None
    check = rules.resolve(present.name, present.datatype)
    if expected is None or actual is None:
        cause = EXTRA if expected is None else MISSING
    elif expected.datatype is not actual.datatype:
        cause = DATATYPE
    elif expected.shape != actual.shape:
        cause = SHAPE
    else:
        return compare_tensors(check, expected, actual)
    difference = ElementDifference((), _describe(expected), _describe(actual))
    return OutputComparison(
        present.name,
        cause,
        check.rule.ignore,
        present.datatype.value,
        check.describe(),
        required_atol=math.inf,
        distance=math.inf,
        first=difference,
        worst=difference,
    )


def _describe(tensor: Tensor | None) -> str:
    return f"{tensor.datatype.value} {list(tensor.shape)}"[:_MAX_TEXT] if tensor else "no output"


def without_values(comparison: Comparison, hides: Callable[[str], object]) -> Comparison:
    """Return ``comparison``, with the element values hidden in the entry OTHER and in the outputs
    whose names ``hides`` selects."""
    outputs = [
        _with_elements(each, expected=HIDDEN, actual=HIDDEN)
        if each.name == OTHER or hides(each.name)
        else each
        for each in comparison.outputs
    ]
    return replace(comparison, outputs=tuple(outputs))


def _with_elements(output: OutputComparison, **changes: Any) -> OutputComparison:
    """Return ``output`` with ``changes`` to the fields of its first and worst element."""
    first, worst = (each and replace(each, **changes) for each in (output.first, output.worst))
    return replace(output, first=first, worst=worst)


def _limit_outputs(outputs: dict[str, OutputComparison]) -> list[OutputComparison]:
    """Return ``outputs`` sorted by name. Outputs beyond MAX_OUTPUTS are merged."""
    results = [outputs[name] for name in sorted(outputs)]
    if len(results) <= MAX_OUTPUTS:
        return results
    others = replace(results[MAX_OUTPUTS], name=OTHER)
    for each in results[MAX_OUTPUTS + 1 :]:
        others = merge_outputs(others, each)
    return [*results[:MAX_OUTPUTS], others]

"""Comparison rules define the accepted differences between an expected and an actual output.

Floating-point elements are compared as in ``numpy.isclose``: an element fails only if
``|actual - expected| > atol + rtol * |expected|``, computed in FP64. Elements of all other
datatypes must be equal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from infergate.core.datatypes import FLOATS, INTEGERS, Datatype
from infergate.core.records import EMPTY_MAPPING, record

_NUMBERS: Final = FLOATS | INTEGERS


class ComparisonRuleError(ValueError):
    """A rule is invalid, does not apply to its output's datatype, or names an unknown output."""


@record
class Tolerance:
    """The accepted difference of floating-point elements: an absolute and a relative tolerance."""

    atol: float
    rtol: float

    def __post_init__(self) -> None:
        for key, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not 0 <= value < math.inf:
                raise ComparisonRuleError(f"{key} is {value}; expected a finite number >= 0")


DEFAULT_TOLERANCES: Final[Mapping[Datatype, Tolerance]] = {
    Datatype.FP64: Tolerance(1e-5, 1e-4),
    Datatype.FP32: Tolerance(1e-5, 1e-4),
    Datatype.FP16: Tolerance(1e-3, 1e-2),
    # The mantissa of BF16 has 3 bits fewer than the mantissa of FP16.
    Datatype.BF16: Tolerance(8e-3, 8e-2),
}
"""The tolerances that apply unless the route or an output's rule sets a tolerance. FP64 has the
tolerance of FP32, because servers often compute in FP32."""


@record
class OutputRule:
    """The rule for an output; None means that a criterion is not configured.

    All configured criteria must hold. Single elements are not checked if the rule has ``cosine`` or
    ``top_k``, but neither a tolerance nor ``quantile``.
    """

    atol: float | None = None
    rtol: float | None = None
    quantile: float | None = None
    """The share of elements that must pass, above 0 and at most 1. By default, all must pass."""
    cosine: float | None = None
    """The minimum cosine similarity of each row along the last dimension, from -1 to 1."""
    top_k: int | None = None
    """The number of largest elements of each row along the last dimension that must be the same, in
    any order. The value 1 compares the predicted classes. Equal elements may replace each other."""
    ignore: bool = False
    """Whether differences are known. Known differences are counted separately, and are not
    mismatches."""

    def __post_init__(self) -> None:
        Tolerance(self.atol or 0.0, self.rtol or 0.0)
        if self.quantile is not None and not 0 < self.quantile <= 1:
            raise ComparisonRuleError(
                f"quantile is {self.quantile}; expected a number above 0 and at most 1"
            )
        if self.cosine is not None and not -1 <= self.cosine <= 1:
            raise ComparisonRuleError(f"cosine is {self.cosine}; expected a number from -1 to 1")
        if self.top_k is not None and self.top_k < 1:
            raise ComparisonRuleError(f"top_k is {self.top_k}; expected an integer >= 1")

    @property
    def has_tolerance(self) -> bool:
        return self.atol is not None or self.rtol is not None

    @property
    def checks_elements(self) -> bool:
        if self.has_tolerance or self.quantile is not None:
            return True
        return self.cosine is None and self.top_k is None

    def check_datatype(self, name: str, datatype: Datatype) -> None:
        """Raise ComparisonRuleError if a criterion does not apply to output ``name`` of
        ``datatype``."""
        if self.has_tolerance and datatype not in FLOATS:
            raise ComparisonRuleError(
                f"output '{name}' is {datatype.value}, which is compared exactly; remove atol and "
                "rtol (they apply to FP16, BF16, FP32 and FP64)"
            )
        for key, value in (("cosine", self.cosine), ("top_k", self.top_k)):
            if value is not None and datatype not in _NUMBERS:
                raise ComparisonRuleError(
                    f"output '{name}' is {datatype.value}; {key} applies to numbers only"
                )


_NO_RULE: Final = OutputRule()


@record
class OutputCheck:
    """A rule applied to the datatype of an output. ``tolerance`` is None for datatypes that are
    compared exactly."""

    rule: OutputRule
    tolerance: Tolerance | None

    def describe(self) -> str:
        """Return the check in one line, such as ``atol 1e-05, rtol 0.0001``."""
        rule = self.rule
        parts = []
        if rule.checks_elements:
            parts.append(
                f"atol {self.tolerance.atol:g}, rtol {self.tolerance.rtol:g}"
                if self.tolerance
                else "exact"
            )
        if rule.quantile is not None:
            parts.append(f"{100 * rule.quantile:g} % of elements")
        if rule.cosine is not None:
            parts.append(f"cosine >= {rule.cosine:g}")
        if rule.top_k is not None:
            parts.append(f"top {rule.top_k}")
        if rule.ignore:
            parts.append("ignored")
        return ", ".join(parts)


@record
class ComparisonRules:
    """The rules of a route. ``tolerances`` replaces entries of DEFAULT_TOLERANCES, and ``outputs``
    has rules by the client's output name. If the rule of an output has only ``atol`` or only
    ``rtol``, the rule replaces only that part of the tolerance."""

    tolerances: Mapping[Datatype, Tolerance] = EMPTY_MAPPING
    outputs: Mapping[str, OutputRule] = EMPTY_MAPPING

    def __post_init__(self) -> None:
        for datatype in self.tolerances:
            if datatype not in FLOATS:
                raise ComparisonRuleError(
                    f"{datatype.value} is compared exactly; a tolerance applies to FP16, BF16, "
                    "FP32 and FP64"
                )

    def resolve(self, name: str, datatype: Datatype) -> OutputCheck:
        """Return the check for output ``name``. Raises ComparisonRuleError if its rule does not
        apply to ``datatype``."""
        rule = self.outputs.get(name, _NO_RULE)
        rule.check_datatype(name, datatype)
        tolerance = self.tolerances.get(datatype) or DEFAULT_TOLERANCES.get(datatype)
        if tolerance is not None and rule.has_tolerance:
            tolerance = Tolerance(
                tolerance.atol if rule.atol is None else rule.atol,
                tolerance.rtol if rule.rtol is None else rule.rtol,
            )
        return OutputCheck(rule, tolerance)

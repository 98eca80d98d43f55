"""Comparison rules for a replay."""

from __future__ import annotations

from typing import Final

from infergate.comparison.rules import ComparisonRuleError, ComparisonRules, Tolerance
from infergate.core.datatypes import FLOATS

__all__ = ["EXACT", "ComparisonRuleError", "ComparisonRules"]
EXACT: Final = ComparisonRules({datatype: Tolerance(0.0, 0.0) for datatype in FLOATS})
"""Rules without any tolerance."""

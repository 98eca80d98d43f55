from __future__ import annotations

from collections.abc import Sequence

import pytest
from bench.check import BASELINE, CHANGED, judge
from bench.results import Result
from bench_kit import runs


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ([100, 100, 100], "ok"),
        ([124, 90, 130], "ok"),
        ([130, 140, 126], "dearer"),
        ([130, 140, 101], "dearer"),
        ([130, 140, 99], "unclear: the rounds do not agree"),
        ([50, 60, 70], "ok"),
    ],
)
def test_judge(changed: Sequence[float], verdict: str) -> None:
    base = runs(BASELINE, "own", cpus=[100] * len(changed))
    result = Result("row", (base, runs(CHANGED, "own", cpus=changed)))
    assert judge(result)[1] == verdict


def test_nothing_to_measure_fails_nothing() -> None:
    result = Result("row", (runs(BASELINE, "own", cpus=[0]), runs(CHANGED, "own", cpus=[5])))
    assert judge(result)[1] == "too little to measure"

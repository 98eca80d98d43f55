"""Verdicts, which compare the distribution of differences with the distribution of noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infergate.comparison import verdict as verdict_module
from infergate.comparison.error_stats import (
    BIN_COUNT,
    INFINITE_BIN,
    ZERO_BIN,
    bin_limit,
    bin_of,
    count_bins,
)
from infergate.comparison.verdict import (
    MIN_ABSOLUTE,
    MIN_RELATIVE,
    CachedJudge,
    DifferenceCounts,
    Judgement,
    Verdict,
    interval,
    judge,
    noise_limit,
)
from searching import examples


def counts(compared: int, differing: int, distance: float = 1.0) -> DifferenceCounts:
    return DifferenceCounts(compared, Counter({bin_of(distance): differing} if differing else {}))


@given(st.floats(min_value=0, allow_nan=False))
def test_an_error_is_within_the_limits_of_its_bin(error: float) -> None:
    index = bin_of(error)
    assert count_bins(np.array([error])) == {index: 1}
    assert error <= bin_limit(index) or index == INFINITE_BIN - 1
    if index > 1:
        assert bin_limit(index - 1) <= error or index == BIN_COUNT - 1


def test_zero_and_infinity_have_bins_of_their_own() -> None:
    assert (bin_of(0.0), bin_of(math.inf)) == (ZERO_BIN, INFINITE_BIN)
    assert bin_of(5e-324) not in (ZERO_BIN, INFINITE_BIN)
    assert bin_of(1.7e308) not in (ZERO_BIN, INFINITE_BIN)


@pytest.mark.parametrize(
    ("differences", "noise", "verdict"),
    [
        (counts(1000, 0), counts(1000, 0), Verdict.EQUAL),
        (counts(1000, 0), counts(1000, 500), Verdict.EQUAL),
        (counts(0, 0), counts(0, 0), Verdict.EQUAL),
        (counts(1000, 1), counts(0, 0), Verdict.DIFFERENT),  # the noise was not measured
        (counts(1000, 1), counts(1000, 0), Verdict.DIFFERENT),  # no noise was observed
        (counts(1000, 300), counts(1000, 300), Verdict.WITHIN_NOISE),
        (counts(1000, 300), counts(100, 28), Verdict.WITHIN_NOISE),
        (counts(1000, 300), counts(1000, 100), Verdict.DIFFERENT),
        (counts(1000, 300), counts(10, 1), Verdict.WITHIN_NOISE),  # too few noise comparisons
        (counts(10**6, 320), counts(10**6, 30), Verdict.WITHIN_NOISE),  # the excess is 0.029 %
        (counts(10**6, 400), counts(10**6, 30), Verdict.DIFFERENT),  # the excess is 0.037 %
        (counts(10**6, 140_000), counts(10**6, 100_000), Verdict.WITHIN_NOISE),  # 17 % of the sum
        (counts(10**6, 160_000), counts(10**6, 100_000), Verdict.DIFFERENT),  # 23 % of the sum
        (counts(1000, 1000, 1.0), counts(1000, 1000, 1.5), Verdict.WITHIN_NOISE),
        (counts(1000, 1000, 10.0), counts(1000, 1000, 1.0), Verdict.DIFFERENT),
        (counts(1000, 1000, 1.0), counts(1000, 1000, 10.0), Verdict.WITHIN_NOISE),
        (counts(1000, 1000, math.inf), counts(1000, 1000, 1.0), Verdict.DIFFERENT),
    ],
)
def test_the_verdict_depends_on_differences_and_noise(
    differences: DifferenceCounts, noise: DifferenceCounts, verdict: Verdict
) -> None:
    assert judge(differences, noise).verdict is verdict


def test_a_few_large_differences_among_noise_are_found() -> None:
    differences = counts(10_000, 5_000, 0.001)
    differences.merge(counts(0, 0))
    differences.distances[bin_of(math.inf)] = 100
    judgement = judge(differences, counts(10_000, 5_100, 0.001))
    assert judgement.verdict is Verdict.DIFFERENT
    assert (judgement.share, judgement.noise_share) == (0.01, 0)
    assert judgement.distance_bin == INFINITE_BIN


def test_a_judgement_has_the_shares_of_all_differences_if_they_decide() -> None:
    judgement = judge(counts(1000, 300), counts(1000, 100))
    assert (judgement.share, judgement.noise_share) == (0.3, 0.1)
    assert judgement.distance_bin == ZERO_BIN


def test_servers_with_the_same_noise_are_rarely_different() -> None:
    rng = np.random.default_rng(7)
    false_alarms = 0
    for _ in range(300):
        differences, noise = DifferenceCounts(), DifferenceCounts()
        for each, count in ((differences, 2000), (noise, 200)):
            for distance in rng.lognormal(-5, 1, count):
                each.add(distance if distance > 0.005 else None)
        false_alarms += judge(differences, noise).verdict is not Verdict.WITHIN_NOISE
    assert false_alarms == 0


def reference_judge(differences: DifferenceCounts, noise: DifferenceCounts) -> Judgement:
    """Apply the rule, and add up the counts again for every bin."""
    share, noise_share = differences.share, noise.share
    if not share:
        return Judgement(Verdict.EQUAL, share, noise_share)
    if not noise_share:
        return Judgement(Verdict.DIFFERENT, share, noise_share)
    for index in sorted(differences.distances):
        count, noise_count = differences.count_from_bin(index), noise.count_from_bin(index)
        large, large_noise = count / differences.compared, noise_count / noise.compared
        excess = large - large_noise
        if (
            excess > MIN_ABSOLUTE
            and excess > MIN_RELATIVE * (large + large_noise)
            and interval(count, differences.compared)[0] > interval(noise_count, noise.compared)[1]
        ):
            is_total = count == differences.differing and noise_count == noise.differing
            distance_bin = ZERO_BIN if is_total else index
            return Judgement(Verdict.DIFFERENT, large, large_noise, distance_bin)
    return Judgement(Verdict.WITHIN_NOISE, share, noise_share)


def random_counts() -> st.SearchStrategy[DifferenceCounts]:
    def build(bins: dict[int, int], equal: int) -> DifferenceCounts:
        return DifferenceCounts(sum(bins.values()) + equal, Counter(bins))

    bins = st.dictionaries(
        st.integers(60, 66) | st.integers(0, BIN_COUNT - 1), st.integers(0, 500), max_size=12
    )
    return st.builds(build, bins, st.integers(0, 500))


@settings(max_examples=examples(600))
@given(random_counts(), random_counts())
def test_a_judgement_equals_that_of_the_reference(
    differences: DifferenceCounts, noise: DifferenceCounts
) -> None:
    assert judge(differences, noise) == reference_judge(differences, noise)


class CountingBins(Counter[int]):
    """Counts the bins that are read."""

    reads = 0

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        self.reads += len(self)
        return super().__iter__()

    def values(self) -> Any:
        self.reads += len(self)
        return super().values()

    def items(self) -> Any:
        self.reads += len(self)
        return super().items()


def test_a_judgement_reads_each_bin_a_few_times_only() -> None:
    bin_counts = [CountingBins(dict.fromkeys(range(BIN_COUNT), 10)) for _ in range(2)]
    differences, noise = (DifferenceCounts(20 * BIN_COUNT, bins) for bins in bin_counts)
    for bins in bin_counts:
        bins.reads = 0
    assert judge(differences, noise).verdict is Verdict.WITHIN_NOISE
    assert all(0 < bins.reads <= 8 * BIN_COUNT for bins in bin_counts)


def test_a_cached_judgement_is_repeated_until_the_counts_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge_calls = []

    def recording_judge(differences: DifferenceCounts, noise: DifferenceCounts) -> Judgement:
        judge_calls.append(differences)
        return judge(differences, noise)

    monkeypatch.setattr(verdict_module, "judge", recording_judge)
    cached = CachedJudge()
    differences, noise, others = counts(1000, 300), counts(1000, 300), counts(1000, 900)
    for _ in range(3):
        assert cached(differences, noise) == judge(differences, noise)
        assert cached(others, noise) == judge(others, noise)
    assert len(judge_calls) == 2
    for changed in (differences, noise):
        for change in (lambda counts: counts.add(math.inf), lambda counts: counts.merge(others)):
            before = len(judge_calls)
            change(changed)
            assert cached(differences, noise) == judge(differences, noise)
            assert cached(differences, noise) == judge(differences, noise)
            assert len(judge_calls) == before + 1


@given(total=st.integers(1, 10**6), share=st.floats(0, 1))
def test_an_interval_contains_the_share(total: int, share: float) -> None:
    count = round(total * share)
    low, high = interval(count, total)
    assert -1e-12 <= low <= count / total + 1e-12
    assert count / total - 1e-12 <= high <= 1 + 1e-12


def test_few_noise_comparisons_have_a_noise_limit_above_zero() -> None:
    assert 0.04 < noise_limit(counts(1000, 1), counts(200, 0)) < 0.05
    assert noise_limit(counts(1000, 500), counts(200, 0)) == 0
    assert noise_limit(counts(1000, 0), counts(200, 0)) == 0
    assert noise_limit(counts(1000, 1), counts(200, 1)) == 0
    assert noise_limit(counts(1000, 1), counts(0, 0)) == 0


def test_more_differences_than_comparisons_are_rejected() -> None:
    with pytest.raises(ValueError, match="2 comparisons differ, but only 1 were made"):
        counts(1, 2)

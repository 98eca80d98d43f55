"""The verdict: whether the differences between two servers are more than noise.

Noise is the difference between two responses of the expected server to the same request. The rule
follows Diffy (``JoinedDifferences.scala``), and extends it to samples of noise and to sizes of
differences.

Let ``d`` be the share of comparisons that differ, and ``n`` the share of noise comparisons that
differ. An output is *different* if

- ``d > n``, ``(d - n) / (d + n) > 20 %`` and ``d - n > 0.03 %`` (Diffy's thresholds), and
- chance does not explain ``d``: the lower end of the interval of ``d`` is above the upper end of
  the interval of ``n`` (Wilson score intervals, 3 standard deviations).

The same rule is applied, for every exponent ``e``, to the shares of comparisons with a distance of
at least ``2**e``. A server is therefore also different if it differs as often as the noise, but by
larger distances. Otherwise, the differences are *within noise*. If no noise comparison differs,
every difference is *different*, because no noise was observed that could explain it."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from infergate.comparison.error_stats import ZERO_BIN, Bins, bin_of
from infergate.comparison.json_types import Count
from infergate.core.records import record

MIN_RELATIVE: Final = 0.2
MIN_ABSOLUTE: Final = 0.0003
_DEVIATIONS: Final = 3.0


class Verdict(enum.Enum):
    """The verdict on a comparison, an output, a model or a summary, from best to worst."""

    EQUAL = "equal"
    WITHIN_NOISE = "within_noise"
    DIFFERENT = "different"


VERDICTS: Final = tuple(Verdict)


def worst_verdict(*verdicts: Verdict) -> Verdict:
    """Return the worst of ``verdicts``, or EQUAL if there are none."""
    return max(verdicts, key=VERDICTS.index, default=Verdict.EQUAL)


@dataclass(slots=True)
class DifferenceCounts:
    """The number of comparisons, and the distances of the comparisons that differ."""

    compared: Count = 0
    distances: Bins = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.differing > self.compared:
            raise ValueError(
                f"{self.differing} comparisons differ, but only {self.compared} were made"
            )

    @property
    def differing(self) -> int:
        return self.distances.total()

    @property
    def share(self) -> float:
        return self.differing / self.compared if self.compared else 0.0

    def add(self, distance: float | None) -> None:
        """Count a comparison; ``distance`` is None if there is no difference."""
        self.compared += 1
        if distance is not None:
            self.distances[bin_of(distance)] += 1

    def merge(self, other: DifferenceCounts) -> None:
        self.compared += other.compared
        self.distances.update(other.distances)

    def count_from_bin(self, index: int) -> int:
        """Return the number of comparisons with a distance in bin ``index`` or above."""
        return sum(count for each, count in self.distances.items() if each >= index)


@record
class Judgement:
    """The verdict on an output or on outcomes, with the shares of comparisons and of noise
    comparisons that decided the verdict. The shares count comparisons with a distance in bin
    ``distance_bin`` or above, or all comparisons that differ if ``distance_bin`` is ZERO_BIN."""

    verdict: Verdict
    share: float = 0.0
    noise_share: float = 0.0
    distance_bin: int = ZERO_BIN


def judge(differences: DifferenceCounts, noise: DifferenceCounts) -> Judgement:
    """Weigh ``differences`` against ``noise``."""
    share, noise_share = differences.share, noise.share
    if not share:
        return Judgement(Verdict.EQUAL, share, noise_share)
    if not noise_share:
        return Judgement(Verdict.DIFFERENT, share, noise_share)
    # Subtract the counts in the lower bins, to get the counts in bin ``index`` and above.
    count, noise_count = differences.differing, noise.differing
    noise_bins = sorted(noise.distances, reverse=True)
    for index in sorted(differences.distances):
        while noise_bins and noise_bins[-1] < index:
            noise_count -= noise.distances[noise_bins.pop()]
        if _exceeds(count, differences.compared, noise_count, noise.compared):
            is_total = count == differences.differing and noise_count == noise.differing
            return Judgement(
                Verdict.DIFFERENT,
                count / differences.compared,
                noise_count / noise.compared,
                ZERO_BIN if is_total else index,
            )
        count -= differences.distances[index]
    return Judgement(Verdict.WITHIN_NOISE, share, noise_share)


class CachedJudge:
    """Caches the results of ``judge`` until the counts change.

    Counts change only together with ``compared``, which never decreases. Each cache belongs to one
    batch, because it keeps references to all counts that it has judged."""

    def __init__(self) -> None:
        self._judged: Final[dict[int, tuple[DifferenceCounts, tuple[int, int], Judgement]]] = {}

    def __call__(self, differences: DifferenceCounts, noise: DifferenceCounts) -> Judgement:
        key = differences.compared, noise.compared
        judged = self._judged.get(id(differences))
        if judged is None or judged[1] != key:
            judged = differences, key, judge(differences, noise)
            self._judged[id(differences)] = judged
        return judged[2]


Judge = Callable[[DifferenceCounts, DifferenceCounts], Judgement]


def noise_limit(differences: DifferenceCounts, noise: DifferenceCounts) -> float:
    """Return the largest share of differing comparisons that unobserved noise could explain: few
    noise comparisons do not prove that there is no noise. Return 0 if the share of ``differences``
    is larger, if no comparison differs, if a noise comparison differs, or if there are no noise
    comparisons."""
    if noise.differing or not noise.compared or not differences.differing:
        return 0.0
    _, limit = interval(0, noise.compared)
    return limit if differences.share <= limit else 0.0


def interval(count: int, total: int) -> tuple[float, float]:
    """Return the Wilson score interval of a share, for 3 standard deviations."""
    share, weight = count / total, _DEVIATIONS**2 / total
    middle = share + weight / 2
    margin = _DEVIATIONS * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    return (middle - margin) / (1 + weight), (middle + margin) / (1 + weight)


def _exceeds(count: int, total: int, noise_count: int, noise_total: int) -> bool:
    share, noise_share = count / total, noise_count / noise_total
    excess = share - noise_share
    if excess <= MIN_ABSOLUTE or excess <= MIN_RELATIVE * (share + noise_share):
        return False
    return interval(count, total)[0] > interval(noise_count, noise_total)[1]

"""The summary of the comparisons of one model, and of each of its outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol, Self, TypeVar

from pydantic import Field

from infergate.comparison.error_stats import ErrorStats, bin_of
from infergate.comparison.json_types import Count, Counts, Name, Size, Text
from infergate.comparison.latencies import Latencies
from infergate.comparison.outcomes import MAX_OUTPUTS, OTHER, Comparison
from infergate.comparison.tensors import CAUSES, VALUES, ElementDifference, OutputComparison
from infergate.comparison.timeline import Timeline
from infergate.comparison.verdict import (
    DifferenceCounts,
    Judge,
    Judgement,
    Verdict,
    judge,
    worst_verdict,
)
from infergate.core.exchange import OK
from infergate.core.records import record

MAX_WORST: Final = 5
_MAX_TEXTS: Final = 4
_MAX_OUTCOMES: Final = 512
Causes = Annotated[Counter[Text], Field(max_length=len(CAUSES)), Counts]


class _Mergeable(Protocol):
    def merge(self, other: Self, /) -> None: ...


T = TypeVar("T", bound=_Mergeable)


def bounded_entry(entries: dict[str, T], name: str, limit: int, create: Callable[[], T]) -> T:
    """Return the entry of ``name``, or the entry of OTHER if ``name`` is beyond ``limit``.

    The first ``limit`` names in alphabetical order have their own entries, so the result does not
    depend on the order of calls. The entry of a displaced name is merged into the entry of
    OTHER."""
    if name in entries:
        return entries[name]
    names = entries.keys() - {OTHER}
    if name != OTHER and len(names) >= limit:
        last = max(names)
        others = entries.setdefault(OTHER, create())
        if name > last:
            return others
        others.merge(entries.pop(last))
    return entries.setdefault(name, create())


@record
class WorstCase:
    """An element of a comparison, or the descriptions of two outputs that cannot be compared.
    ``cause`` is the cause of the output's difference, or an empty string if the output passes."""

    difference: ElementDifference
    cause: Text = ""
    request_id: Text = ""

    def sort_key(self) -> tuple[object, ...]:
        """Return a sort key by which the worst case comes first. Different cases have different
        keys."""
        each = self.difference
        first = (-each.required_atol, -each.error, self.request_id, each.response, each.index)
        return *first, each.expected, each.actual, self.cause


@dataclass(slots=True)
class OutputSummary:
    """The comparisons of an output. ``known`` counts the differences of an ignored output;
    ``differences`` excludes them. ``unresolvable`` counts comparisons that fail with every
    ``atol``. ``required_atol`` is the smallest ``atol`` with which all other comparisons pass.
    ``rules`` and ``datatypes`` are the rules and datatypes that applied, limited to the first four
    in alphabetical order."""

    datatypes: Annotated[set[Text], Field(max_length=_MAX_TEXTS)] = field(default_factory=set)
    rules: Annotated[set[Text], Field(max_length=_MAX_TEXTS)] = field(default_factory=set)
    differences: DifferenceCounts = field(default_factory=DifferenceCounts)
    noise: DifferenceCounts = field(default_factory=DifferenceCounts)
    known: Count = 0
    causes: Causes = field(default_factory=Counter)
    """The causes of all differences, including known differences."""
    required_atol: Size = 0.0
    unresolvable: Count = 0
    stats: ErrorStats = field(default_factory=ErrorStats)
    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    rows: Count = 0
    differing_rows: Count = 0
    worst: Annotated[list[WorstCase], Field(max_length=MAX_WORST + len(CAUSES))] = field(
        default_factory=list
    )

    def add(self, output: OutputComparison, request_id: str) -> None:
        self.datatypes = _first_texts(self.datatypes | {output.datatype})
        self.rules = _first_texts(self.rules | {output.rule})
        is_different = bool(output.cause) and not output.is_known
        self.differences.add(output.distance if is_different else None)
        self.known += bool(output.cause) and output.is_known
        if output.cause:
            self.causes[output.cause] += 1
        self.unresolvable += bool(output.cause) and output.required_atol == math.inf
        if output.required_atol < math.inf:
            self.required_atol = max(self.required_atol, output.required_atol)
        self.stats.merge(output.stats)
        self._add_rows(output.cosine, output.rows, output.differing_rows)
        if output.worst is not None:
            self._add_worst([WorstCase(output.worst, output.cause, request_id)])

    def merge(self, other: OutputSummary) -> None:
        self.datatypes = _first_texts(self.datatypes | other.datatypes)
        self.rules = _first_texts(self.rules | other.rules)
        self.differences.merge(other.differences)
        self.noise.merge(other.noise)
        self.known += other.known
        self.causes.update(other.causes)
        self.required_atol = max(self.required_atol, other.required_atol)
        self.unresolvable += other.unresolvable
        self.stats.merge(other.stats)
        self._add_rows(other.min_cosine, other.rows, other.differing_rows)
        self._add_worst(other.worst)

    def judge(self) -> Judgement:
        return judge(self.differences, self.noise)

    def _add_rows(self, cosine: float | None, rows: int, differing_rows: int) -> None:
        if cosine is not None:
            self.min_cosine = min(cosine, 1.0 if self.min_cosine is None else self.min_cosine)
        self.rows += rows
        self.differing_rows += differing_rows

    def _add_worst(self, cases: list[WorstCase]) -> None:
        kept: Counter[str] = Counter()
        cases = sorted([*self.worst, *cases], key=WorstCase.sort_key)
        self.worst = []
        for case in cases:
            # Cases of outputs that cannot be compared are all alike, and must not displace cases
            # with values.
            has_values = case.cause in ("", VALUES)
            kind = VALUES if has_values else case.cause
            kept[kind] += 1
            if kept[kind] <= (MAX_WORST if has_values else 1):
                self.worst.append(case)


@dataclass(slots=True)
class ModelSummary:
    """The comparisons of a model.

    ``unresolvable`` counts comparisons that differ with every ``atol``; with ``required_atol``, all
    other comparisons pass. ``known`` counts comparisons that are equal except for known
    differences. ``outcomes`` counts pairs of ``Outcome.kind``, joined by a slash. The latencies
    cover only comparisons in which both servers succeeded."""

    compared: Count = 0
    equal: Count = 0
    known: Count = 0
    unresolvable: Count = 0
    required_atol: Size = 0.0
    outcomes: Annotated[Counter[Text], Field(max_length=_MAX_OUTCOMES), Counts] = field(
        default_factory=Counter
    )
    causes: Causes = field(default_factory=Counter)
    differences: DifferenceCounts = field(default_factory=DifferenceCounts)
    """Differences in the outcome or in the number of responses."""
    noise: DifferenceCounts = field(default_factory=DifferenceCounts)
    outputs: Annotated[dict[Name, OutputSummary], Field(max_length=MAX_OUTPUTS + 1)] = field(
        default_factory=dict
    )
    expected_latencies: Latencies = field(default_factory=Latencies)
    actual_latencies: Latencies = field(default_factory=Latencies)
    timeline: Timeline = field(default_factory=Timeline)

    def __post_init__(self) -> None:
        if not self.known <= self.equal <= self.compared - self.unresolvable:
            raise ValueError(
                "contradictory counts: expected known <= equal <= compared - unresolvable"
            )

    def add(self, comparison: Comparison, time: float, request_id: str) -> None:
        self.compared += 1
        self.equal += comparison.is_equal
        self.known += comparison.is_equal and comparison.has_known_difference
        required = comparison.required_atol
        self.unresolvable += required == math.inf
        if required < math.inf:
            self.required_atol = max(self.required_atol, required)
        self.outcomes[f"{comparison.expected_kind}/{comparison.actual_kind}"] += 1
        self.differences.add(math.inf if comparison.cause else None)
        if comparison.cause:
            self.causes[comparison.cause] += 1
        for output in comparison.outputs:
            self._output(output.name).add(output, request_id)
        if comparison.expected_kind == comparison.actual_kind == OK:
            self.expected_latencies.add(comparison.expected_duration)
            self.actual_latencies.add(comparison.actual_duration)
        if time:
            self.timeline.add(time, is_equal=comparison.is_equal)

    def add_noise(self, comparison: Comparison) -> None:
        """Count a comparison of the expected server with itself."""
        self.noise.add(math.inf if comparison.cause else None)
        for output in comparison.outputs:
            self._output(output.name).noise.add(output.distance if output.cause else None)

    def merge(self, other: ModelSummary) -> None:
        self.compared += other.compared
        self.equal += other.equal
        self.known += other.known
        self.unresolvable += other.unresolvable
        self.required_atol = max(self.required_atol, other.required_atol)
        self.outcomes.update(other.outcomes)
        self.causes.update(other.causes)
        self.differences.merge(other.differences)
        self.noise.merge(other.noise)
        for name, output in other.outputs.items():
            self._output(name).merge(output)
        self.expected_latencies.merge(other.expected_latencies)
        self.actual_latencies.merge(other.actual_latencies)
        self.timeline.merge(other.timeline)

    def classify(self, comparison: Comparison, judge: Judge = judge) -> Verdict:
        """Return the verdict on ``comparison``, which must have been added. A difference is within
        noise if ``judge`` returns WITHIN_NOISE and, for an output, if a noise comparison of the
        output has a distance in the same or a higher bin."""
        verdicts = []
        if comparison.cause:
            verdicts.append(judge(self.differences, self.noise).verdict)
        for output in comparison.outputs:
            if output.cause and not output.is_known:
                summary = self._output(output.name)
                if not summary.noise.count_from_bin(bin_of(output.distance)):
                    return Verdict.DIFFERENT
                verdicts.append(judge(summary.differences, summary.noise).verdict)
        return worst_verdict(*verdicts)

    def verdict(self) -> Verdict:
        """Return the worst verdict on the outcomes and the outputs."""
        outputs = [output.judge().verdict for output in self.outputs.values()]
        return worst_verdict(judge(self.differences, self.noise).verdict, *outputs)

    def _output(self, name: str) -> OutputSummary:
        return bounded_entry(self.outputs, name, MAX_OUTPUTS, OutputSummary)


def _first_texts(texts: set[str]) -> set[str]:
    return set(sorted(texts)[:_MAX_TEXTS])

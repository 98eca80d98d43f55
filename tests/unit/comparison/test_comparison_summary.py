"""Summaries: adding, merging, limits, and JSON."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison_kit import NO_RULES, compare_values, failure, fp32, outcome
from infergate.comparison.latencies import Latencies
from infergate.comparison.model_summary import MAX_WORST
from infergate.comparison.outcomes import MAX_OUTPUTS, OTHER, Comparison, compare
from infergate.comparison.rules import ComparisonRules, OutputRule
from infergate.comparison.summary import MAX_MODELS, Summary, SummaryFormatError
from infergate.comparison.timeline import MAX_INTERVALS, Timeline
from infergate.comparison.verdict import Verdict
from infergate.core.errors import Kind
from infergate.core.exchange import Outcome

IGNORED = ComparisonRules(outputs={"x": OutputRule(ignore=True)})
# The sums of the errors are exact, so they do not depend on the order of the comparisons.
COMPARISONS = [
    compare_values(1, 1),
    compare_values(1, 2),
    compare_values(1, 2, IGNORED),
    compare_values(1, 1.5, name="y"),
    compare_values(1, math.nan),
    compare(NO_RULES, outcome(fp32("x", 1), duration=2.0), outcome(fp32("z", 0), duration=0.5)),
    compare(NO_RULES, outcome(fp32("x", 1)), failure(Kind.TIMEOUT)),
    compare(NO_RULES, failure(Kind.TIMEOUT), failure(Kind.TIMEOUT)),
    compare(
        ComparisonRules(outputs={"x": OutputRule(cosine=0.5, top_k=1)}),
        outcome(fp32("x", 1, 0)),
        outcome(fp32("x", 0, 1)),
    ),
]
REJECTED = [
    compare(NO_RULES, failure(first), failure(second))
    for first in (Kind.NOT_FOUND, Kind.BAD_REQUEST)
    for second in (Kind.NOT_FOUND, Kind.BAD_REQUEST)
]
Addition = tuple[str, str, Comparison, Comparison | None, float, str]


def additions() -> st.SearchStrategy[list[Addition]]:
    return st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 2).map("m{}".format),
            st.sampled_from([*COMPARISONS, *REJECTED]),
            st.none() | st.sampled_from([*COMPARISONS, *REJECTED]),
            st.just(0.0) | st.floats(1, 2e9) | st.integers(1, 2000).map(float),
            st.sampled_from(("", "r1", "r2")),
        ),
        max_size=30,
    )


def summary_of(added: list[Addition]) -> Summary:
    summary = Summary()
    for route, model, comparison, noise, time, request_id in added:
        summary.add(route, model, comparison, noise, time=time, request_id=request_id)
    return summary


def merge_all(*summaries: Summary) -> Summary:
    result = Summary()
    for each in summaries:
        result.merge(each)
    return result


@given(first=additions(), second=additions(), third=additions())
def test_merging_is_associative_and_equals_adding_in_one_go(
    first: list[Addition], second: list[Addition], third: list[Addition]
) -> None:
    a, b, c = map(summary_of, (first, second, third))
    before = copy.deepcopy((a, b, c))
    expected = summary_of([*first, *second, *third])
    assert merge_all(a, b, c) == expected
    assert merge_all(merge_all(a, b), c) == merge_all(a, merge_all(b, c)) == expected
    assert merge_all(c, a, b) == expected
    assert (a, b, c) == before


@pytest.mark.parametrize("step", [1, 7, -1])
def test_the_models_that_keep_an_entry_do_not_depend_on_the_order(step: int) -> None:
    added: list[Addition] = [
        ("r", f"m{number % 97:02}", COMPARISONS[number % 9], None, 0.0, f"{number}")
        for number in range(200)
    ]
    expected = summary_of(added)
    assert sorted(expected.routes["r"]) == [OTHER, *(f"m{n:02}" for n in range(MAX_MODELS))]
    assert summary_of(added[::step] if step < 0 else _by_steps(added, step)) == expected
    halves = summary_of(added[::2]), summary_of(added[1::2])
    assert merge_all(*halves) == merge_all(*halves[::-1]) == expected


def _by_steps(added: list[Addition], step: int) -> list[Addition]:
    return [each for start in range(step) for each in added[start::step]]


@pytest.mark.parametrize("rejected", REJECTED)
def test_names_of_models_that_may_not_exist_do_not_displace_models(rejected: Comparison) -> None:
    served: list[Addition] = [("r", "digits", COMPARISONS[0], None, 0.0, "")] * 5
    invented: list[Addition] = [("r", f"aa{n}", rejected, None, 0.0, "") for n in range(10, 56)]
    summary = summary_of([*served, *invented])
    assert {name: each.compared for name, each in summary.routes["r"].items()} == {
        "digits": 5,
        OTHER: 46,
    }
    assert summary_of([*invented, *served]) == summary
    assert merge_all(summary_of(invented), summary_of(served)) == summary


@pytest.mark.parametrize("rejected", REJECTED)
@pytest.mark.parametrize("served", [outcome(fp32("x", 1)), failure(Kind.BACKEND_ERROR)])
def test_a_request_that_only_one_server_rejected_keeps_the_name_of_its_model(
    rejected: Comparison, served: Outcome
) -> None:
    kind = Kind(rejected.expected_kind)
    summary = Summary()
    summary.add("r", "m", compare(NO_RULES, failure(kind), served))
    summary.add("r", "m", compare(NO_RULES, served, failure(kind)))
    assert list(summary.routes["r"]) == ["m"]


def verdict_on(
    summary: Summary, comparison: Comparison, noise: Comparison | None = None, model: str = "m"
) -> Verdict:
    """Add a comparison of ``model``, and return the verdict on it."""
    summary.add("r", model, comparison, noise)
    return summary.classify("r", model, comparison)


def test_the_verdict_on_a_rejected_request_comes_from_its_own_entry() -> None:
    summary = Summary()
    for rejected in REJECTED:
        expected = Verdict.DIFFERENT if rejected.cause else Verdict.EQUAL
        assert verdict_on(summary, rejected) is expected
    assert list(summary.routes["r"]) == [OTHER]


def test_a_summary_has_limited_numbers_of_models_outputs_and_intervals() -> None:
    summary = Summary()
    for number in range(1000):
        comparison = compare_values(1, 2, name=f"output-{999 - number}")
        summary.add("r", f"model-{number % 100}", comparison, time=1e9 + number * 1e5)
        summary.add("r", "model-0", comparison)
    models = summary.routes["r"]
    assert len(models) == MAX_MODELS + 1
    assert sum(each.compared for each in models.values()) == 2000
    assert len(models["model-0"].outputs) == MAX_OUTPUTS + 1
    assert sum(each.differences.compared for each in models["model-0"].outputs.values()) == 1010
    assert OTHER in models
    assert all(len(each.timeline.intervals) <= MAX_INTERVALS for each in models.values())


@given(added=additions())
def test_a_summary_round_trips_through_json(added: list[Addition]) -> None:
    summary = summary_of(added)
    text = json.dumps(summary.as_json(), allow_nan=False)
    assert Summary.from_json(json.loads(text)) == summary


def test_responses_and_outcomes_are_counted() -> None:
    summary = summary_of([("a", "m", each, None, 0, "") for each in COMPARISONS])
    model = summary.routes["a"]["m"]
    assert (model.compared, model.equal, model.known) == (9, 3, 1)
    assert model.unresolvable == 4  # NaN, a missing output, another outcome, and another class
    assert model.required_atol == pytest.approx(0.9999)
    assert model.outcomes == {"ok/ok": 7, "ok/timeout": 1, "timeout/timeout": 1}
    assert model.causes == {"outcome": 1}
    assert model.outputs["x"].causes == {"values": 4, "missing": 1}
    assert model.outputs["x"].known == 1
    assert model.outputs["x"].differences.differing == 4
    assert model.outputs["x"].differing_rows == 1
    stats = model.outputs["x"].stats
    assert (stats.elements, stats.failing, stats.without_relative) == (6, 5, 2)
    assert (stats.max_absolute, stats.sum_absolute, stats.max_relative) == (1, 4, 1)
    assert model.expected_latencies.count == 7


def test_the_worst_cases_are_kept_and_missing_outputs_do_not_displace_them() -> None:
    summary = Summary()
    missing = compare(NO_RULES, outcome(fp32("x", 1)), outcome())
    for number in range(20):
        summary.add("r", "m", compare_values(0, number), request_id=f"v{number}")
        summary.add("r", "m", missing, request_id=f"m{number:02}")
    worst = summary.routes["r"]["m"].outputs["x"].worst
    assert [each.request_id for each in worst] == ["m00", "v19", "v18", "v17", "v16", "v15"]
    assert len(worst) == MAX_WORST + 1


def test_noise_does_not_count_as_a_difference() -> None:
    summary = Summary()
    summary.add("r", "m", compare_values(1, 1), compare_values(1, 2))
    model = summary.routes["r"]["m"]
    assert (model.compared, model.equal, model.verdict()) == (1, 1, Verdict.EQUAL)
    assert model.outputs["x"].noise.differing == 1


def test_a_noisy_server_is_within_noise_and_a_broken_one_is_not() -> None:
    summary = Summary()
    for number in range(200):
        noise = compare_values(0, 0.001 * (1 + number % 7))
        similar = compare_values(0, 0.001 * (1 + number % 5))
        noisy = verdict_on(summary, similar, noise, "twin")
        broken = verdict_on(summary, compare_values(0, 0.1), noise, "broken")
    assert (noisy, broken) == (Verdict.WITHIN_NOISE, Verdict.DIFFERENT)
    models = summary.routes["r"]
    assert models["twin"].verdict() is Verdict.WITHIN_NOISE
    assert models["broken"].verdict() is Verdict.DIFFERENT
    assert summary.verdict() is Verdict.DIFFERENT


def test_a_single_difference_beyond_all_noise_is_different_at_once() -> None:
    summary = Summary()
    noise = compare_values(0, 0.001)
    for _ in range(500):
        summary.add("r", "m", noise, noise)
    assert verdict_on(summary, compare_values(0, math.nan)) is Verdict.DIFFERENT
    assert verdict_on(summary, compare_values(0, 0.001)) is Verdict.WITHIN_NOISE
    assert verdict_on(summary, compare_values(0, 0)) is Verdict.EQUAL


def test_errors_of_the_expected_server_are_noise_too() -> None:
    summary = Summary()
    failed = compare(NO_RULES, outcome(fp32("x", 1)), failure(Kind.TIMEOUT))
    for number in range(100):
        noise = failed if number % 2 else compare_values(1, 1)
        compared = failed if number % 2 else compare_values(1, 1)
        verdict = verdict_on(summary, compared, noise)
    assert verdict is Verdict.WITHIN_NOISE
    summary.add("r", "other", failed, compare_values(1, 1))
    assert summary.routes["r"]["other"].verdict() is Verdict.DIFFERENT


@pytest.mark.parametrize("value", [None, [], {}, {"format": 2, "routes": {}}, "{}"])
def test_another_format_is_rejected(value: Any) -> None:
    with pytest.raises(SummaryFormatError, match="not a summary of format 1"):
        Summary.from_json(value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("compared",), -1, r"routes\.a\.m\.compared: .*greater than or equal to 0"),
        (("compared",), "many", r"routes\.a\.m\.compared: .*integer"),
        (("required_atol",), "nan", r"required_atol"),
        (("timeline", "intervals"), {str(10**15): [1, 1]}, "after the year 9999"),
        (("timeline", "intervals"), {str(n): [1, 1] for n in range(999)}, "at most 128"),
        (("timeline", "doublings"), 99, "less than or equal to 40"),
        (("expected_latencies", "bins"), {"999": 1}, "less than or equal to 160"),
        (("expected_latencies", "bins"), {"1": -1}, "the count of 1 is -1"),
        (("outcomes",), {"x" * 999: 1}, "at most 256 characters"),
        (
            ("differences",),
            {"compared": 1, "distances": {"3": 2}},
            "2 comparisons differ, but only 1 were made",
        ),
        (("outputs", "x", "stats", "bins"), {"130": 1}, "less than 130"),
        (("outputs", "x", "stats", "bins"), {"3": 2**70}, "the count of 3"),
        (("outputs", "x", "worst"), [{}], r"worst\.0\.difference: Field required"),
        (("outputs",), {str(n): {} for n in range(99)}, "at most 65 items"),
    ],
)
def test_invalid_values_are_rejected_with_their_position(
    path: tuple[str, ...], value: Any, message: str
) -> None:
    document = json.loads(
        json.dumps(summary_of([("a", "m", COMPARISONS[1], None, 9, "")]).as_json())
    )
    target = document["routes"]["a"]["m"]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(SummaryFormatError, match=message):
        Summary.from_json(document)


@given(times=st.lists(st.floats(0, 1e10), max_size=40), split=st.integers(0, 40))
def test_a_timeline_is_bounded_and_does_not_depend_on_the_order(
    times: list[float], split: int
) -> None:
    def timeline(values: list[float]) -> Timeline:
        result = Timeline()
        for each in values:
            result.add(each, is_equal=int(each) % 2 == 0)
        return result

    expected = timeline(times)
    assert timeline(times[::-1]) == expected
    result = timeline(times[split:])
    result.merge(timeline(times[:split]))
    assert result == expected
    assert len(expected.intervals) <= MAX_INTERVALS
    assert sum(compared for compared, _ in expected.intervals.values()) == len(times)
    starts = {index * expected.seconds for index in expected.intervals}
    assert all(any(start <= each < start + expected.seconds for start in starts) for each in times)


@given(st.lists(st.floats(2e-6, 1e5), min_size=1, max_size=50), st.sampled_from((0.1, 0.5, 0.99)))
def test_quantiles_of_latencies_are_exact_within_ten_percent(
    durations: list[float], share: float
) -> None:
    latencies = Latencies()
    for each in durations:
        latencies.add(each)
    rank = min(max(math.ceil(share * len(durations)), 1), len(durations))
    assert latencies.quantile(share) == pytest.approx(sorted(durations)[rank - 1], rel=0.1)


def test_any_duration_is_counted() -> None:
    latencies = Latencies()
    for seconds in (0.0, -1.0, 1e-9, 1e12):
        latencies.add(seconds)
    assert latencies.count == 4
    assert Latencies().quantile(0.5) == 0

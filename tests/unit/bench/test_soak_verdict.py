"""The verdict of a soak: memory growth, unreleased resources, failures, and metrics."""

import dataclasses
import math

import pytest
from bench import soak_verdict

BEFORE = soak_verdict.State(80 * soak_verdict.MIB, 20, 2)


def samples(seconds: int, size: object) -> list[soak_verdict.Size]:
    """Return one sample per second. ``size`` maps a time to MiB."""
    return [soak_verdict.Size(at, int(size(at) * soak_verdict.MIB)) for at in range(seconds)]  # type: ignore[operator]


def problems(sizes: list[soak_verdict.Size], **after: int) -> list[str]:
    return soak_verdict.problems("gateway", BEFORE, sizes, dataclasses.replace(BEFORE, **after), "")


STEADY = {
    "flat": lambda at: 100,
    "warm-up": lambda at: 80 + 60 * (1 - math.exp(-at / 30)),
    "up and down": lambda at: 100 + 7 * math.sin(at / 3),
    "shrinking": lambda at: 200 - at / 10,
    "one more arena": lambda at: 100 + 7 * (at > 300),
    "growing maximum, constant minimum": lambda at: 100 + at / 20 * (at % 100 >= 10),
    "freed and allocated again": lambda at: 120 - 30 * (at % 100 < 70),
}
LEAKS = {
    "3 MiB per minute": lambda at: 100 + at / 20,
    "3 MiB per minute, with noise": lambda at: 100 + at / 20 + 5 * math.sin(at),
    "steps": lambda at: 100 + 10 * (at // 100),
}


@pytest.mark.parametrize("size", STEADY)
@pytest.mark.parametrize("seconds", [600, 1800])
def test_steady_memory_is_not_a_leak(size: str, seconds: int) -> None:
    assert problems(samples(seconds, STEADY[size])) == []


@pytest.mark.parametrize("size", LEAKS)
def test_growing_memory_is_a_leak(size: str) -> None:
    (text,) = problems(samples(600, LEAKS[size]))
    assert text.startswith("gateway: memory grows by")


def test_a_fast_leak_is_detected_in_a_minute() -> None:
    assert problems(samples(60, lambda at: 100 + at / 2))
    assert not problems(samples(60, lambda at: 100 + at / 10))


def test_fluctuating_descriptors_and_tasks_are_steady() -> None:
    states = [soak_verdict.State(1, 20 + at % 3, 5 + at % 2) for at in range(6)]
    assert soak_verdict.steady(states)
    assert soak_verdict.largest(states) == soak_verdict.State(1, 22, 6)
    assert not soak_verdict.steady([*states, soak_verdict.State(1, 24, 5)])
    assert not soak_verdict.steady([*states, soak_verdict.State(1, 20, 9)])


def test_growth_is_allowed_per_worker() -> None:
    sizes = samples(60, lambda at: 100 + at / 3)
    (text,) = soak_verdict.problems("gateway", BEFORE, sizes, BEFORE, "")
    assert "memory grows" in text
    assert soak_verdict.problems("gateway", BEFORE, sizes, BEFORE, "", workers=2) == []


def test_the_slope_excludes_the_warm_up() -> None:
    sizes = samples(600, lambda at: at if at < 200 else 200 + (at - 200) / 60)
    assert soak_verdict.slope(sizes) == pytest.approx(1.0)
    assert soak_verdict.growth(sizes) == pytest.approx(5.0, abs=0.1)
    assert soak_verdict.slope([]) == soak_verdict.slope(sizes[:1]) == 0


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"open_descriptors": 24}, "descriptors grew from 20 to 24"),
        ({"tasks": 6}, "tasks grew from 2 to 6"),
        ({"requests": 1}, "1 requests and 0 streams"),
        ({"streams": 2}, "0 requests and 2 streams"),
        ({"generations": 2}, "2 configurations are active"),
    ],
)
def test_resources_that_are_not_released_are_problems(after: dict[str, int], expected: str) -> None:
    (text,) = problems([], **after)
    assert expected in text
    assert problems([], open_descriptors=23, tasks=5) == []


def test_logged_bugs_are_a_problem() -> None:
    texts = soak_verdict.problems("gateway", BEFORE, [], BEFORE, "Traceback")
    assert texts == ["gateway logged bugs:\nTraceback"]


def test_unexplained_failures_are_errors() -> None:
    counts = soak_verdict.Counts()
    assert soak_verdict.errors(counts) == ["no request succeeded"]
    counts.good["a"] += 1
    counts.explained["cut"] += 5
    assert soak_verdict.errors(counts) == []
    counts.unexplained.update({"b": 2, "c": 3})
    assert soak_verdict.errors(counts) == ["3 times c", "2 times b"]


def test_the_table_has_memory_and_descriptors() -> None:
    text = soak_verdict.table("gateway", BEFORE, samples(600, LEAKS["3 MiB per minute"]), BEFORE)
    course = "100 103 106 109 112 115 118 121 124 127"
    resident = f"RSS 80 → 80 MiB (at most 130; {course}), slope +3.00 MiB/min"
    assert f"{resident}; descriptors 20 → 20" in text


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 9, False), (0, 10, True), (12, 13, True), (20, 21, True), (21, 22, False), (0, 99, True)],
)
def test_failures_during_an_outage_are_explained(start: float, end: float, expected: bool) -> None:
    outages = soak_verdict.Outages([soak_verdict.Outage("a", 10, 20)])
    assert outages.explain(start, end) is expected


def test_an_outage_without_an_end_explains_later_failures() -> None:
    outages = soak_verdict.Outages()
    assert not outages.explain(0, 1)
    outages.all.append(soak_verdict.Outage("a", 10))
    assert outages.explain(1e6, 1e6)
    outages.all[0].ended = 11
    assert not outages.explain(1e6, 1e6)


METRICS = """\
# HELP infergate_tasks Tasks
infergate_tasks 7.0
infergate_tasks_created 1.7e+09
infergate_config_reloads_total{result="ok"} 3.0
infergate_config_reloads_total{result="failed"} 1.0
infergate_hedges_total{backend="a b",outcome="won"} 2.0
"""


def test_the_samples_of_a_metric_are_added() -> None:
    assert soak_verdict.metric_sum(METRICS, "infergate_tasks") == 7
    assert soak_verdict.metric_sum(METRICS, "infergate_config_reloads_total") == 4
    assert soak_verdict.metric_sum(METRICS, "infergate_config_reloads_total", 'result="ok"') == 3
    assert soak_verdict.metric_sum(METRICS, "nothing") == 0
    assert "hedges 2;" in soak_verdict.features(METRICS)
    assert soak_verdict.features(METRICS).endswith("reloads 3; reloads refused 1")

"""The reports: text, HTML and JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparison_kit import NO_RULES, compare_values, failure, fp32, outcome
from infergate.comparison.model_summary import ModelSummary
from infergate.comparison.outcomes import Comparison, compare
from infergate.comparison.report import (
    build_report,
    duration_text,
    percent,
    report_json,
    round_up,
    share_text,
)
from infergate.comparison.report_html import MAX_CHARTED_OUTPUTS, render_html
from infergate.comparison.report_text import render_text
from infergate.comparison.rules import ComparisonRules, OutputRule
from infergate.comparison.summary import Summary, SummaryFormatError
from infergate.core.errors import Kind

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></style></svg><b>",
    "&lt;&amp;",
    "a\nb\tc\x1b[31m\u202e\x00",
)
VOID_TAGS = {"meta"}
FAILURES = [
    compare(NO_RULES, outcome(fp32("x", 1)), actual)
    for actual in (failure(Kind.TIMEOUT), outcome())
]
"""A comparison with an error, and a comparison with a missing output."""


class Page(HTMLParser):
    """Checks that tags are balanced, and collects elements, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID_TAGS:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def summary_of(*comparisons: Comparison) -> Summary:
    summary = Summary()
    for each in comparisons:
        summary.add("r", "m", each)
    return summary


def sample() -> Summary:
    summary = Summary()
    for number in range(1000):
        actual = 1.003 if number < 3 else 1.00001
        summary.add("r", "m", compare_values(1, actual), time=1.79e9 + number, request_id="id")
    return summary


@pytest.mark.parametrize(
    ("actual", "headline"),
    [
        ([], "No responses have been compared"),
        ([1.0], "100 % of 1 response equal within tolerance"),
        ([1.0] * 1_200, "100 % of 1,200 responses equal within tolerance"),
        (
            [1.0] * 9_999 + [1.003],
            "99.99 % of 10,000 responses equal within tolerance; 100 % with atol 0.003",
        ),
        (
            [1.0] * 98 + [1.003, math.nan],
            (
                "98.00 % of 100 responses equal within tolerance; 99.00 % with atol 0.003; "
                "1 differs with any atol"
            ),
        ),
        (
            [math.nan, math.nan],
            "0 % of 2 responses equal within tolerance; 2 differ with any atol",
        ),
    ],
)
def test_the_headline_states_the_result_and_the_tolerance_that_passes(
    actual: list[float], headline: str
) -> None:
    comparisons = {repr(each): compare_values(1, each) for each in actual}
    summary = summary_of(*(comparisons[repr(each)] for each in actual))
    assert build_report(summary).headline == headline
    assert headline in render_text(summary)
    assert headline in render_html(summary)
    assert report_json(summary)["headline"] == headline


def test_noise_is_part_of_the_headline() -> None:
    summary = Summary()
    for number in range(100):
        noise = compare_values(0, 0.01)
        summary.add("r", "m", compare_values(0, 0.01 if number else 0), noise)
    report = build_report(summary)
    assert report.headline == (
        "1.00 % of 100 responses equal within tolerance; 99.00 % within the noise of the old server"
    )
    assert "no more than the old server differed from itself" in report.conclusion
    text = render_text(summary)
    assert "99.00 % of responses differ, as do 100 % of 100 noise comparisons." in text


def test_the_atol_of_the_headline_passes() -> None:
    summary = summary_of(compare_values(0, 0.0123456))
    atol = re.search(r"with atol (\S+)$", build_report(summary).headline)
    assert atol
    rules = ComparisonRules(outputs={"x": OutputRule(atol=float(atol[1]))})
    assert compare_values(0, 0.0123456, rules).is_equal


def test_the_text_has_the_statistics_of_every_output() -> None:
    text = render_text(sample())
    assert text.startswith(
        "99.70 % of 1,000 responses equal within tolerance; 100 % with atol 0.00"
    )
    assert "for 1 of 1 models: m.\n" in text
    assert "The noise of the old server was not measured" in text
    assert re.search(r"x +different +0.30 % +- +0.003 .*atol 1e-05, rtol 0.0001", text)
    assert re.search(r"\[0\] +0 +1.0 +1.003 +0.003 +0.003 +id", text)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_outcomes_and_missing_outputs_are_in_every_report() -> None:
    summary = summary_of(*FAILURES)
    for report in (render_text(summary), render_html(summary)):
        assert "ok/timeout 1" in report
        assert "missing 1" in report
        assert "no output" in report


def test_the_text_says_if_differences_may_be_noise() -> None:
    summary = Summary()
    for number in range(100):
        noise = compare_values(1, 1) if number < 10 else None
        summary.add("r", "m", compare_values(1, 1 if number else 2), noise)
    assert "rule out that differences are noise: x of m (up to 47.36 %)" in render_text(summary)


def test_the_worst_models_and_outputs_come_first() -> None:
    summary = Summary()
    expected = outcome(fp32("a", 1), fp32("b", 1))
    summary.add("r", "a", compare_values(1, 1))
    summary.add("r", "b", compare(NO_RULES, expected, outcome(fp32("a", 1), fp32("b", 2))))
    report = build_report(summary)
    assert [model.name for model in report.models] == ["b", "a"]
    assert [output.name for output in report.models[0].outputs] == ["b", "a"]


def test_json_has_verdicts_and_the_summary() -> None:
    summary = sample()
    document = json.loads(json.dumps(report_json(summary), allow_nan=False))
    assert document["verdict"] == "different"
    assert Summary.from_json(document["summary"]) == summary
    (model,) = document["models"]
    (output,) = model["outputs"]
    assert (model["compared"], model["equal"], model["verdict"]) == (1000, 997, "different")
    assert (output["output"], output["differing"]) == ("x", 3)
    assert output["required_atol"] == pytest.approx(0.0029, rel=0.01)
    assert output["error_quantiles"]["p50"] == pytest.approx(1e-5, rel=1)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped(name: str) -> None:
    summary, noise = Summary(), compare_values(1, 1, name=name)
    for value in (2, math.nan):
        comparison = compare_values(1, value, name=name)
        summary.add(name, name, comparison, noise, time=1e9, request_id=name)
    page = Page(render_html(summary))
    assert set(page.tags) & {"script", "img", "link", "iframe"} == set()
    assert not [value for key, value in page.attributes if key.startswith("on")]
    text = "".join(page.texts)
    escaped = name.replace("\n", "\\n").replace("\t", "\\t").replace("\x1b", "\\u001b")
    escaped = escaped.replace("\u202e", "\\u202e").replace("\x00", "\\u0000")
    assert text.count(escaped) >= 5
    for report in (render_text(summary), render_html(summary)):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", report)


def test_texts_of_a_loaded_summary_are_escaped() -> None:
    summary = Summary.from_json(json.loads(json.dumps(_with_texts("<script>\x1b"))))
    page = Page(render_html(summary))
    assert "script" not in page.tags
    assert "\x1b" not in render_text(summary)


def _with_texts(text: str) -> object:
    document = sample().as_json()
    model = document["routes"]["r"]["m"]
    model["outcomes"] = {text: 1}
    model["causes"] = {text: 1}
    output = model["outputs"]["x"]
    output["causes"] = {text: 1}
    output["rules"] = output["datatypes"] = [text]
    for worst in output["worst"]:
        worst["cause"] = worst["request_id"] = text
        worst["difference"]["expected"] = worst["difference"]["actual"] = text
    return document


def test_the_page_loads_nothing_and_has_charts() -> None:
    text = render_html(sample())
    page = Page(text)
    assert not re.search(r"(?:src|href)\s*=\s*\"(?!#)|url\(|@import|https?:", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    # Agreement and latency: two charts of all models, two of the only model. Errors: one chart.
    assert page.tags.count("svg") == 5
    assert "prefers-color-scheme: dark" in text
    anchors = {value for key, value in page.attributes if key == "id"}
    targets = {value[1:] for key, value in page.attributes if key == "href"}
    assert targets == anchors


def test_noise_is_drawn_beside_differences() -> None:
    summary = Summary()
    summary.add("r", "m", compare_values(1, 2), compare_values(1, 1.5))
    text = render_html(summary)
    assert "noise of the old server" in text
    bars = re.findall(r'<rect class="(\w+)".*? height="([\d.]+)">', text)
    assert [kind for kind, _ in bars] == ["new", "old", "new"]  # errors, noise, differences
    assert all(float(height) > 5 for _, height in bars)


def test_a_page_is_bounded() -> None:
    summary = Summary()
    for number in range(300):
        comparison = compare_values(1, 2, name=f"o{number % 60}")
        summary.add(f"r{number // 60}", "m", comparison, time=1e9)
    page = Page(render_html(summary))
    assert page.tags.count("details") == MAX_CHARTED_OUTPUTS
    assert page.tags.count("section") == 1 + 5


@given(
    value=st.one_of(
        st.floats(0, 1e300), st.sampled_from((0.0, math.inf, 5e-324, 1.0, 1e-5, 9.99e-3))
    )
)
def test_a_tolerance_is_rounded_up(value: float) -> None:
    rounded = float(round_up(value))
    assert value <= rounded
    assert rounded <= value * 1.11 or value < 1e-300


@given(total=st.integers(1, 10**9), data=st.data())
def test_a_share_is_never_rounded_up_to_all_or_down_to_nothing(
    total: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, total))
    text = percent(count, total)
    value = float(text.removesuffix(" %"))
    assert (text == "0 %") == (count == 0)
    assert (text == "100 %") == (count == total)
    assert value <= 100 * count / total + 1e-9
    assert 100 * count / total - value <= 0.01 + 1e-9
    assert share_text(count / total) != "0 %" or count == 0 or count / total < 1e-11


def numbers_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of every number in JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        if isinstance(each, (dict, list)):
            yield from numbers_in(each)
        elif isinstance(each, (int, float)):
            yield value, key


@given(
    replacements=st.dictionaries(
        st.integers(0, 999), st.sampled_from((0, 1, 3, 7, 2**63 - 1, 1e300, 0.5)), min_size=1
    )
)
def test_every_summary_that_is_accepted_can_be_rendered(replacements: dict[int, Any]) -> None:
    document = _mixed_summary().as_json()
    numbers = list(numbers_in(document["routes"]))
    for position, number in replacements.items():
        container, key = numbers[position % len(numbers)]
        container[key] = number
    try:
        summary = Summary.from_json(document)
    except SummaryFormatError:
        return
    Page(render_html(summary))
    assert render_text(summary)
    json.dumps(report_json(summary), allow_nan=False)


def _mixed_summary() -> Summary:
    summary = Summary()
    for value in (1.0, 2.0, math.nan):
        noise = compare_values(1, 1.5)
        summary.add("r", "m", compare_values(1, value), noise, time=1e9, request_id="id")
    summary.merge(summary_of(*FAILURES))
    return summary


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 ms"), (0.000123, "0.123 ms"), (0.5, "500 ms"), (90.0, "90 s")]
)
def test_durations_have_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_an_empty_model_can_be_rendered() -> None:
    summary = Summary({"r": {"m": ModelSummary()}})
    assert "No responses have been compared" in render_text(summary)
    Page(render_html(summary))


@pytest.mark.parametrize("make_summary", [sample, _mixed_summary])
def test_text_tables_fit_80_columns(make_summary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [line for line in render_text(make_summary()).splitlines() if line.startswith("  ")]
    assert rows
    assert max(map(len, rows)) <= 80

"""The content of a report, which ``report_text`` and ``report_html`` render."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from infergate.comparison.error_stats import ZERO_BIN, bin_limit
from infergate.comparison.latencies import Latencies
from infergate.comparison.model_summary import ModelSummary, OutputSummary, WorstCase
from infergate.comparison.summary import Summary
from infergate.comparison.verdict import (
    VERDICTS,
    Judgement,
    Verdict,
    judge,
    noise_limit,
    worst_verdict,
)
from infergate.core.name_rules import escape_unsafe
from infergate.core.records import record

ERROR_QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
LATENCY_QUANTILES: Final = (0.5, 0.9, 0.99)
_MAX_LISTED: Final = 5
VERDICT_TEXTS: Final[Mapping[Verdict, str]] = {
    Verdict.EQUAL: "equal",
    Verdict.WITHIN_NOISE: "within noise",
    Verdict.DIFFERENT: "different",
}


@record
class OutputReport:
    """An output with the verdict on it."""

    name: str
    judgement: Judgement
    summary: OutputSummary


@record
class ModelReport:
    """A model with its verdict, the judgement on its outcomes, and its outputs, the worst first."""

    route: str
    name: str
    verdict: Verdict
    outcomes: Judgement
    summary: ModelSummary
    outputs: tuple[OutputReport, ...]


@record
class ComparisonReport:
    """The content of a report. ``total`` aggregates all models. The outputs of ``total`` have no
    meaning, because outputs of different models may have the same name. The worst models come
    first."""

    verdict: Verdict
    headline: str
    conclusion: str
    notes: tuple[str, ...]
    total: ModelSummary
    models: tuple[ModelReport, ...]


def build_report(summary: Summary) -> ComparisonReport:
    """Return the report on ``summary``."""
    total = ModelSummary()
    models = []
    for route, entries in summary.routes.items():
        for name, model in entries.items():
            total.merge(model)
            models.append(_model_report(route, name, model))
    models.sort(key=lambda each: (-VERDICTS.index(each.verdict), each.route, each.name))
    verdict = worst_verdict(*(each.verdict for each in models))
    return ComparisonReport(
        verdict,
        headline(models),
        _conclusion(verdict, models),
        tuple(_notes(models)),
        total,
        tuple(models),
    )


def headline(models: Sequence[ModelReport]) -> str:
    """Return the result in one sentence."""
    count = sum(model.summary.compared for model in models)
    if not count:
        return "No responses have been compared"
    equal = sum(model.summary.equal for model in models)
    responses = "response" if count == 1 else "responses"
    parts = [f"{percent(equal, count)} of {count:,} {responses} equal within tolerance"]
    noisy = [model.summary for model in models if model.verdict is Verdict.WITHIN_NOISE]
    within_noise = sum(each.compared - each.equal for each in noisy)
    if within_noise:
        parts.append(f"{percent(within_noise, count)} within the noise of the old server")
    different = [model.summary for model in models if model.verdict is Verdict.DIFFERENT]
    unresolvable = sum(each.unresolvable for each in different)
    if count - equal - within_noise > unresolvable:
        atol = max(each.required_atol for each in different)
        parts.append(f"{percent(count - unresolvable, count)} with atol {round_up(atol)}")
    if unresolvable:
        differ = "differs" if unresolvable == 1 else "differ"
        parts.append(f"{unresolvable:,} {differ} with any atol")
    return "; ".join(parts)


def report_json(summary: Summary) -> dict[str, Any]:
    """Return the report as JSON values. Its member ``summary`` is ``Summary.as_json()``."""
    report = build_report(summary)
    return {
        "verdict": report.verdict.value,
        "headline": report.headline,
        "conclusion": report.conclusion,
        "notes": list(report.notes),
        "models": [_model_json(each) for each in report.models],
        "summary": summary.as_json(),
    }


def percent(count: int, total: int) -> str:
    """Return a share in percent, rounded down to two decimal places. The text has more decimal
    places if two would show 0 %."""
    if count in (0, total):
        return f"{100 * count // total if total else 0} %"
    for digits in range(2, 10):
        text = f"{100 * 10**digits * count // total / 10**digits:.{digits}f}"
        if float(text):
            break
    return f"{text} %"


def share_text(share: float) -> str:
    """Return a share in percent, rounded like ``percent``."""
    return percent(round(share * 10**12), 10**12)


def round_up(value: float) -> str:
    """Return ``value`` rounded up to two significant digits, so that the text is a sufficient
    tolerance."""
    if value in (0, math.inf):
        return f"{value:g}"
    text = f"{value:.1e}"
    if float(text) < value:
        step = 10.0 ** (math.floor(math.log10(value)) - 1)
        text = f"{value + step / 2:.1e}"
    return f"{float(text):g}"


def printable(text: str) -> str:
    """Return a name or value on one line, without control characters."""
    return escape_unsafe(text.replace("\n", "\\n").replace("\t", "\\t"))


def duration_text(seconds: float) -> str:
    """Return a duration with three significant digits."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def atol_text(output: OutputSummary) -> str:
    """Return the smallest ``atol`` with which the comparisons of an output pass, and the number of
    comparisons that fail with every ``atol``."""
    if not output.unresolvable:
        return round_up(output.required_atol)
    if not output.required_atol:
        return "none"
    return f"{round_up(output.required_atol)}, none for {output.unresolvable:,}"


def size_text(size: float) -> str:
    """Return an error or a tolerance with two significant digits."""
    return f"{size:.2g}"


def rows_text(output: OutputSummary) -> str:
    """Return sentences about the largest elements and the cosine similarity of rows."""
    parts = []
    if output.differing_rows:
        parts.append(
            f"{output.differing_rows:,} of {output.rows:,} rows have different largest elements."
        )
    if output.min_cosine is not None:
        parts.append(
            f"The smallest cosine similarity of {output.rows:,} rows is {output.min_cosine:.6g}."
        )
    return " ".join(parts)


OUTPUT_HEADINGS: Final = (
    "output", "verdict", "differ", "noise", "smallest atol",
    *(f"p{100 * share:g} error" for share in ERROR_QUANTILES), "max error", "rule",
)  # fmt: skip


def output_row(output: OutputReport) -> list[str]:
    """Return an output as text, in the columns of OUTPUT_HEADINGS."""
    summary = output.summary
    return [
        printable(output.name),
        VERDICT_TEXTS[output.judgement.verdict],
        share_text(summary.differences.share),
        share_text(summary.noise.share) if summary.noise.compared else "-",
        atol_text(summary),
        *(size_text(summary.stats.quantile(share)) for share in ERROR_QUANTILES),
        size_text(summary.stats.quantile(1)),
        "; ".join(map(printable, sorted(summary.rules))),
    ]


CASE_HEADINGS: Final = ("index", "response", "old", "new", "error", "smallest atol", "request")


def case_row(case: WorstCase) -> tuple[str, ...]:
    """Return a worst case as text, in the columns of CASE_HEADINGS."""
    each = case.difference
    return (
        str(list(each.index)) if each.index else case.cause,
        str(each.response),
        printable(each.expected),
        printable(each.actual),
        "-" if each.error == math.inf else size_text(each.error),
        "none" if each.required_atol == math.inf else round_up(each.required_atol),
        printable(case.request_id),
    )


def causes_text(causes: Mapping[str, int]) -> str:
    """Return counts by name, the largest first, such as ``values 12, missing 3``."""
    largest = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{printable(name)} {count:,}" for name, count in largest)


def judgement_text(output: OutputReport) -> str:
    """Return the reason for the verdict on an output, in one sentence."""
    judgement, noise = output.judgement, output.summary.noise
    share, noise_share = share_text(judgement.share), share_text(judgement.noise_share)
    if judgement.verdict is Verdict.EQUAL:
        return "No response differs."
    if not noise.compared:
        return f"{share} of responses differ; the noise was not measured."
    compared = f"{noise.compared:,} noise comparisons"
    if judgement.verdict is Verdict.WITHIN_NOISE:
        return f"{share} of responses differ, as do {noise_share} of {compared}."
    if judgement.distance_bin == ZERO_BIN:
        return f"{share} of responses differ, but only {noise_share} of {compared}."
    distance = bin_limit(judgement.distance_bin) / 2
    return (
        f"{share} of responses differ by {distance:.2g} or more, but only {noise_share} of "
        f"{compared}."
    )


def _model_report(route: str, name: str, model: ModelSummary) -> ModelReport:
    outputs = [OutputReport(key, each.judge(), each) for key, each in model.outputs.items()]
    outputs.sort(key=lambda each: (-VERDICTS.index(each.judgement.verdict), each.name))
    outcomes = judge(model.differences, model.noise)
    return ModelReport(route, name, model.verdict(), outcomes, model, tuple(outputs))


def _conclusion(verdict: Verdict, models: list[ModelReport]) -> str:
    if not models:
        return ""
    if verdict is Verdict.EQUAL:
        return "The new server gave the same answers as the old server."
    if verdict is Verdict.WITHIN_NOISE:
        return (
            "The new server differed from the old server no more than the old server differed "
            "from itself."
        )
    names = [printable(model.name) for model in models if model.verdict is Verdict.DIFFERENT]
    return (
        f"The new server and the old server gave different answers for {len(names)} of "
        f"{len(models)} models: {_join_names(names)}."
    )


def _notes(models: list[ModelReport]) -> Iterator[str]:
    known = sum(model.summary.known for model in models)
    if known:
        yield f"{known:,} of the equal responses have known differences, which do not count."
    if models and not any(model.summary.noise.compared for model in models):
        yield "The noise of the old server was not measured, so every difference counts."
    doubtful = [
        f"{printable(output.name)} of {printable(model.name)} (up to {share_text(limit)})"
        for model in models
        for output in model.outputs
        if (limit := noise_limit(output.summary.differences, output.summary.noise))
    ]
    if doubtful:
        yield (
            f"Too few noise comparisons to rule out that differences are noise: "
            f"{_join_names(doubtful)}."
        )


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")


def _model_json(model: ModelReport) -> dict[str, Any]:
    summary = model.summary
    return {
        "route": model.route,
        "model": model.name,
        "verdict": model.verdict.value,
        "compared": summary.compared,
        "equal": summary.equal,
        "known": summary.known,
        "required_atol": summary.required_atol,
        "unresolvable": summary.unresolvable,
        "outcomes": dict(summary.outcomes),
        "latency_seconds": {
            "expected": _latencies_json(summary.expected_latencies),
            "actual": _latencies_json(summary.actual_latencies),
        },
        "outputs": [_output_json(each) for each in model.outputs],
    }


def _latencies_json(latencies: Latencies) -> dict[str, float]:
    return {f"p{100 * share:g}": latencies.quantile(share) for share in LATENCY_QUANTILES}


def _output_json(output: OutputReport) -> dict[str, Any]:
    summary, judgement = output.summary, output.judgement
    quantiles = {f"p{100 * share:g}": summary.stats.quantile(share) for share in ERROR_QUANTILES}
    return {
        "output": output.name,
        "verdict": judgement.verdict.value,
        "reason": judgement_text(output),
        "compared": summary.differences.compared,
        "differing": summary.differences.differing,
        "known": summary.known,
        "noise_compared": summary.noise.compared,
        "noise_differing": summary.noise.differing,
        "required_atol": summary.required_atol,
        "unresolvable": summary.unresolvable,
        "error_quantiles": {
            key: None if value == math.inf else value for key, value in quantiles.items()
        },
    }

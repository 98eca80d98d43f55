"""The report as one HTML page, which loads nothing and runs no scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final

from infergate.comparison.charts import ChartAxis, ChartSeries, bar_chart, decades, line_chart
from infergate.comparison.error_stats import INFINITE_BIN, ZERO_BIN, bin_limit
from infergate.comparison.latencies import Latencies
from infergate.comparison.model_summary import ModelSummary
from infergate.comparison.report import (
    CASE_HEADINGS,
    OUTPUT_HEADINGS,
    VERDICT_TEXTS,
    ComparisonReport,
    ModelReport,
    OutputReport,
    build_report,
    case_row,
    causes_text,
    duration_text,
    judgement_text,
    output_row,
    percent,
    printable,
    round_up,
    rows_text,
    size_text,
)
from infergate.comparison.summary import Summary
from infergate.comparison.timeline import MAX_TIME, Timeline
from infergate.comparison.verdict import DifferenceCounts, Verdict

MAX_CHARTED_OUTPUTS: Final = 100
"""Maximum number of outputs with charts and worst cases. Outputs with the worst verdicts come
first."""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_NUMBER: Final = ' class="number"'
_LONG_PERIOD: Final = 24 * 3600
_CURVE: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_TIME_TICKS: Final = 5


def render_html(summary: Summary) -> str:
    """Return the report on ``summary`` as an HTML document. The first screen summarizes
    the result; tables and charts for each model and output follow."""
    report = build_report(summary)
    style = (files("infergate.comparison") / "report.css").read_text("utf-8")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report.headline)}</title>",
        f"<style>\n{style}</style>\n</head>\n<body>",
        *_first_screen(report),
        *_models(report),
    ]
    charted = 0
    for number, model in enumerate(report.models):
        parts += _model(model, number, MAX_CHARTED_OUTPUTS - charted)
        charted += len(model.outputs)
    return "\n".join([*parts, "</body>\n</html>\n"])


def _first_screen(report: ComparisonReport) -> Iterator[str]:
    total = report.total
    yield f'<header class="{report.verdict.value}">'
    yield '<p class="label">Comparison of the new server with the old server</p>'
    yield f"<h1>{_text(report.headline)}</h1>"
    yield f'<p class="lead">{_text(report.conclusion)}</p>'
    facts = [
        ("verdict", VERDICT_TEXTS[report.verdict]),
        ("responses compared", f"{total.compared:,}"),
        ("equal", percent(total.equal, total.compared)),
        ("models", f"{len(report.models)}"),
        ("noise comparisons", f"{total.noise.compared:,}"),
    ]
    if total.timeline.intervals:
        facts.append(("period", _period(total.timeline)))
    if total.expected_latencies.count:
        facts += [
            (f"{name} server, p50 and p99", _latency_text(latencies))
            for name, latencies in (
                ("old", total.expected_latencies),
                ("new", total.actual_latencies),
            )
        ]
    yield "<dl>"
    yield from (f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts)
    yield "</dl>"
    yield from (f'<p class="note">{_text(note)}</p>' for note in report.notes)
    yield f'<div class="charts">{_agreement(total.timeline)}{_latencies(total)}</div>'
    yield "</header>"


def _models(report: ComparisonReport) -> Iterator[str]:
    if not report.models:
        return
    headings = (
        "route",
        "model",
        "verdict",
        "responses",
        "equal",
        "equal with some atol",
        "smallest atol",
    )
    rows = []
    for number, model in enumerate(report.models):
        summary = model.summary
        rows.append(
            [
                model.route,
                _Markup(f'<a href="#model-{number}">{_text(model.name)}</a>'),
                _verdict(model.verdict),
                f"{summary.compared:,}",
                percent(summary.equal, summary.compared),
                percent(summary.compared - summary.unresolvable, summary.compared),
                round_up(summary.required_atol),
            ]
        )
    yield f"<section><h2>Models</h2>{_table(headings, rows, range(3, 7))}</section>"


def _model(model: ModelReport, number: int, max_charted: int) -> Iterator[str]:
    summary = model.summary
    yield f'<section id="model-{number}">'
    yield f"<h2>{_text(model.name)} <span class='label'>on route {_text(model.route)}</span></h2>"
    facts = [f"{percent(summary.equal, summary.compared)} of {summary.compared:,} responses equal."]
    if summary.known:
        facts.append(f"{summary.known:,} of the equal responses have known differences.")
    if summary.causes:
        facts.append(f"Different outcomes or numbers of responses: {causes_text(summary.causes)}.")
        facts.append(f"Outcomes, old/new: {causes_text(summary.outcomes)}.")
    yield f"<p>{_verdict(model.verdict)}. {_text(' '.join(facts))}</p>"
    yield f'<div class="charts">{_agreement(summary.timeline)}{_latencies(summary)}</div>'
    if model.outputs:
        yield _table(OUTPUT_HEADINGS, [_output_row(each) for each in model.outputs], range(2, 10))
    for output in model.outputs[: max(0, max_charted)]:
        yield from _output(output)
    yield "</section>"


def _output_row(output: OutputReport) -> list[str]:
    cells = output_row(output)
    cells[1] = _verdict(output.judgement.verdict)
    return cells


def _output(output: OutputReport) -> Iterator[str]:
    summary = output.summary
    is_open = output.judgement.verdict is Verdict.DIFFERENT
    yield f"<details{' open' if is_open else ''}>"
    yield f"<summary><b>{_text(output.name)}</b>: {_text(judgement_text(output))}</summary>"
    datatypes, rules = ", ".join(sorted(summary.datatypes)), "; ".join(sorted(summary.rules))
    facts = [f"Datatype {datatypes}; rule: {rules}."]
    if summary.causes:
        facts.append(f"Causes: {causes_text(summary.causes)}.")
    if summary.known:
        facts.append(f"{summary.known:,} differences are known.")
    stats = summary.stats
    facts.append(f"{stats.failing:,} of {stats.elements:,} elements exceed the tolerance.")
    if stats.bins:
        facts.append(
            f"Mean error {size_text(stats.mean_absolute)}, mean relative error "
            f"{size_text(stats.mean_relative)}, maximum relative error "
            f"{size_text(stats.max_relative)}."
        )
    facts.append(rows_text(summary))
    yield f"<p>{_text(' '.join(filter(None, facts)))}</p>"
    charts = _errors(stats.bins) + _distances(summary.differences, summary.noise)
    yield f'<div class="charts">{charts}</div>'
    if summary.worst:
        rows = [case_row(case) for case in summary.worst]
        yield f"<h3>Worst cases</h3>{_table(CASE_HEADINGS, rows, range(1, 2))}"
    yield "</details>"


def _agreement(timeline: Timeline) -> str:
    if not timeline.intervals:
        return ""
    first, last = min(timeline.intervals), max(timeline.intervals) + 1
    points = [
        ((index + 0.5) * timeline.seconds, 100 * equal / compared)
        for index, (compared, equal) in sorted(timeline.intervals.items())
        if compared
    ]
    lowest = min(value for _, value in points)
    low = next(limit for limit in (99.0, 90.0, 0.0) if lowest >= limit)
    middle = (low + 100) / 2
    times = [
        timeline.seconds * (first + (last - first) * tick / (_TIME_TICKS - 1))
        for tick in range(_TIME_TICKS)
    ]
    style = "%m-%d %H:%M" if times[-1] - times[0] > _LONG_PERIOD else "%H:%M:%S"
    x_axis = ChartAxis("time (UTC)", [(each, _time(each, style)) for each in times])
    y_axis = ChartAxis("", [(each, f"{each:g} %") for each in (low, middle, 100.0)])
    return line_chart("Responses equal", x_axis, y_axis, [ChartSeries("new", "equal", points)])


def _latencies(summary: ModelSummary) -> str:
    if not summary.expected_latencies.count or not summary.actual_latencies.count:
        return ""
    lines = [
        ChartSeries(kind, kind, [(latencies.quantile(share), 100 * share) for share in _CURVE])
        for kind, latencies in (
            ("old", summary.expected_latencies),
            ("new", summary.actual_latencies),
        )
    ]
    durations = [duration for line in lines for duration, _ in line.points]
    x_axis = decades("latency", durations, duration_text)
    y_axis = ChartAxis("", [(each, f"{each:g} %") for each in (0.0, 25.0, 50.0, 75.0, 100.0)])
    return line_chart("Share of responses by latency", x_axis, y_axis, lines)


def _errors(bins: Counter[int]) -> str:
    """Return a chart of the elements by absolute error."""
    if not bins:
        return ""
    shown = _shown_bins(bins)
    points = [(float(shown.index(each)), float(count)) for each, count in sorted(bins.items())]
    return bar_chart(
        "Elements by error",
        "absolute error, less than",
        [_bin_label(each) for each in shown],
        [ChartSeries("new", "elements", points)],
    )


def _distances(differences: DifferenceCounts, noise: DifferenceCounts) -> str:
    """Return a chart of the share of responses that differ, by the size of the difference, beside
    the noise."""
    if not differences.differing or not noise.compared:
        return ""
    shown = _shown_bins(differences.distances + noise.distances)
    bars = [
        ChartSeries(
            kind,
            name,
            [
                (float(shown.index(each)), 100 * count / counts.compared)
                for each, count in sorted(counts.distances.items())
            ],
        )
        for kind, name, counts in (
            ("old", "noise of the old server", noise),
            ("new", "new server", differences),
        )
    ]
    labels = [_bin_label(each) for each in shown]
    return bar_chart("Differing responses in percent", "size, less than", labels, bars)


def _shown_bins(bins: Counter[int]) -> list[int]:
    """Return the bins of a chart: all bins from the first to the last bin with errors, and the bins
    of zero and infinite errors if they are used."""
    finite = [each for each in bins if each not in (ZERO_BIN, INFINITE_BIN)]
    shown = list(range(min(finite), max(finite) + 1)) if finite else []
    before, after = ([each] if each in bins else [] for each in (ZERO_BIN, INFINITE_BIN))
    return [*before, *shown, *after]


def _bin_label(index: int) -> str:
    return {ZERO_BIN: "0", INFINITE_BIN: "\u221e"}.get(index) or size_text(bin_limit(index))


def _period(timeline: Timeline) -> str:
    first, last = min(timeline.intervals), max(timeline.intervals) + 1
    return " to ".join(_time(index * timeline.seconds, "%Y-%m-%d %H:%M") for index in (first, last))


def _time(seconds: float, style: str) -> str:
    return datetime.fromtimestamp(min(seconds, MAX_TIME), UTC).strftime(style)


def _latency_text(latencies: Latencies) -> str:
    return " / ".join(duration_text(latencies.quantile(share)) for share in (0.5, 0.99))


class _Markup(str):
    __slots__ = ()


def _verdict(verdict: Verdict) -> _Markup:
    return _Markup(f'<b class="{verdict.value}">{VERDICT_TEXTS[verdict]}</b>')


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Container[int]) -> str:
    """Return a table. ``numbers`` has the indexes of columns with numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        elements = (
            f"<{tag}{_NUMBER if index in numbers else ''}>"
            f"{cell if isinstance(cell, _Markup) else _text(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(elements)}</tr>"

    body = "\n".join(row(cells, "td") for cells in rows)
    return f'<div class="scroll"><table>{row(headings, "th")}\n{body}</table></div>'


def _text(text: str) -> str:
    return escape(printable(text))

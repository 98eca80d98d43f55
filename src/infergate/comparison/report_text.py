"""The report as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from infergate.comparison.report import (
    CASE_HEADINGS,
    LATENCY_QUANTILES,
    OUTPUT_HEADINGS,
    VERDICT_TEXTS,
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
    rows_text,
)
from infergate.comparison.summary import Summary
from infergate.comparison.verdict import Verdict
from infergate.terminal import Table, align, plain_text


def render_text(summary: Summary) -> str:
    """Return the report on ``summary``: the result in one sentence, and the models with their
    outputs. The worst models and outputs come first."""
    report = build_report(summary)
    lines = [f"{report.headline}."]
    if report.models:
        lines.append(report.conclusion)
    lines += report.notes
    parts = ["".join(f"{line}\n" for line in lines)]
    for model in report.models:
        parts += _model_text(model)
    return "\n".join(parts)


def _model_text(model: ModelReport) -> Iterator[str]:
    title = f"Route {printable(model.route)}, model {printable(model.name)}"
    yield f"{title}\n{align(_model_facts(model))}"
    if model.outputs:
        rows = [output_row(output) for output in model.outputs]
        yield plain_text(Table("Outputs", OUTPUT_HEADINGS, rows, frozenset(range(2, 10))))
    for output in model.outputs:
        if output.judgement.verdict is not Verdict.EQUAL or output.summary.known:
            yield _output_text(output)


def _model_facts(model: ModelReport) -> list[tuple[str, str]]:
    summary = model.summary
    equal = f"{percent(summary.equal, summary.compared)} of {summary.compared:,} equal"
    facts = [("verdict", VERDICT_TEXTS[model.verdict]), ("responses", equal)]
    if summary.known:
        facts.append(("known differences only", f"{summary.known:,}"))
    if summary.causes:
        facts.append(("not equal", causes_text(summary.causes)))
        facts.append(("outcomes, old/new", causes_text(summary.outcomes)))
    if summary.expected_latencies.count:
        latencies = (summary.expected_latencies, summary.actual_latencies)
        for share in LATENCY_QUANTILES:
            old, new = (duration_text(each.quantile(share)) for each in latencies)
            facts.append((f"latency, p{100 * share:g}", f"old {old}, new {new}"))
    return facts


def _output_text(output: OutputReport) -> str:
    summary = output.summary
    lines = [f"Output {printable(output.name)}: {judgement_text(output)}"]
    if summary.known:
        lines.append(f"{summary.known:,} responses have a known difference.")
    lines.append(f"Causes: {causes_text(summary.causes)}")
    if rows := rows_text(summary):
        lines.append(rows)
    cases = [CASE_HEADINGS, *map(case_row, summary.worst)]
    return "\n  ".join(lines) + "\n" + align(cases)

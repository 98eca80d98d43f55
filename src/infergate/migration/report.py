"""Reads, computes and renders the summaries that ``infergate report`` shows, such as the summary of
a replay or of stored mismatches."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from infergate.comparison.outcomes import compare
from infergate.comparison.report import report_json
from infergate.comparison.report_html import render_html
from infergate.comparison.report_text import render_text
from infergate.comparison.rules import ComparisonRules
from infergate.comparison.summary import Summary, SummaryFormatError
from infergate.comparison.verdict import Verdict
from infergate.core.limits import MIB
from infergate.migration.replay.entries import (
    DamagedFilePart,
    read_entries,
    start_time,
    valid_outcome,
)
from infergate.migration.replay.result import ReplayResult
from infergate.recording.format import RecordingError
from infergate.recording.reader import recording_files

__all__ = ["RecordingError", "Summary", "SummaryFormatError"]
_MAX_JSON_BYTES: Final = 256 * MIB


def read_result(file: Path) -> ReplayResult:
    """Return the replay result in ``file``. Raises SummaryFormatError and OSError."""
    with file.open("rb") as opened:
        data = opened.read(_MAX_JSON_BYTES + 1)
    if len(data) > _MAX_JSON_BYTES:
        raise SummaryFormatError(f"{file} has more than {_MAX_JSON_BYTES} bytes")
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SummaryFormatError(f"{file} is not JSON: {error}") from None
    try:
        return ReplayResult.from_json(value)
    except SummaryFormatError as error:
        raise SummaryFormatError(f"{file}: {error}") from None


def summarize_mismatches(folder: Path) -> tuple[Summary, list[DamagedFilePart]]:
    """Compare the stored outcomes of the inferences in ``folder`` by the default rules, and return
    the summary and the damaged parts. Raises RecordingError."""
    summary, rules = Summary(), ComparisonRules()
    damaged: list[DamagedFilePart] = []
    for entry in read_entries(recording_files([str(folder)])):
        if isinstance(entry, DamagedFilePart):
            damaged.append(entry)
            continue
        exchange = entry.exchange
        for outcome in entry.further_outcomes.values():
            summary.add(
                exchange.route,
                exchange.request.model,
                compare(rules, valid_outcome(exchange.outcome), valid_outcome(outcome)),
                time=start_time(entry),
                request_id=exchange.request_id,
            )
    return summary, damaged


def is_different(summary: Summary) -> bool:
    """Return whether responses differ by more than the noise of the server."""
    return summary.verdict() is Verdict.DIFFERENT


def render(summary: Summary, style: str) -> str:
    """Return the report on ``summary`` as ``text``, ``html`` or ``json``."""
    if style == "html":
        return render_html(summary)
    if style == "json":
        return json.dumps(report_json(summary), indent=2)
    return render_text(summary)


def write_file(file: Path, parts: Iterable[str]) -> None:
    """Write ``parts`` to ``file``. An existing file is replaced only after all parts are written.
    Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.writelines(parts)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

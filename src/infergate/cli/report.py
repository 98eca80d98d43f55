"""``infergate report``: prints the comparisons of a running gateway, of a replay, or of stored
mismatches."""

from __future__ import annotations

import sys
from typing import Final

from infergate.cli.admin_client import AdminQueryError, get_json
from infergate.cli.command import Arguments
from infergate.migration.report import (
    RecordingError,
    Summary,
    SummaryFormatError,
    is_different,
    read_result,
    render,
    summarize_mismatches,
    write_file,
)

_EQUAL, _DIFFERENT, _ERROR = 0, 1, 2
_COMPARISONS: Final = "/comparisons"


def run(arguments: Arguments) -> int:
    """Print the report that ``arguments`` select, or write it as HTML. Return the exit code."""
    try:
        summary = _summary(arguments)
        if arguments.json:
            print(render(summary, "json"))
        if arguments.html is not None:
            write_file(arguments.html, [render(summary, "html")])
        if not arguments.json and arguments.html is None:
            print(render(summary, "text"), end="")
    except (AdminQueryError, RecordingError, SummaryFormatError, OSError) as error:
        print(f"infergate report: {error}", file=sys.stderr)
        return _ERROR
    return _DIFFERENT if is_different(summary) else _EQUAL


def _summary(arguments: Arguments) -> Summary:
    if arguments.replay is not None:
        return read_result(arguments.replay).summary
    if arguments.mismatches is not None:
        summary, damaged = summarize_mismatches(arguments.mismatches)
        for part in damaged:
            print(f"infergate report: {part.text}", file=sys.stderr)
        return summary
    return Summary.from_json(get_json(arguments.admin, _COMPARISONS))

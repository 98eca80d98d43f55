"""Formats the matrix for a terminal and as docs/fidelity.md."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from infergate.matrix.cases import CASES
from infergate.matrix.findings import Finding, Mark
from infergate.matrix.gateways import BACKENDS
from infergate.matrix.run import ClientResult

_MARKS_WITH_NOTE: Final = (Mark.CONVERTED, Mark.REJECTED, Mark.WRONG)
_LEGEND: Final = {
    Mark.EXACT: "exact",
    Mark.CONVERTED: "converted",
    Mark.REJECTED: "refused",
    Mark.NOT_EXPRESSIBLE: "not possible in the client's protocol",
    Mark.WRONG: "wrong",
}
_NAME: Final = 18
_COLUMN: Final = 13
_WIDE: Final = 200

# ---- in a terminal ----------------------------------------------------------------------------


def heading(width: int | None = None) -> str:
    """Return the legend and the column titles, in several lines if they exceed ``width``."""
    return (
        f"{len(CASES)} cases from every client (rows) to every backend (columns)\n"
        f"{textwrap.fill(_legend(), width or _WIDE)}\n\n{_lines('', BACKENDS, width)}"
    )


def row(result: ClientResult, width: int | None = None) -> str:
    """Return a client's row, which has the number of cases with each mark for each backend. It has
    as many lines as the heading."""
    columns = zip(*result.findings, strict=True)
    return _lines(result.name, [_count_marks(column) for column in columns], width)


def _lines(name: str, cells: Sequence[str], width: int | None) -> str:
    in_line = len(cells) if width is None else max((width - _NAME) // _COLUMN, 1)
    lines = [
        "".join(cell.ljust(_COLUMN) for cell in cells[start : start + in_line])
        for start in range(0, len(cells), in_line)
    ]
    return "\n".join(
        f"{'' if number else name:{_NAME}}{line}".rstrip() for number, line in enumerate(lines)
    )


def notes(results: Iterable[ClientResult]) -> str:
    """Return the list of notes, each with the number of pairs to which it applies."""
    counts = Counter(
        (finding.mark, case.name, finding.note)
        for result in results
        for column in zip(*result.findings, strict=True)
        for case, finding in zip(CASES, column, strict=True)
    )
    lines = []
    for mark in _MARKS_WITH_NOTE:
        marked = [(key[1:], count) for key, count in counts.items() if key[0] is mark]
        if marked:
            lines.append(f"\n{mark.value} {_LEGEND[mark]} (pairs)")
            lines += [f"  {count:3}  {case}: {note}" for (case, note), count in marked]
    return "\n".join(lines)


def _count_marks(findings: Iterable[Finding]) -> str:
    marks = Counter(finding.mark for finding in findings)
    shown = (mark for mark in Mark if mark is not Mark.NOT_EXPRESSIBLE and marks[mark])
    return " ".join(f"{marks[mark]}{mark.value}" for mark in shown)


def _legend() -> str:
    return ", ".join(f"{mark.value} {meaning}" for mark, meaning in _LEGEND.items())


# ---- as a page --------------------------------------------------------------------------------

_OPENING: Final = """\
# Fidelity from protocol to protocol

This page shows how exactly each feature of an inference is translated between two protocols.
`make fidelity` generates the page from test results; do not edit it. `make test` fails if the
results differ from the page. `infergate matrix` prints a summary in a few seconds.

A client of each protocol sends every case through two gateways. The first gateway translates the
case to the protocol of the column. The second gateway receives the case in that protocol and runs
models that record the request. V2 backends have the profile `triton`, and GraphPipe backends have
the profile `graphpipe-go`. The behavior with real servers and clients is described in detail for
[V2](fidelity-v2.md), [legacy TRT](fidelity-trtis.md), [GraphPipe](fidelity-graphpipe.md),
[TensorFlow Serving](fidelity-tfs.md) and [KServe V1](fidelity-kserve-v1.md).
"""


def page(results: Sequence[ClientResult]) -> str:
    """Return docs/fidelity.md."""
    numbers: dict[str, int] = {}
    marks = (mark for mark in Mark if mark is not Mark.WRONG)
    parts = [_OPENING, "".join(f"- `{mark.value}` {_LEGEND[mark]}\n" for mark in marks)]
    parts += [
        f"## From {result.name}\n\n" + "\n".join(_table(result, numbers)) + "\n"
        for result in results
    ]
    notes = (f"{number}. {_escape_markdown(note)}" for note, number in numbers.items())
    parts.append("## Notes\n\n" + "\n".join(notes) + "\n")
    return "\n".join(parts)


def _table(result: ClientResult, numbers: dict[str, int]) -> Iterator[str]:
    yield f"| | {' | '.join(BACKENDS)} |"
    yield "|---" * (len(BACKENDS) + 1) + "|"
    for case, findings in zip(CASES, result.findings, strict=True):
        cells = (_cell(finding, numbers) for finding in findings)
        yield f"| {case.name} | {' | '.join(cells)} |"


def _cell(finding: Finding, numbers: dict[str, int]) -> str:
    """Return the mark and the number of the note. A new note gets the next number."""
    if finding.mark not in _MARKS_WITH_NOTE:
        return str(finding.mark.value)
    number = numbers.setdefault(finding.note, len(numbers) + 1)
    return f"{finding.mark.value} {number}"


def _escape_markdown(note: str) -> str:
    for special in "|<*":
        note = note.replace(special, f"\\{special}")
    return note

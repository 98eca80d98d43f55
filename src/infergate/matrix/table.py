"""Formats the matrix for a terminal and as docs/fidelity.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from infergate.matrix.cases import CASES
from infergate.matrix.findings import Finding, Mark
from infergate.matrix.gateways import BACKENDS
from infergate.matrix.run import ClientResult
from infergate.terminal import Table

_MARKS_WITH_NOTE: Final = (Mark.CONVERTED, Mark.REJECTED, Mark.WRONG)
_LEGEND: Final = {
    Mark.EXACT: "exact",
    Mark.CONVERTED: "converted",
    Mark.REJECTED: "rejected",
    Mark.NOT_EXPRESSIBLE: "not possible in the client's protocol",
    Mark.WRONG: "wrong",
}

# ---- in a terminal ----------------------------------------------------------------------------


def summary(results: Iterable[ClientResult]) -> Table:
    """Return a table that counts the cases with each mark for each client and backend."""
    rows = [
        (result.name, *map(_count_marks, zip(*result.findings, strict=True))) for result in results
    ]
    title = f"{len(CASES)} cases from every client (rows) to every backend (columns)"
    return Table(title, ("client", *BACKENDS), rows)


def notes(results: Iterable[ClientResult]) -> str:
    """Return the legend, and the notes with the number of pairs to which each note applies."""
    counts = Counter(
        (finding.mark, case.name, finding.note)
        for result in results
        for column in zip(*result.findings, strict=True)
        for case, finding in zip(CASES, column, strict=True)
    )
    lines = [", ".join(f"{mark.value} {meaning}" for mark, meaning in _LEGEND.items())]
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


# ---- as a page --------------------------------------------------------------------------------

_OPENING: Final = """\
# Fidelity from protocol to protocol

This page shows how exactly each feature of an inference is translated between two protocols.
`make fidelity` generates the page from test results; do not edit it. `make test` fails if the
results differ from the page. `infergate matrix` prints a summary in a few seconds.

A client of each protocol sends every case through two gateways. The first gateway translates the
case to the protocol of the column. The second gateway receives the case in that protocol and runs
models that record the request. The messages pass between the gateways in one process, without
sockets. V2 backends have the profile `triton`, and GraphPipe backends have the profile
`graphpipe-go`. The behavior with real servers and clients is described in detail for
[V2](fidelity-v2.md), [legacy TRT](fidelity-trtis.md), [GraphPipe](fidelity-graphpipe.md),
[TensorFlow Serving](fidelity-tfs.md) and [KServe V1](fidelity-kserve-v1.md).
"""


def page(results: Sequence[ClientResult]) -> str:
    """Return the text of docs/fidelity.md."""
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

"""The matrix as people read it: in a terminal, and as docs/fidelity.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from infergate.matrix.cases import CASES
from infergate.matrix.findings import Finding, Mark
from infergate.matrix.run import Pair
from infergate.matrix.site import BACKENDS

_NOTED: Final = (Mark.CONVERTED, Mark.REFUSED, Mark.WRONG)
_LEGEND: Final = {
    Mark.EXACT: "exact",
    Mark.CONVERTED: "converted",
    Mark.REFUSED: "refused",
    Mark.UNSAID: "the client's protocol cannot ask for it",
    Mark.WRONG: "wrong",
}
_COLUMN: Final = 13

# ---- in a terminal ----------------------------------------------------------------------------


def heading() -> str:
    """What comes before the first row."""
    columns = "".join(backend.ljust(_COLUMN) for backend in BACKENDS)
    return (
        f"{len(CASES)} cases from every client (rows) to every backend (columns), for real, over "
        f"127.0.0.1\n{_legend()}\n\n{'':18}{columns.rstrip()}"
    )


def row(pairs: Sequence[Pair]) -> str:
    """One client to each backend: how many cases have each mark."""
    cells = "".join(_counted(pair.findings).ljust(_COLUMN) for pair in pairs)
    return f"{pairs[0].speaker.name:18}{cells.rstrip()}"


def notes(pairs: Iterable[Pair]) -> str:
    """What was converted, refused or wrong, and for how many pairs."""
    told: Counter[tuple[Mark, str, str]] = Counter()
    for pair in pairs:
        for case, finding in zip(CASES, pair.findings, strict=True):
            if finding.mark in _NOTED:
                told[finding.mark, case.name, finding.note] += 1
    lines = []
    for mark in _NOTED:
        some = [(case, note, count) for (each, case, note), count in told.items() if each is mark]
        if some:
            lines.append(f"\n{mark.value} {_LEGEND[mark]} (pairs)")
            lines += [f"  {count:3}  {case}: {note}" for case, note, count in some]
    return "\n".join(lines)


def _counted(findings: Iterable[Finding]) -> str:
    marks = Counter(finding.mark for finding in findings)
    shown = (mark for mark in Mark if mark is not Mark.UNSAID and marks[mark])
    return " ".join(f"{marks[mark]}{mark.value}" for mark in shown)


def _legend() -> str:
    return ", ".join(f"{mark.value} {said}" for mark, said in _LEGEND.items())


# ---- as a page --------------------------------------------------------------------------------

_OPENING: Final = """\
# Fidelity from protocol to protocol

Made by `make fidelity` from what was found, and by `make test` compared with what is found: do not
write here. `infergate matrix` shows the same in a terminal, in seconds.

A client of each protocol asked every case of two infergates in a row: the first translates to what
the column says, the second answers in it with models that tell what reached them. V2 servers are
taken for Triton, GraphPipe's for graphpipe-go. What is done over each protocol in detail, and with
real servers and clients, is on the pages [V2](fidelity-v2.md), [legacy TRT](fidelity-trtis.md) and
[GraphPipe](fidelity-graphpipe.md).
"""


def page(pairs: Sequence[Pair]) -> str:
    """docs/fidelity.md."""
    numbers: dict[str, int] = {}
    parts = [_OPENING, _listed()]
    for speaker, row in groupby(pairs, key=lambda pair: pair.speaker.name):
        parts.append(f"## From {speaker}\n\n" + "\n".join(_table(tuple(row), numbers)) + "\n")
    told = (f"{number}. {_escaped(note)}" for note, number in numbers.items())
    parts.append("## Notes\n\n" + "\n".join(told) + "\n")
    return "\n".join(parts)


def _listed() -> str:
    shown = (mark for mark in Mark if mark is not Mark.WRONG)
    return "".join(f"- `{mark.value}` {_LEGEND[mark]}\n" for mark in shown)


def _table(row: Sequence[Pair], numbers: dict[str, int]) -> Iterator[str]:
    yield f"| | {' | '.join(pair.backend for pair in row)} |"
    yield "|---" * (len(row) + 1) + "|"
    for index, case in enumerate(CASES):
        cells = (_cell(pair.findings[index], numbers) for pair in row)
        yield f"| {case.name} | {' | '.join(cells)} |"


def _cell(finding: Finding, numbers: dict[str, int]) -> str:
    """With the number of its note, which is the next where it is new."""
    if finding.mark not in _NOTED:
        return str(finding.mark.value)
    number = numbers.setdefault(finding.note, len(numbers) + 1)
    return f"{finding.mark.value} {number}"


def _escaped(note: str) -> str:
    for special in "|<*":
        note = note.replace(special, f"\\{special}")
    return note

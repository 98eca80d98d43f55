"""Every client to every backend: docs/fidelity.md is what is found, and nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infergate.cli import main
from infergate.core.messages import InferRequest, InferResponse
from infergate.matrix.cases import CASES
from infergate.matrix.clients import SPEAKERS
from infergate.matrix.site import BACKENDS
from infergate.matrix.witness import Echo

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"


def test_the_page_is_what_is_found_and_nothing_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["matrix", "--page"]) == 0
    told = capsys.readouterr().out
    assert told == PAGE.read_text(), "make fidelity writes it anew; read what changed"


def test_the_page_has_every_pair_and_case() -> None:
    lines = PAGE.read_text().splitlines()
    headings = [line for line in lines if line.startswith("## From ")]
    assert headings == [f"## From {speaker.name}" for speaker in SPEAKERS]
    assert lines.count(f"| | {' | '.join(BACKENDS)} |") == len(SPEAKERS)
    for case in CASES:
        rows = [line for line in lines if line.startswith(f"| {case.name} |")]
        assert len(rows) == len(SPEAKERS), case.name
        assert {row.count("|") for row in rows} == {len(BACKENDS) + 2}
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model behind tells another first byte than it was given."""
    infer = Echo.infer

    def other(self: Echo, request: InferRequest) -> InferResponse:
        answer = infer(self, request)
        first, *rest = answer.outputs
        data = bytes(first.data)
        first = replace(first, data=bytes((data[0] ^ 1,)) + data[1:]) if data else first
        self.answers = getattr(self, "answers", 0) + 1  # type: ignore[attr-defined]
        # The first answer, the embedded backend's, is the one that others are compared with.
        return answer if self.answers == 1 else replace(answer, outputs=(first, *rest))  # type: ignore[attr-defined]

    monkeypatch.setattr(Echo, "infer", other)


def test_the_command_fails_where_anything_is_wrong(
    spoilt: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix"]) == 1
    told = capsys.readouterr().out
    assert all(name in told for name in (*BACKENDS, *(speaker.name for speaker in SPEAKERS)))
    assert "! wrong (pairs)" in told
    assert "other values in 'OUT0'" in told

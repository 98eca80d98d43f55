"""Test the checker of identifiers and sentences that `make lint` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from plain_language import in_python, in_text, main

VALID_CODE = '''
"""Routes of requests."""
served_models = {}

class LeastRequest:
    """Picks the endpoint with the fewest active requests; see `CandidateTable`."""

    def pick(self, endpoints):
        """Return an endpoint."""
        return endpoints[0]  # ordered by load
'''
VALID_PAGE = """
# Streams

Responses are sent as they are received; the operator is asked for a password.

```text
what the server says so
```
"""


@pytest.mark.parametrize(
    ("source", "line", "finding"),
    [
        ("def get(told): ...", 1, "identifier 'told' contains 'told'"),
        ("class TurnsLimit: ...", 1, "identifier 'TurnsLimit' contains 'turns'"),
        ("x = 1\nself._room_left = 2", 2, "identifier '_room_left' contains 'room'"),
        ('"""What the gateway knows."""', 1, "docstring starts with 'What'"),
        ('"""See `Gateway`."""', 1, "docstring only refers to another place"),
        ('"""State.\n\nThe backend is told."""', 3, "docstring: 'is told'"),
        ("x = 1  # nobody waits", 1, "comment: 'nobody'"),
        ("x = 1  # towards clients", 1, "comment: 'towards'"),
    ],
)
def test_coined_names_and_riddles_in_code_are_reported(
    source: str, line: int, finding: str
) -> None:
    assert list(in_python(source)) == [(line, finding)]


def test_ordinary_code_and_pages_have_no_findings() -> None:
    assert not list(in_python(VALID_CODE))
    assert not list(in_text(VALID_PAGE))


def test_riddles_in_pages_are_reported() -> None:
    page = "A fact.\nThe client is asked whether it says so.\n```text\nis told\n```\nIt is told.\n"
    assert list(in_text(page)) == [(2, "text: 'is asked'"), (6, "text: 'is told'")]


def test_findings_are_printed_and_fail_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schema").mkdir()
    (tmp_path / "schema" / "generated.py").write_text("told = 1\n")
    page = tmp_path / "page.md"
    page.write_text("All is well.\n")
    assert main([str(tmp_path)]) == 0
    assert not capsys.readouterr().out
    page.write_text("The log says so.\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{page}:1: text: 'says so'\n"

"""docs/faults.md refers to existing tests and lists every file of tests/faults."""

from __future__ import annotations

import re
from pathlib import Path

from defined import named_tests

TESTS = Path(__file__).parents[1]
DOC = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:unit|e2e|faults|peers)/[\w/]+\.py|…)(?:::(\w+))?`")


def test_each_fault_names_existing_tests() -> None:
    file, count = "", 0
    for path, name in NAMED.findall(DOC):
        file = file if path == "…" else path
        assert not name or name in named_tests(TESTS / file), (file, name)
        count += 1
    assert count > 100


def test_each_file_of_faults_is_named() -> None:
    named = {path for path, _ in NAMED.findall(DOC)}
    assert {f"faults/{each.name}" for each in TESTS.glob("faults/test_*.py")} <= named


def test_each_row_names_a_test() -> None:
    rows = [row for row in DOC.splitlines() if row.startswith("| ") and "---" not in row]
    result = [row for row in rows if not row.startswith(("| Fault |", "| Test |"))]
    assert all(NAMED.search(row) or "| the same |" in row or "make soak" in row for row in result)

"""Pages of docs/ name existing tests and vectors, and docs/faults.md names all of tests/faults."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
FAULTS = (DOCS / "faults.md").read_text(encoding="utf-8")
REFERENCE = re.compile(r"`((?:unit|e2e|faults|peers)/[\w/]+\.py|…)(?:::(\w+))?`")
TEST = re.compile(r"^ *(?:async )?def (test\w*)|^(test\w*) = ", re.MULTILINE)
EVIDENCE = re.compile(r"`((?:tests|vectors)/[^`]+)`")
FIDELITY = sorted(DOCS.glob("fidelity-*.md"))


@cache
def named_tests(path: Path) -> frozenset[str]:
    """Return the names of test functions, including methods, and of tests assigned from calls."""
    names = TEST.findall(path.read_text(encoding="utf-8"))
    return frozenset(function or variable for function, variable in names)


@pytest.mark.parametrize(("page", "minimum"), [("faults", 100), ("threat-model", 30)])
def test_each_row_names_existing_tests(page: str, minimum: int) -> None:
    references = REFERENCE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    file = ""
    for path, name in references:
        file = file if path == "…" else path
        assert not name or name in named_tests(TESTS / file), (file, name)
    assert len(references) > minimum


def test_each_file_of_faults_is_named() -> None:
    references = {path for path, _ in REFERENCE.findall(FAULTS)}
    assert {f"faults/{each.name}" for each in TESTS.glob("faults/test_*.py")} <= references


def test_each_row_of_faults_names_a_test() -> None:
    rows = [row for row in FAULTS.splitlines() if row.startswith("| ") and "---" not in row]
    fault_rows = [row for row in rows if not row.startswith(("| Fault |", "| Test |"))]
    assert all(REFERENCE.search(row) or "make soak" in row for row in fault_rows)


@pytest.mark.parametrize("page", FIDELITY, ids=lambda page: page.stem)
def test_each_row_of_a_fidelity_page_names_existing_tests_or_vectors(page: Path) -> None:
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [line.strip("|").split("|") for line in lines if not line.startswith("| Topic |")]
    topics = [row[0].strip() for row in rows]
    assert len(topics) > 40
    assert len(set(topics)) == len(topics)
    for topic, *_, evidence in rows:
        references = EVIDENCE.findall(evidence)
        assert references, f"no tests or vectors for '{topic}'"
        assert re.sub(EVIDENCE, "", evidence).strip(" ,") == "", f"other text for '{topic}'"
        for name in references:
            path, _, test = name.partition("::")
            if path.startswith("vectors/"):
                assert (TESTS / path / "case.json").is_file(), name
            else:
                assert test in named_tests(TESTS.parent / path), name

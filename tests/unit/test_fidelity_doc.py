"""docs/fidelity-*.md: every row refers to existing tests or vectors."""

import re
from pathlib import Path

import pytest

from defined import named_tests

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:tests|vectors)/[^`]+)`")


def rows_of(page: Path) -> list[tuple[str, str]]:
    """Return the subject of each row and its last cell."""
    text = page.read_text()
    cells = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[-1]) for row in cells if row[0].strip() != "Topic"]


PAGES = sorted((ROOT / "docs").glob("fidelity-*.md"))
ROWS = [row for page in PAGES for row in rows_of(page)]


@pytest.mark.parametrize(("topic", "evidence"), ROWS, ids=[topic for topic, _ in ROWS])
def test_each_row_names_existing_tests_or_vectors(topic: str, evidence: str) -> None:
    named = NAMED.findall(evidence)
    assert named, f"no tests or vectors for '{topic}'"
    assert re.sub(NAMED, "", evidence).strip(" ,") == "", "only tests and vectors are allowed"
    for name in named:
        path, _, test = name.partition("::")
        if path.startswith("vectors/"):
            assert (ROOT / "tests" / path / "case.json").is_file(), name
        else:
            assert test.startswith("test_"), name
            assert test in named_tests(ROOT / path), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_rows_are_distinguished(page: Path) -> None:
    topics = [topic for topic, _ in rows_of(page)]
    assert len(topics) > 40
    assert len(set(topics)) == len(topics)

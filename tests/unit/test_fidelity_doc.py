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


@pytest.mark.parametrize(("what", "held_by"), ROWS, ids=[what for what, _ in ROWS])
def test_each_row_names_existing_tests_or_vectors(what: str, held_by: str) -> None:
    named = NAMED.findall(held_by)
    assert named, f"nothing holds '{what}'"
    assert re.sub(NAMED, "", held_by).strip(" ,") == "", "no more than tests and vectors"
    for name in named:
        path, _, test = name.partition("::")
        if path.startswith("vectors/"):
            assert (ROOT / "tests" / path / "case.json").is_file(), name
        else:
            assert test.startswith("test_"), name
            assert test in named_tests(ROOT / path), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_rows_are_distinguished(page: Path) -> None:
    about = [what for what, _ in rows_of(page)]
    assert len(about) > 40
    assert len(set(about)) == len(about)

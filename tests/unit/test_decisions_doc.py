"""The index of docs/decisions lists every record, and all records have the same parts."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
PARTS = ["Context", "Decision", "Evidence", "What would change it"]


def test_the_index_lists_every_record_with_its_title() -> None:
    listed = re.findall(
        r"^\| (\d+) \| \[(.+)\]\((.+)\) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
    assert [file for _, _, file in listed] == [file.name for file in RECORDS]
    for (number, title, _), record in zip(listed, RECORDS, strict=True):
        assert record.read_text(encoding="utf-8").startswith(f"# {number}. {title}\n")


def test_every_record_has_the_same_parts() -> None:
    for record in RECORDS:
        headings = re.findall(r"^## (.+)$", record.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == PARTS, record.name

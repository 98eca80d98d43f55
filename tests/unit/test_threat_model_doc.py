"""docs/threat-model.md refers to existing tests."""

from __future__ import annotations

import re
from pathlib import Path

from defined import named_tests

TESTS = Path(__file__).parents[1]
DOC = TESTS.parent / "docs" / "threat-model.md"
NAMED = re.compile(r"`((?:unit|e2e|faults|peers)/[\w/]+\.py|…)(?:::(\w+))?`")


def test_each_threat_names_existing_tests() -> None:
    file, count = "", 0
    for path, name in NAMED.findall(DOC.read_text(encoding="utf-8")):
        file = file if path == "…" else path
        assert not name or name in named_tests(TESTS / file), (file, name)
        count += 1
    assert count > 30

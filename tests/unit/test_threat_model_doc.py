"""docs/threat-model.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOC = TESTS.parent / "docs" / "threat-model.md"
NAMED = re.compile(r"`((?:unit|e2e|faults|peers)/[\w/]+\.py|…)(?:::(\w+))?`")


def test_each_threat_names_tests_that_there_are() -> None:
    file, count = "", 0
    for path, name in NAMED.findall(DOC.read_text(encoding="utf-8")):
        file = file if path == "…" else path
        source = (TESTS / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), (file, name)
        count += 1
    assert count > 30

from __future__ import annotations

import json
from typing import Any

import pytest

from infergate.comparison.outcomes import compare
from infergate.comparison.rules import ComparisonRules
from infergate.comparison.summary import SummaryFormatError
from infergate.migration.replay.result import MAX_DAMAGED, MAX_REASONS, ReplayResult
from recordings import exchange


def example() -> ReplayResult:
    result = ReplayResult()
    result.counts.sent = 3
    outcomes = exchange(1).outcome, exchange(2).outcome
    result.summary.add("r", "m", compare(ComparisonRules(), *outcomes), time=1000.0)
    result.add_damaged("f: bytes 1 to 2: x")
    result.add_not_sent("reason")
    return result


def test_a_result_is_read_as_it_was_written() -> None:
    text = json.dumps(example().as_json())
    assert ReplayResult.from_json(json.loads(text)) == example()
    assert json.loads(text)["equal"] is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "other"}, "not a replay result of format 1"),
        ({"format": 2}, "not a replay result of format 1"),
        ({"counts": {"sent": "many"}}, "^counts.sent: "),
        ({"reasons": {"a": -1}}, "^reasons.a: "),
        ({"damaged": [1]}, "^damaged.0: "),
        ({"damaged": None}, "^damaged: "),
        ({"summary": {}}, "not a summary"),
    ],
)
def test_a_document_of_another_kind_is_rejected_with_the_position(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SummaryFormatError, match=reason):
        ReplayResult.from_json(example().as_json() | changes)
    with pytest.raises(SummaryFormatError):
        ReplayResult.from_json([])


def test_texts_from_a_file_are_printable_and_short() -> None:
    result = ReplayResult()
    result.add_not_sent("\x1b[2J\n" + "x" * 10_000)
    (reason,) = result.reasons
    assert "\x1b" not in reason
    assert "\n" not in reason
    assert ReplayResult.from_json(json.loads(json.dumps(result.as_json()))) == result


def test_lists_in_a_result_are_limited() -> None:
    result = ReplayResult()
    for number in range(1000):
        result.add_damaged(f"part {number}")
        result.add_not_sent(f"reason {number}")
        result.add_not_sent("reason 0")
    assert len(result.damaged) == MAX_DAMAGED
    assert len(result.reasons) == MAX_REASONS
    assert result.reasons["reason 0"] == 1001
    assert (result.counts.damaged, result.counts.not_sent) == (1000, 2000)

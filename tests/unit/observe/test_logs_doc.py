"""Every log line has an event, and docs/logs.md lists the events, outcomes and fields."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import infergate
from infergate.core import log_events
from infergate.core.errors import Kind
from infergate.core.log_events import ADVICE, LOG_EVENTS

ROOT = Path(infergate.__file__).parent
PAGE = (Path(__file__).parents[3] / "docs" / "logs.md").read_text(encoding="utf-8")
LEVELS = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
LOGGERS = {"_log", "log", "_audit"}
LOGS = re.compile(rf"\b({'|'.join(LOGGERS)})\.({'|'.join(LEVELS)})\(")
LIBRARY_EVENTS = {"traces_not_sent"}


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[each.strip() for each in line] for line in cells]


@functools.cache
def lines() -> list[tuple[str, str, list[str]]]:
    return list(_lines())


def _lines() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the position, level and possible events of each logger call in the package."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if LOGS.search(text) else ():
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=logger), attr=level), keywords=keywords
                ) if logger in LOGGERS and level in LEVELS:
                    extra = [each.value for each in keywords if each.arg == "extra"]
                    names = {
                        name.id for e in extra for name in ast.walk(e) if isinstance(name, ast.Name)
                    }
                    logged = [getattr(log_events, n, None) for n in names if n.isupper()]
                    events = [each["event"] for each in logged if each is not None]
                    if not events and names == {"fields"}:  # the fields are built before the call
                        events = ["audit"]
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", LEVELS[level], events


def test_every_line_has_an_event() -> None:
    calls = lines()
    assert len(calls) > 40
    assert [position for position, _, events in calls if not events] == []
    assert {event for _, _, events in calls for event in events} == set(LOG_EVENTS) - LIBRARY_EVENTS


def test_every_warning_and_error_has_advice() -> None:
    problems = {event for _, level, events in lines() for event in events if level != "INFO"}
    assert [
        event for event in sorted(problems - {"endpoint_up"}) if not LOG_EVENTS[event]["advice"]
    ] == []


def test_the_page_lists_the_events() -> None:
    levels = {event: level for _, level, events in lines() for event in events}
    levels |= dict.fromkeys(LIBRARY_EVENTS, "WARNING")
    fields = {name.strip("`"): (level, next_) for name, level, _, next_ in rows("Events")}
    assert fields == {n: (levels[n], event["advice"]) for n, event in LOG_EVENTS.items()}


def test_the_page_lists_the_outcomes() -> None:
    fields = {name.strip("`"): next_ for name, _, next_ in rows("Outcomes")}
    assert fields == {"ok": "", **ADVICE}
    assert set(ADVICE) == {kind.value for kind in Kind}


def test_the_page_lists_the_fields() -> None:
    documented = {each for row in rows("Requests") for each in re.findall(r"`(\w+)`", row[0])}
    source = (ROOT / "observe" / "access_log.py").read_text(encoding="utf-8")
    assert {"request_id", "outcome", "advice", "left_out"} <= documented
    assert [name for name in sorted(documented) if f'"{name}"' not in source] == []

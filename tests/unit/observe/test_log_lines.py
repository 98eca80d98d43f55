"""Log lines as JSON and as text: events, fields, advice, tracebacks and escapes."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from infergate.core.log_events import AUDIT, ENDPOINT_DOWN, LogEvent, with_fields
from infergate.observe.log_lines import FORMATTERS


def line(
    log_format: str,
    message: str,
    *arguments: object,
    bug: bool = False,
    extra: LogEvent | None = None,
) -> str:
    error = None
    if bug:
        try:
            1 / 0  # noqa: B018 - raises
        except ZeroDivisionError:
            error = sys.exc_info()
    record = logging.LogRecord(
        "infergate.audit", logging.INFO, "file.py", 1, message, arguments, error
    )
    record.created = 0.25
    record.__dict__.update(extra or {})
    return FORMATTERS[log_format]().format(record)


def test_the_fields_of_a_json_line() -> None:
    assert json.loads(line("json", "%s %r", "model_load", 'a"\n')) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "event": "log",
        "level": "INFO",
        "logger": "infergate.audit",
        "message": "model_load 'a\"\\n'",
    }


def test_a_text_line_has_the_same_time() -> None:
    result = line("text", "model_load")
    assert result == "1970-01-01T00:00:00.250+00:00 INFO infergate.audit: model_load"


@pytest.mark.parametrize("message", ["two\nlines", "\udcff", 'a " quote'])
def test_a_json_line_has_no_line_breaks(message: str) -> None:
    document = line("json", message)
    assert "\n" not in document
    assert json.loads(document)["message"] == message.replace("\udcff", "\\udcff")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_bug_is_logged_with_its_traceback(log_format: str) -> None:
    result = line(log_format, "a bug", bug=True)
    assert re.search(r"a bug.*Traceback.*ZeroDivisionError", result, re.DOTALL)
    assert ("\n" in result) == (log_format == "text")


def test_a_line_has_its_event_and_advice() -> None:
    text = line("text", "%s is down", "a:1", extra=ENDPOINT_DOWN)
    advice = ENDPOINT_DOWN["advice"]
    assert text == (
        f"1970-01-01T00:00:00.250+00:00 INFO endpoint_down: a:1 is down. Next: {advice}"
    )
    document = json.loads(line("json", "%s is down", "a:1", extra=ENDPOINT_DOWN))
    expected = {"event": "endpoint_down", "message": "a:1 is down", "advice": advice}
    assert document.items() >= expected.items()


def test_an_event_may_have_fields() -> None:
    extra = with_fields(AUDIT, subject="\udcff", outcome="ok")
    document = json.loads(line("json", "m", extra=extra))
    expected = {"event": "audit", "subject": "\\udcff", "outcome": "ok"}
    assert document.items() >= expected.items()
    assert "advice" not in document
    assert "subject" not in line("text", "m", extra=extra)


def test_an_error_of_asyncio_is_a_bug() -> None:
    record = logging.LogRecord(
        "asyncio", logging.ERROR, "f", 1, "Task exception was never retrieved", (), None
    )
    assert json.loads(FORMATTERS["json"]().format(record))["event"] == "bug"
    record.levelno = logging.INFO
    assert json.loads(FORMATTERS["json"]().format(record))["event"] == "log"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_control_characters_are_escaped(log_format: str) -> None:
    hidden = "a\x7fb\x85c\u2028d\u202ee\x1bf\udcff"
    extra = with_fields(AUDIT, subject=hidden)
    result = line(log_format, f"request {hidden} failed", extra=extra)
    assert result.isprintable()
    count = {"json": 2, "text": 1}[log_format]
    assert result.count(r"a\u007fb\u0085c\u2028d\u202ee\u001bf") == count

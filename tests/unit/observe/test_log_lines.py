"""Lines of the audit, of warnings and of bugs, in both forms."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from infergate.observe.log_lines import FORMATTERS


def line(form: str, message: str, *arguments: object, bug: bool = False) -> str:
    error = None
    if bug:
        try:
            1 / 0  # noqa: B018 - for its traceback
        except ZeroDivisionError:
            error = sys.exc_info()
    record = logging.LogRecord(
        "infergate.audit", logging.INFO, "file.py", 1, message, arguments, error
    )
    record.created = 0.25
    return FORMATTERS[form]().format(record)


def test_a_json_line() -> None:
    assert json.loads(line("json", "%s %r", "model_load", 'a"\n')) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "event": "log",
        "level": "INFO",
        "logger": "infergate.audit",
        "message": "model_load 'a\"\\n'",
    }


def test_a_text_line_has_the_same_time() -> None:
    told = line("text", "model_load")
    assert told == "1970-01-01T00:00:00.250+00:00 INFO infergate.audit: model_load"


@pytest.mark.parametrize("message", ["two\nlines", "\udcff", 'a " quote'])
def test_a_json_line_is_one_line_whatever_it_tells(message: str) -> None:
    told = line("json", message)
    assert "\n" not in told
    assert json.loads(told)["message"] == message.replace("\udcff", "\\udcff")


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_bug_is_told_with_its_traceback(form: str) -> None:
    told = line(form, "a bug", bug=True)
    assert re.search(r"a bug.*Traceback.*ZeroDivisionError", told, re.DOTALL)
    assert ("\n" in told) == (form == "text")

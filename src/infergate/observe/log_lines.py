"""The format of log lines other than the access log (audit, warnings, bugs), as text or JSON."""

from __future__ import annotations

import logging
import sys
from typing import Final

import orjson

from infergate.core.log_events import BUG, TRACES_NOT_SENT, LogEvent
from infergate.core.name_rules import escape_unsafe
from infergate.observe.access_log import iso_time, printable
from infergate.observe.log_rate_limit import LogRateLimit

_LIBRARY_EVENTS: Final[dict[str, LogEvent]] = {"asyncio": BUG, "opentelemetry": TRACES_NOT_SENT}
"""Events for log records of libraries, by the first part of the logger's name."""
_WARNINGS_ONLY: Final = ("watchfiles",)
"""Libraries whose records below WARNING are dropped. watchfiles logs each change of a file, so if
the log file is in a watched folder, every line would cause another line."""


def _event(record: logging.LogRecord) -> tuple[str, str]:
    """Return the name and the advice of the event of ``record``. Both are empty for most records of
    libraries."""
    name = getattr(record, "event", None)
    if name is not None:
        return name, getattr(record, "advice", "")
    library = _LIBRARY_EVENTS.get(record.name.partition(".")[0])
    if library is None or record.levelno < logging.WARNING:
        return "", ""
    return library["event"], library["advice"]


class TextLines(logging.Formatter):
    """Formats a record as ``TIME LEVEL EVENT: MESSAGE``, followed by its advice and traceback. For
    records without an event, the logger's name replaces EVENT."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text with control characters escaped, because they could hide or forge
        text."""
        return escape_unsafe(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging
        event, advice = _event(record)
        name = event or record.name
        line = f"{iso_time(record.created)} {record.levelname} {name}: {record.message}"
        return f"{line}. Next: {advice}" if advice else line


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object. A traceback is part of the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return ``time``, ``event`` ("log" if the record has no event), ``level``, ``logger``,
        ``message``, the event's own fields, and the event's ``advice`` unless it is empty."""
        event, advice = _event(record)
        line = {
            "time": iso_time(record.created),
            "event": event or "log",
            "level": record.levelname,
            "logger": record.name,
            "message": super().format(record),
            **getattr(record, "fields", {}),
        }
        if advice:
            line["advice"] = advice
        safe = {k: printable(v) if isinstance(v, str) else v for k, v in line.items()}
        return escape_unsafe(orjson.dumps(safe).decode())


FORMATTERS: Final[dict[str, type[logging.Formatter]]] = {"json": JsonLines, "text": TextLines}


def start_logging(format_name: str) -> logging.Handler:
    """Send the log of this process to standard error. Return the handler, so that a new
    configuration can replace its formatter."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[format_name]())
    handler.addFilter(LogRateLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _WARNINGS_ONLY:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler

"""What the process tells besides requests (audit, warnings, bugs), in the access log's forms."""

from __future__ import annotations

import logging
import sys
from typing import Final

import orjson

from infergate.core.names import escaped
from infergate.core.vocabulary import BUG, TRACES_NOT_SENT, Event
from infergate.observe.access_log import iso, printable
from infergate.observe.repeated import Repeated

_OTHERS: Final[dict[str, Event]] = {"asyncio": BUG, "opentelemetry": TRACES_NOT_SENT}
"""Events of libraries' lines, by the first part of their loggers' names."""
_QUIET: Final = ("watchfiles",)
"""Libraries whose lines are told from warnings on. This one tells of each change of a file; where
the log itself lies in a folder that is watched, each line would be the reason for the next."""


def _event(record: logging.LogRecord) -> tuple[str, str]:
    """The name of the event that ``record`` tells of, empty for a library's; and what is to be done
    about it."""
    told = getattr(record, "event", None)
    if told is not None:
        return told, getattr(record, "advice", "")
    other = _OTHERS.get(record.name.partition(".")[0])
    if other is None or record.levelno < logging.WARNING:
        return "", ""
    return other["event"], other["advice"]


class TextLines(logging.Formatter):
    """``TIME LEVEL EVENT: MESSAGE``, and what to do next; the logger's name stands for the event of
    a library. A traceback follows in lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """All lines, without characters that hide or forge text."""
        return escaped(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name
        """The line."""
        event, advice = _event(record)
        told = f"{iso(record.created)} {record.levelname} {event or record.name}: {record.message}"
        return f"{told}. Next: {advice}" if advice else told


class JsonLines(logging.Formatter):
    """One JSON object; a traceback belongs to the message."""

    def format(self, record: logging.LogRecord) -> str:
        """``time``, ``event`` ("log": a library's), ``level``, ``logger``, ``message``, the event's
        own fields, and ``advice`` where there is something to do."""
        event, advice = _event(record)
        line = {
            "time": iso(record.created),
            "event": event or "log",
            "level": record.levelname,
            "logger": record.name,
            "message": super().format(record),
            **getattr(record, "fields", {}),
        }
        if advice:
            line["advice"] = advice
        told = {k: printable(v) if isinstance(v, str) else v for k, v in line.items()}
        return escaped(orjson.dumps(told).decode())


FORMATTERS: Final[dict[str, type[logging.Formatter]]] = {"json": JsonLines, "text": TextLines}


def begin(form: str) -> logging.Handler:
    """From now on lines of this process go to standard error. The handler is given back, for the
    form of another configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    handler.addFilter(Repeated())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler

"""What the process tells besides requests (audit, warnings, bugs), in the access log's forms."""

from __future__ import annotations

import logging
from typing import Final

import orjson

from infergate.observe.access_log import iso


class TextLines(logging.Formatter):
    """``TIME LEVEL LOGGER: MESSAGE``; a traceback follows in lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - its name
        """As in the access log."""
        return iso(record.created)


class JsonLines(logging.Formatter):
    """One JSON object; a traceback belongs to the message."""

    def format(self, record: logging.LogRecord) -> str:
        """``time``, ``event`` ("log"), ``level``, ``logger``, ``message``."""
        message = super().format(record)
        line = {
            "time": iso(record.created),
            "event": "log",
            "level": record.levelname,
            "logger": record.name,
            # a lone surrogate is no JSON, and a line is not to be lost for one
            "message": message.encode("utf-8", "backslashreplace").decode(),
        }
        return orjson.dumps(line).decode()


FORMATTERS: Final[dict[str, type[logging.Formatter]]] = {"json": JsonLines, "text": TextLines}

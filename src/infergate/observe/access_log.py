"""One line a request, as JSON or text.

*Strategy.* Lines are gathered and written together a moment later: a system call a line costs as
much as reading a small request. *Rule 1.* What a client sent (model name, id) is always quoted, so
that no request can forge a line. Tensor data and headers are never logged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO, Final, Protocol

import orjson

from infergate.core.call import Call

_FLUSH_AFTER: Final = 0.05  # seconds a line may wait
_LONGEST: Final = 256  # characters of a client's string that are kept


class Later(Protocol):
    """The event loop's ``call_later``."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> object:
        """Run ``callback`` after ``delay`` seconds."""
        ...


def fields(call: Call, seconds: float, now: float) -> dict[str, object]:
    """What a line tells. ``seconds`` is the request's duration, ``now`` the wall clock."""
    line: dict[str, object] = {
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "event": "request",
        "request_id": call.request_id[:_LONGEST],
        "peer": call.peer,
        "protocol": call.protocol,
        "operation": call.operation,
        "model": call.model[:_LONGEST],
        "route": call.route,
        "backend": call.backend,
        "backend_protocol": call.backend_protocol,
        "way": call.way,
        "outcome": call.outcome,
        "seconds": round(seconds, 6),
        "backend_seconds": round(call.backend_seconds, 6),
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
    }
    if call.error:
        line["error"] = call.error
    if call.detail:
        line["detail"] = call.detail
    return line


def json_line(line: dict[str, object]) -> bytes:
    """One JSON object and a newline."""
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def text_line(line: dict[str, object]) -> bytes:
    """``key=value`` pairs; strings that need it are quoted as JSON does."""
    pairs = [str(line["time"])]
    for key, value in line.items():
        if key == "time" or value == "":
            continue
        plain = str(value)
        if isinstance(value, str) and not _is_plain(value):
            plain = orjson.dumps(value).decode()
        pairs.append(f"{key}={plain}")
    return (" ".join(pairs) + "\n").encode("utf-8", "backslashreplace")


_is_plain: Final = re.compile(r"[!#-<>-\[\]-~]+").fullmatch
"""Printable ASCII but for the space, the quote, the equals sign and the backslash."""


FORMATS: Final[dict[str, Callable[[dict[str, object]], bytes]]] = {
    "json": json_line,
    "text": text_line,
}


class AccessLog:
    """Writes a line a request to ``stream`` (standard output)."""

    def __init__(
        self,
        form: Callable[[dict[str, object]], bytes],
        later: Later,
        stream: BinaryIO | None = None,
    ) -> None:
        self._form: Final = form
        self._later: Final = later
        self._stream: Final = stream or sys.stdout.buffer
        self._waiting: list[bytes] = []

    def record(self, call: Call, seconds: float, now: float) -> None:
        """Tell a finished request."""
        if not self._waiting:
            self._later(_FLUSH_AFTER, self.flush)
        self._waiting.append(self._form(fields(call, seconds, now)))

    def flush(self) -> None:
        """Write what waits. A closed standard output ends the log, not the gateway."""
        lines, self._waiting = self._waiting, []
        try:
            self._stream.write(b"".join(lines))
            self._stream.flush()
        except (OSError, ValueError):
            return

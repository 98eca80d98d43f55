"""One line a request, as JSON or text.

*Strategy.* A thread of its own writes what has gathered since it last wrote: a reader of the log
that stops reading stops that thread, and no request.
*Rule 1.* What a client sent (model name, id) is always quoted, so that no request can forge a line,
and cut, so that none can fill the disk. Tensor data and headers are never logged.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO, Final

import orjson

from infergate.core.call import Call

_WAITING: Final = 10_000  # lines that may wait to be written; further ones are dropped
_EVERY: Final = 0.05  # seconds between two writes: waking a thread a line would cost more than it
_LAST: Final = 1.0  # seconds the last lines have to be written
_LONGEST: Final = 256  # characters of a client's string that are kept
_LONGEST_ERROR: Final = 1024  # an error repeats what a client or a backend sent


def iso(now: float) -> str:
    """The wall clock's ``now`` as lines tell it: in UTC, to the millisecond."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")


def fields(call: Call, seconds: float, now: float) -> dict[str, object]:
    """What a line tells. ``seconds`` is the request's duration, ``now`` the wall clock."""
    line: dict[str, object] = {
        "time": iso(now),
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
    if call.messages is not None:
        line["messages"] = call.messages
    if call.error:
        line["error"] = call.error[:_LONGEST_ERROR]
    if call.detail:
        line["detail"] = call.detail[:_LONGEST_ERROR]
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
    """Writes a line a request to ``stream`` (standard output), from a thread of its own.

    ``dropped`` is called for each line that a reader too slow for them has cost.
    """

    def __init__(
        self,
        form: Callable[[dict[str, object]], bytes],
        dropped: Callable[[], None],
        stream: BinaryIO | None = None,
    ) -> None:
        self._form: Final = form
        self._dropped: Final = dropped
        self._stream: Final = stream or sys.stdout.buffer
        self._waiting: Final[deque[bytes]] = deque()
        self._closing: Final = threading.Event()
        self._writer: Final = threading.Thread(
            target=self._run, name="infergate-access-log", daemon=True
        )
        self._writer.start()

    def record(self, call: Call, seconds: float, now: float) -> None:
        """Tell a finished request. Never waits."""
        if len(self._waiting) >= _WAITING:
            self._dropped()
        else:
            self._waiting.append(self._form(fields(call, seconds, now)))

    def close(self) -> None:
        """Write what waits, for a second at most."""
        self._closing.set()
        self._writer.join(_LAST)

    def _run(self) -> None:
        try:
            while not self._closing.wait(_EVERY):
                self._write()
            self._write()
        except (OSError, ValueError):
            return  # a closed standard output ends the log, not the gateway

    def _write(self) -> None:
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if lines:
            self._stream.write(b"".join(lines))
            self._stream.flush()

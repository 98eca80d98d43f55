"""One line a request, as JSON or text.

*Strategy.* A thread of its own writes what has gathered since it last wrote: a reader of the log
that stops reading stops that thread, and no request.
*Rule 1.* What a client sent (model name, id) is always quoted, so that no request can forge a line,
and cut, so that none can fill the disk. Tensor data and headers are never logged.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Final

import orjson

from infergate.core.call import Call

_WAITING: Final = 10_000  # lines that may wait to be written; further ones are dropped
_EVERY: Final = 0.05  # seconds between two writes: waking a thread a line would cost more than it
_LAST: Final = 1.0  # seconds the last lines have to be written
_LONGEST: Final = 256  # characters of a client's string that are kept
_REMEMBERED: Final = 512  # combinations of what lines have in common; under 2 MB
_LONGEST_ERROR: Final = 1024  # an error repeats what a client or a backend sent


def iso(now: float) -> str:
    """The wall clock's ``now`` as lines tell it: in UTC, to the millisecond."""
    second, micros = divmod(round(now * 1e6), 1_000_000)
    return f"{_second(second)}.{micros // 1000:03}+00:00"


@functools.lru_cache(maxsize=2)
def _second(second: int) -> str:
    """Lines come many a second, and this is most of what the time costs."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


Line = Callable[[Call, float, float], bytes]
"""A finished request as a line. It took so many seconds, until then by the wall clock."""
Fields = Mapping[str, object]
_LABELS: Final = (
    "protocol", "operation", "model", "route", "backend", "backend_protocol", "way", "outcome"
)  # fmt: skip
"""What many requests have in common."""


def _lines(told: Callable[[Fields], bytes], layout: bytes) -> Line:
    """Lines of fields as they are ``told``; in ``layout`` the time comes first, then three groups
    of fields. The middle one is remembered: writing it anew would cost most of a line."""

    @functools.lru_cache(maxsize=_REMEMBERED)
    def labels(*values: str) -> bytes:
        return told(dict(zip(_LABELS, values, strict=True)))

    def line(call: Call, seconds: float, now: float) -> bytes:
        return layout % (
            iso(now).encode(),
            told({"event": "request", "request_id": call.request_id[:_LONGEST], "peer": call.peer}),
            labels(
                call.protocol,
                call.operation,
                call.model[:_LONGEST],
                call.route,
                call.backend,
                call.backend_protocol,
                call.way,
                call.outcome,
            ),
            told(_measured(call, seconds)),
        )

    return line


def _measured(call: Call, seconds: float) -> Fields:
    fields: dict[str, object] = {
        "seconds": round(seconds, 6),
        "backend_seconds": round(call.backend_seconds, 6),
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
    }
    if call.messages is not None:
        fields["messages"] = call.messages
    if call.error:
        fields["error"] = call.error[:_LONGEST_ERROR]
    if call.detail:
        fields["detail"] = call.detail[:_LONGEST_ERROR]
    return fields


def _as_json(fields: Fields) -> bytes:
    """Members of a JSON object."""
    return orjson.dumps(fields)[1:-1]


def _as_text(fields: Fields) -> bytes:
    """``key=value`` pairs; strings that need it are quoted as JSON does, empty ones left out."""
    pairs = []
    for key, value in fields.items():
        if type(value) is not str:
            pairs.append(f"{key}={value}")
        elif value:
            pairs.append(f"{key}={value if _is_plain(value) else orjson.dumps(value).decode()}")
    return " ".join(pairs).encode("utf-8", "backslashreplace")


_is_plain: Final = re.compile(r"[!#-<>-\[\]-~]+").fullmatch
"""Printable ASCII but for the space, the quote, the equals sign and the backslash."""


FORMATS: Final[dict[str, Line]] = {
    "json": _lines(_as_json, b'{"time":"%b",%b,%b,%b}\n'),
    "text": _lines(_as_text, b"%b %b %b %b\n"),
}


class AccessLog:
    """Writes a line a request to ``stream`` (standard output), from a thread of its own.

    ``dropped`` is called for each line that a reader too slow for them has cost.
    """

    def __init__(
        self,
        line: Line,
        dropped: Callable[[], None],
        stream: BinaryIO | None = None,
    ) -> None:
        self._line: Final = line
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
            self._waiting.append(self._line(call, seconds, now))

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

"""The access log: one line per request, as JSON or text.

A separate thread formats and writes the requests that have gathered since its last run, so that no
request waits for its line, and a reader of the log that stops reading blocks only that thread.

*Rule 1.* Text from clients (model name, request id) is quoted, with control characters, U+2028 and
bidirectional controls escaped, so that no request can forge a line; and truncated, so that none can
fill the disk. Tensor data and headers are never logged.
*Rule 2.* The line of a failed request has advice on what to do.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import BinaryIO, Final, NamedTuple

import orjson

from infergate.core.call import Call
from infergate.core.names import escaped
from infergate.core.vocabulary import ADVICE, REQUEST

_WAITING: Final = 10_000
"""Maximum number of lines that wait to be written; further ones are dropped."""
_EVERY: Final = 0.05
"""Seconds between two writes; waking the thread for each line would cost more than the line."""
_AT_ONCE: Final = 64
"""Lines formatted before the thread releases the interpreter, about 0.3 ms."""
_LAST: Final = 1.0
"""Maximum time in seconds to write the last lines on close."""
_LONGEST: Final = 256
"""Maximum number of characters of a client's text."""
_REMEMBERED: Final = 512
"""Number of cached combinations of labels; under 2 MB."""
NO_TURN: Final[AbstractContextManager[object]] = nullcontext()
_LONGEST_ERROR: Final = 1024
"""Maximum number of characters of an error, which may contain text of a client or backend."""


def iso(now: float) -> str:
    """Format the wall clock time ``now`` in UTC, to the millisecond."""
    second, micros = divmod(round(now * 1e6), 1_000_000)
    return f"{_second(second)}.{micros // 1000:03}+00:00"


@functools.lru_cache(maxsize=2)
def _second(second: int) -> str:
    # Cached: many lines share a second, and this is most of the cost of formatting the time.
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Told(NamedTuple):
    """The fields of an access log line, truncated to their maximum lengths."""

    now: float
    """The wall clock time at which the request finished."""
    asked: tuple[str, str]
    labels: tuple[str, ...]
    """The values that many requests share, by the names in ``_LABELS``."""
    seconds: float
    """The request's duration."""
    backend_seconds: float
    bytes_in: int
    bytes_out: int
    messages: int | None
    error: str
    detail: str
    identity: str
    trace: str
    """The trace id of a sampled request, else empty."""
    left_out: int = 0
    """Number of similar requests since the last line that sampling skipped."""


_ASKED: Final = ("request_id", "peer")
_LABELS: Final = (
    "protocol", "operation", "model", "route", "backend", "backend_protocol", "way", "outcome"
)  # fmt: skip


def told(call: Call, seconds: float, now: float, left_out: int = 0) -> Told:
    """Return the log fields of a finished request."""
    return Told(
        now,
        (call.request_id[:_LONGEST], call.peer),
        (
            call.protocol,
            call.operation,
            call.model[:_LONGEST],
            call.route,
            call.backend,
            call.backend_protocol,
            call.way,
            call.outcome,
        ),
        seconds,
        call.backend_seconds,
        call.bytes_in,
        call.bytes_out,
        call.messages,
        call.error[:_LONGEST_ERROR],
        call.detail[:_LONGEST_ERROR],
        call.identity[:_LONGEST],
        "" if call.trace is None else call.trace.id,
        left_out,
    )


Line = Callable[[Told], bytes]
Fields = Mapping[str, object]


def _lines(spelt: Callable[[Fields], str], layout: str, between: str) -> Line:
    """Return a function that formats lines, using ``format_fields`` for the fields.

    ``layout`` takes the time, request id and peer, the labels, four numbers, and the optional
    fields, which follow ``separator``. Formatted labels are cached: they are most of the cost.
    """

    @functools.lru_cache(maxsize=_REMEMBERED)
    def labels(values: tuple[str, ...]) -> str:
        return spelt(dict(zip(_LABELS, values, strict=True)))

    def line(entry: Told) -> bytes:
        optional = _rest(entry)
        text = layout % (
            iso(entry.now),
            spelt(dict(zip(_ASKED, entry.asked, strict=True))),
            labels(entry.labels),
            entry.seconds,
            entry.backend_seconds,
            entry.bytes_in,
            entry.bytes_out,
            f"{between}{spelt(optional)}" if optional else "",
        )
        if not text.isascii() or "\x7f" in text:  # JSON escapes the other control characters
            text = escaped(text)
        return text.encode()

    return line


def _rest(told: Told) -> Fields:
    """Return the fields that only some lines have."""
    fields: dict[str, object] = {}
    if told.identity:
        fields["identity"] = told.identity
    if told.trace:
        fields["trace_id"] = told.trace
    if told.messages is not None:
        fields["messages"] = told.messages
    if told.error:
        fields["error"] = told.error
    if told.detail:
        fields["detail"] = told.detail
    if told.left_out:
        fields["left_out"] = told.left_out
    advice = ADVICE.get(told.labels[-1])
    if advice is not None:
        fields["advice"] = advice
    return fields


def _as_json(fields: Fields) -> str:
    """Format ``fields`` as the members of a JSON object."""
    try:
        return orjson.dumps(fields)[1:-1].decode()
    except TypeError:
        safe = {k: printable(v) if isinstance(v, str) else v for k, v in fields.items()}
        return orjson.dumps(safe)[1:-1].decode()


def printable(text: str) -> str:
    """Escape lone surrogates in ``text``, which JSON cannot represent."""
    return text.encode("utf-8", "backslashreplace").decode()


def _as_text(fields: Fields) -> str:
    """Format ``fields`` as ``key=value``. Strings are quoted as in JSON if needed, or left out if
    empty.
    """
    pairs = []
    for key, value in fields.items():
        if type(value) is not str:
            pairs.append(f"{key}={value}")
        elif value:
            pairs.append(f"{key}={value if _is_plain(value) else _quoted(value)}")
    return " ".join(pairs)


def _quoted(text: str) -> str:
    return orjson.dumps(printable(text)).decode()


_is_plain: Final = re.compile(r"[!#-<>-\[\]-~]+").fullmatch
"""Printable ASCII except the space, the double quote, the equals sign and the backslash."""


FORMATS: Final[dict[str, Line]] = {
    "json": _lines(
        _as_json,
        f'{{"time":"%s","event":"{REQUEST}",%s,%s,'
        '"seconds":%.6f,"backend_seconds":%.6f,"bytes_in":%d,"bytes_out":%d%s}\n',
        ",",
    ),
    "text": _lines(
        _as_text,
        f"%s event={REQUEST} %s %s seconds=%.6f backend_seconds=%.6f bytes_in=%d bytes_out=%d%s\n",
        " ",
    ),
}


class AccessLog:
    """Writes a line per request to ``stream``, by default standard output, from its own thread.

    ``on_dropped`` is called for each line dropped because the reader is too slow. ``lock`` is held
    while lines are written; it does something only where several processes write to the stream.
    """

    def __init__(
        self,
        line: Line,
        dropped: Callable[[], None],
        stream: BinaryIO | None = None,
        turn: AbstractContextManager[object] = NO_TURN,
    ) -> None:
        self._line: Final = line
        self._turn: Final = turn
        self._dropped: Final = dropped
        self._stream: Final = stream or sys.stdout.buffer
        self._waiting: Final[deque[Told]] = deque()
        self._closing: Final = threading.Event()
        self._writer: Final = threading.Thread(
            target=self._run, name="infergate-access-log", daemon=True
        )
        self._writer.start()

    def record(self, call: Call, seconds: float, now: float) -> None:
        """Log a finished request. Never blocks."""
        self._tell(told(call, seconds, now))

    def _tell(self, line: Told) -> None:
        if len(self._waiting) >= _WAITING:
            self._dropped()
        else:
            self._waiting.append(line)

    def close(self) -> None:
        """Write the waiting lines, for at most a second, and stop."""
        self._closing.set()
        self._writer.join(_LAST)

    def _run(self) -> None:
        try:
            while not self._closing.wait(_EVERY):
                self._write()
            self._write()
        except (OSError, ValueError):
            return  # a closed stream ends the log, not the gateway

    def _write(self) -> None:
        while count := min(len(self._waiting), _AT_ONCE):
            lines = [self._line(self._waiting.popleft()) for _ in range(count)]
            with self._turn:
                self._stream.write(b"".join(lines))
                self._stream.flush()

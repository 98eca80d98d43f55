"""One line a request, as JSON or text.

*Strategy.* A thread of its own makes lines of what has gathered since it last wrote: no request
waits for its line, and a reader of the log that stops reading stops that thread alone.
*Rule 1.* What a client sent (model name, id) is always quoted, so that no request can forge a line
(control characters, U+2028 and the controls of bidirectional text are escaped), and cut, so that
none can fill the disk. Tensor data and headers are never logged.
*Rule 2.* A line of a request that failed tells what to do next.
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

_WAITING: Final = 10_000  # lines that may wait to be written; further ones are dropped
_EVERY: Final = 0.05  # seconds between two writes: waking a thread a line would cost more than it
_AT_ONCE: Final = 64  # lines made before others may have the interpreter, about 0.3 ms
_LAST: Final = 1.0  # seconds the last lines have to be written
_LONGEST: Final = 256  # characters of a client's string that are kept
_REMEMBERED: Final = 512  # combinations of what lines have in common; under 2 MB
NO_TURN: Final[AbstractContextManager[object]] = nullcontext()
_LONGEST_ERROR: Final = 1024  # an error repeats what a client or a backend sent


def iso(now: float) -> str:
    """The wall clock's ``now`` as lines tell it: in UTC, to the millisecond."""
    second, micros = divmod(round(now * 1e6), 1_000_000)
    return f"{_second(second)}.{micros // 1000:03}+00:00"


@functools.lru_cache(maxsize=2)
def _second(second: int) -> str:
    """Lines come many a second, and this is most of what the time costs."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Told(NamedTuple):
    """What a line tells, cut to its length."""

    now: float
    """The wall clock."""
    asked: tuple[str, str]
    labels: tuple[str, ...]
    """What many requests have in common."""
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
    """Its id, of one that is sampled."""
    left_out: int = 0
    """Requests alike since the last line of one, of which there are none."""


_ASKED: Final = ("request_id", "peer")
_LABELS: Final = (
    "protocol", "operation", "model", "route", "backend", "backend_protocol", "way", "outcome"
)  # fmt: skip


def told(call: Call, seconds: float, now: float, left_out: int = 0) -> Told:
    """What is told of a finished request."""
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
    """Lines of fields as they are ``spelt``. In ``layout`` stand the time, who asked, the labels,
    four numbers, and what few lines have, which comes after ``between``.

    Labels are remembered: spelling them anew would cost most of a line.
    """

    @functools.lru_cache(maxsize=_REMEMBERED)
    def labels(values: tuple[str, ...]) -> str:
        return spelt(dict(zip(_LABELS, values, strict=True)))

    def line(told: Told) -> bytes:
        rest = _rest(told)
        text = layout % (
            iso(told.now),
            spelt(dict(zip(_ASKED, told.asked, strict=True))),
            labels(told.labels),
            told.seconds,
            told.backend_seconds,
            told.bytes_in,
            told.bytes_out,
            f"{between}{spelt(rest)}" if rest else "",
        )
        if not text.isascii() or "\x7f" in text:  # JSON has escaped all other ones
            text = escaped(text)
        return text.encode()

    return line


def _rest(told: Told) -> Fields:
    """What few lines have."""
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
    """Members of a JSON object."""
    try:
        return orjson.dumps(fields)[1:-1].decode()
    except TypeError:
        told = {k: printable(v) if isinstance(v, str) else v for k, v in fields.items()}
        return orjson.dumps(told)[1:-1].decode()


def printable(text: str) -> str:
    """``text`` as JSON: a lone surrogate is none, and nothing is to be lost for one."""
    return text.encode("utf-8", "backslashreplace").decode()


def _as_text(fields: Fields) -> str:
    """``key=value`` pairs; strings that need it are quoted as JSON does, empty ones left out."""
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
"""Printable ASCII but for the space, the quote, the equals sign and the backslash."""


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
    """Writes a line a request to ``stream`` (standard output), from a thread of its own.

    ``dropped`` is called for each line that a reader too slow for them has cost. ``turn`` is held
    while lines are written, where other processes write to the stream as well.
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
        """Tell a finished request. Never waits."""
        self._tell(told(call, seconds, now))

    def _tell(self, line: Told) -> None:
        if len(self._waiting) >= _WAITING:
            self._dropped()
        else:
            self._waiting.append(line)

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
        while count := min(len(self._waiting), _AT_ONCE):
            lines = [self._line(self._waiting.popleft()) for _ in range(count)]
            with self._turn:
                self._stream.write(b"".join(lines))
                self._stream.flush()

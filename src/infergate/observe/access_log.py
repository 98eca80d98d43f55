"""The access log: one line per request, as JSON or text.

A separate thread formats and writes the lines, so that neither formatting nor a slow reader of the
log blocks requests.

*Rule 1.* Text from clients (model name, request id) is truncated and, if necessary, quoted. Control
characters, U+2028 and bidirectional controls are escaped, so that no request can forge a line or
fill the disk. Tensor data and headers are never logged.
*Rule 2.* The line of a failed request contains advice for the operator.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import BinaryIO, Final, NamedTuple

import orjson

from infergate.core.log_events import ADVICE, REQUEST_EVENT
from infergate.core.name_rules import escape_unsafe
from infergate.core.request_context import RequestContext
from infergate.observe.log_sampler import LogSampler

_MAX_WAITING: Final = 10_000
"""Maximum number of lines that wait to be written. Further lines are dropped."""
_WRITE_INTERVAL_SECONDS: Final = 0.2
"""Seconds between two writes. Waking the thread for each line would cost more than writing the
line."""
_LINES_PER_WAKE_UP: Final = 256
"""Number of waiting lines at which the thread is woken early, so that it never has many lines to
write at once."""
_LINES_PER_WRITE: Final = 64
"""Number of lines that the thread formats, in about 0.3 ms, before it releases the interpreter
lock."""
_CLOSE_TIMEOUT_SECONDS: Final = 1.0
_MAX_TEXT: Final = 256
"""Maximum number of characters of a text from a client."""
_CACHED_LABELS: Final = 512
"""Maximum number of cached combinations of labels, which take under 2 MB."""
_NO_LOCK: Final[AbstractContextManager[object]] = nullcontext()
_DIGITS: Final = [f"{number:03}" for number in range(1000)]
"""The numbers below 1,000, padded to three digits."""
_ALMOST_A_SECOND: Final = 0.999999
_MAX_ERROR_TEXT: Final = 1024
"""Maximum number of characters of an error, which may contain text from a client or backend."""


def iso_time(now: float) -> str:
    """Format the wall-clock time ``now`` in UTC, to the millisecond."""
    micros = int(now * 1e6 + 0.5)  # formatting with ``:03`` takes longer than ``_DIGITS``
    return f"{_iso_second(micros // 1_000_000)}.{_DIGITS[micros // 1000 % 1000]}+00:00"


def _format_seconds(seconds: float) -> str:
    if not 0.0 <= seconds < _ALMOST_A_SECOND:
        return f"{seconds:.6f}"
    micros = int(seconds * 1e6 + 0.5)
    return f"0.{_DIGITS[micros // 1000]}{_DIGITS[micros % 1000]}"


@functools.lru_cache(maxsize=2)
def _iso_second(second: int) -> str:
    # The result is cached, because many lines share a second, and formatting a second takes most of
    # the time of ``iso_time``.
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class LogFields(NamedTuple):
    """The fields of an access log line, truncated to their maximum lengths."""

    time: float
    """The wall-clock time at which the request finished."""
    request: tuple[str, str]
    labels: tuple[str, ...]
    """The values that many requests share, in the order of ``_LABELS``."""
    seconds: float
    backend_seconds: float
    bytes_in: int
    bytes_out: int
    optional: tuple[str, str, int | None, str, str, str, int | None]
    """The values in the order of ``_OPTIONAL``. A value that is empty or None is not logged."""


_new_tuple: Final = tuple.__new__
"""Creates a ``LogFields`` at a third of the cost of calling the class."""
_NO_OPTIONAL: Final = ("", "", None, "", "", "", None)
"""The optional fields of most requests."""
_OPTIONAL: Final = ("identity", "trace_id", "messages", "cache", "error", "detail", "left_out")
"""The client's identity, the trace ID of a sampled request, the number of a stream's messages, the
result of the response cache, the error and its detail, and the number of similar requests that the
sampler has skipped since the last line."""
_REQUEST: Final = ("request_id", "peer")
_LABELS: Final = (
    "protocol", "operation", "model", "route", "backend", "backend_protocol", "pipeline", "outcome"
)  # fmt: skip


def log_fields(context: RequestContext, seconds: float, now: float, left_out: int = 0) -> LogFields:
    """Return the log fields of a finished request."""
    record = context.record
    return _new_tuple(
        LogFields,
        (
            now,
            (context.request_id[:_MAX_TEXT], context.peer),
            (
                record.protocol,
                record.operation,
                record.model[:_MAX_TEXT],
                record.route,
                record.backend,
                record.backend_protocol,
                record.pipeline,
                record.outcome,
            ),
            seconds,
            record.backend_seconds,
            record.bytes_in,
            record.bytes_out,
            (
                "" if context.permit is None else context.permit.identity[:_MAX_TEXT],
                "" if context.trace is None else context.trace.id,
                record.response_count,
                record.cache,
                record.error and record.error[:_MAX_ERROR_TEXT],
                record.detail and record.detail[:_MAX_ERROR_TEXT],
                left_out or None,
            ),
        ),
    )


LineFormatter = Callable[[LogFields], bytes]
Fields = Mapping[str, object]


def _line_formatter(
    format_fields: Callable[[Fields], str], request_layout: str, layout: str, separator: str
) -> LineFormatter:
    """Return a function that formats lines, using ``format_fields`` for the fields.

    ``layout`` is a template for the time, request id and peer, the labels, four numbers, and the
    optional fields, which follow ``separator``. ``request_layout`` is a template for a request id
    and a peer without quotes. Formatted labels are cached, because formatting them is slow."""
    labels = functools.lru_cache(maxsize=_CACHED_LABELS)(
        lambda values: format_fields(dict(zip(_LABELS, values, strict=True)))
    )

    def line(entry: LogFields) -> bytes:
        time, request, shared, seconds, backend_seconds, bytes_in, bytes_out, rest = entry
        request_id, peer = request
        optional = ""
        if rest != _NO_OPTIONAL or shared[-1] in ADVICE:
            optional = f"{separator}{format_fields(_optional_fields(entry))}"
        text = layout % (
            iso_time(time),
            request_layout % request
            if request_id and peer and _is_plain(request_id + peer)
            else format_fields(dict(zip(_REQUEST, request, strict=True))),
            labels(shared),
            _format_seconds(seconds),
            _format_seconds(backend_seconds),
            bytes_in,
            bytes_out,
            optional,
        )
        if not text.isascii() or "\x7f" in text:  # JSON escapes the other control characters
            text = escape_unsafe(text)
        return text.encode()

    return line


def _optional_fields(entry: LogFields) -> Fields:
    advice = ADVICE.get(entry.labels[-1])
    values = zip((*_OPTIONAL, "advice"), (*entry.optional, advice), strict=True)
    return {name: value for name, value in values if value not in {None, ""}}


def _as_json(fields: Fields) -> str:
    try:
        return orjson.dumps(fields)[1:-1].decode()
    except TypeError:
        safe = {k: printable(v) if isinstance(v, str) else v for k, v in fields.items()}
        return orjson.dumps(safe)[1:-1].decode()


def printable(text: str) -> str:
    """Escape lone surrogates in ``text``, which JSON cannot represent."""
    return text.encode("utf-8", "backslashreplace").decode()


def _as_text(fields: Fields) -> str:
    """Format ``fields`` as ``key=value``. Strings are quoted as in JSON if needed. Empty strings
    are omitted."""
    pairs = []
    for key, value in fields.items():
        if type(value) is not str:
            pairs.append(f"{key}={value}")
        elif value:
            pairs.append(f"{key}={value if _is_plain(value) else _quote(value)}")
    return " ".join(pairs)


def _quote(text: str) -> str:
    return orjson.dumps(printable(text)).decode()


def _is_plain(text: str) -> bool:
    """Return whether ``text`` is not empty and consists of printable ASCII except the space, the
    double quote, the equals sign and the backslash. A regular expression takes twice as long."""
    return (
        text != ""
        and text.isascii()
        and text.isprintable()
        and " " not in text
        and '"' not in text
        and "=" not in text
        and "\\" not in text
    )


FORMATS: Final[dict[str, LineFormatter]] = {
    "json": _line_formatter(
        _as_json,
        '"request_id":"%s","peer":"%s"',
        f'{{"time":"%s","event":"{REQUEST_EVENT}",%s,%s,'
        '"seconds":%s,"backend_seconds":%s,"bytes_in":%d,"bytes_out":%d%s}\n',
        ",",
    ),
    "text": _line_formatter(
        _as_text,
        "request_id=%s peer=%s",
        f"%s event={REQUEST_EVENT} %s %s seconds=%s backend_seconds=%s "
        "bytes_in=%d bytes_out=%d%s\n",
        " ",
    ),
}


class AccessLog:
    """Writes a line to ``stream`` (by default, standard output) for each request, or only for the
    requests that ``sampler`` selects. A separate thread writes the lines.

    ``on_dropped`` is called for each line dropped because the reader is too slow. ``lock`` is held
    while lines are written, because several processes may share the stream.
    """

    def __init__(
        self,
        line: LineFormatter,
        on_dropped: Callable[[], None],
        stream: BinaryIO | None = None,
        lock: AbstractContextManager[object] = _NO_LOCK,
        sampler: LogSampler | None = None,
    ) -> None:
        self._line: Final = line
        self._lock: Final = lock
        self._on_dropped: Final = on_dropped
        self._sampler: Final = sampler
        self._stream: Final = stream or sys.stdout.buffer
        self._waiting: Final[deque[LogFields]] = deque()
        self._wake_up: Final = threading.Event()
        self._wake_up_at = 1
        """Number of waiting lines at which the thread is woken."""
        self._is_closing = False
        self._writer: Final = threading.Thread(
            target=self._run, name="infergate-access-log", daemon=True
        )
        self._writer.start()

    def record(self, context: RequestContext, seconds: float, now: float) -> None:
        """Log a finished request unless the sampler skips the request. Never blocks."""
        left_out = 0
        if self._sampler is not None:
            record = context.record
            count = self._sampler.count_left_out(record.route, record.outcome, now)
            if count is None:
                return
            left_out = count
        waiting = self._waiting
        if len(waiting) >= _MAX_WAITING:
            self._on_dropped()
            return
        waiting.append(log_fields(context, seconds, now, left_out))
        if len(waiting) >= self._wake_up_at and not self._wake_up.is_set():
            self._wake_up.set()

    def close(self) -> None:
        """Write the waiting lines, for at most a second, and stop."""
        self._is_closing = True
        self._wake_up.set()
        self._writer.join(_CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                if not self._write():
                    self._wait_for_line()
                self._wake_up.wait(_WRITE_INTERVAL_SECONDS)
                self._wake_up.clear()
            self._write()
        except (OSError, ValueError):
            return  # a closed stream ends the log, not the gateway

    def _wait_for_line(self) -> None:
        """Wait for a line without a timeout, because an idle process must not wake up."""
        self._wake_up_at = 1
        if not (self._waiting or self._is_closing):  # a line may have arrived since ``_write``
            self._wake_up.wait()
        self._wake_up_at = _LINES_PER_WAKE_UP
        if not self._is_closing:
            self._wake_up.clear()

    def _write(self) -> bool:
        """Write the waiting lines. Return whether there were waiting lines."""
        has_written = False
        while count := min(len(self._waiting), _LINES_PER_WRITE):
            lines = [self._line(self._waiting.popleft()) for _ in range(count)]
            with self._lock:
                self._stream.write(b"".join(lines))
                self._stream.flush()
            has_written = True
        return has_written

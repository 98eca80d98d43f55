"""Server-sent events: the format of streamed responses over HTTP (HTML standard, 9.2.5 and 9.2.6).

Only the data of an event is used; other fields are ignored. The parser examines each byte once and
holds at most one event and the last piece, however the body is split."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.tensor import Buffer

EVENT_STREAM_TYPE: Final = "text/event-stream"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


def format_event(text: Buffer) -> list[Buffer]:
    """Return the event with the data ``text``, which must not contain a line break."""
    return [b"data: ", text, b"\n\n"]


class EventStreamParser:
    """Extracts the data of events from a body that arrives in pieces. Events of more than
    ``max_event_bytes`` are rejected."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes: Final = max_event_bytes
        self._lines: Final[deque[bytes]] = deque()
        self._partial_line = bytearray()  # the start of a line whose end has not arrived
        self._after_carriage_return = False  # a following line feed belongs to the same line end
        self._is_at_start = True
        self._data_lines: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> None:
        """Add the next piece of the body."""
        if self._after_carriage_return and data:
            self._after_carriage_return = False
            data = data.removeprefix(b"\n")
        *lines, partial_line = _LINE_END.split(data)
        if lines:
            lines[0] = bytes(self._partial_line + lines[0])
            if self._is_at_start:
                self._is_at_start = False
                lines[0] = lines[0].removeprefix(_BOM)
            self._lines.extend(lines)
            self._partial_line.clear()
            self._after_carriage_return = data.endswith(b"\r")
        self._partial_line += partial_line

    def next_event(self) -> bytes | None:
        """Return the data of the next event, or None if the event is incomplete. Raises
        TOO_LARGE."""
        lines = self._lines
        while lines:
            line = lines.popleft()
            if not line and self._data_lines:
                data = b"\n".join(self._data_lines)
                self._data_lines, self._data_bytes = [], 0
                self._check_size(len(data))
                return data
            if line.startswith(b"data"):
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data_lines.append(value.removeprefix(b" "))
                    self._data_bytes += len(value) + 1
        self._check_size(self.buffered_bytes)
        return None

    def _check_size(self, size: int) -> None:
        if size > self._max_event_bytes:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"an event of the response exceeds the limit of {self._max_event_bytes} bytes",
            )

    @property
    def buffered_bytes(self) -> int:
        """The number of buffered bytes of the incomplete event."""
        return self._data_bytes + len(self._partial_line)

    @property
    def is_between_events(self) -> bool:
        """Whether the body may end at this point, because no event is incomplete."""
        return not (self._data_lines or self._partial_line)

"""Server-sent events: the format of streamed responses over HTTP (HTML standard, 9.2.5 and 9.2.6).

Only the data of an event is used; other fields are ignored. However the body is split, each byte is
examined once, and the parser holds at most one event and the bytes fed last.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from infergate.core.errors import GatewayError, Kind
from infergate.core.tensor import Buffer

TYPE: Final = "text/event-stream"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_MARK: Final = b"\xef\xbb\xbf"
"""The UTF-8 byte order mark that may begin the body."""


def written(text: Buffer) -> list[Buffer]:
    """Return the event with the data ``text``, which must not contain a line break."""
    return [b"data: ", text, b"\n\n"]


class Events:
    """Extracts the data of events from a body that arrives in pieces. The limit is
    ``max_event_bytes`` per event."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._lines: Final[deque[bytes]] = deque()
        self._begun = bytearray()  # the start of a line whose end has not arrived
        self._after_return = False  # a line feed that comes next belongs to the same line end
        self._is_first = True
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Add the next piece of the body."""
        if self._after_return and data:
            self._after_return = False
            data = data.removeprefix(b"\n")
        *lines, partial_line = _LINE_END.split(data)
        if lines:
            lines[0] = bytes(self._begun + lines[0])
            if self._is_first:
                self._is_first = False
                lines[0] = lines[0].removeprefix(_MARK)
            self._lines.extend(lines)
            self._begun.clear()
            self._after_return = data.endswith(b"\r")
        self._begun += partial_line

    def next(self) -> bytes | None:
        """Return the data of the next event; None if it has not arrived completely. Raises
        TOO_LARGE."""
        lines = self._lines
        while lines:
            line = lines.popleft()
            if not line and self._data:
                data = b"\n".join(self._data)
                self._data, self._size = [], 0
                return data
            if line.startswith(b"data"):
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value.removeprefix(b" "))
                    self._size += len(value) + 1
        if self.held > self._most:
            raise GatewayError(
                Kind.TOO_LARGE, f"an event of the response exceeds the limit of {self._most} bytes"
            )
        return None

    @property
    def held(self) -> int:
        """The bytes of the incomplete event."""
        return self._size + len(self._begun)

    @property
    def is_between(self) -> bool:
        """Whether the body may end here: no event is incomplete."""
        return not (self._data or self._begun)

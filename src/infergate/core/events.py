"""Server-sent events: texts over HTTP, one after the other in one body.

Of an event its data alone is of use here. Source: the HTML standard, 9.2.5 and 9.2.6.

*Rule.* However the bytes are cut, each is looked at once, and no more of them are held than one
event may have and what was fed last.
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
"""Of UTF-8, which may begin the body."""


def written(text: Buffer) -> list[Buffer]:
    """The event whose data is ``text``, which has no line end in it."""
    return [b"data: ", text, b"\n\n"]


class Events:
    """Cuts the events out of a body's bytes, of which one may have ``most``."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._lines: Final[deque[bytes]] = deque()
        self._begun = bytearray()  # a line that has not ended
        self._after_return = False  # a line feed now would belong to the line before
        self._is_first = True
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """More of the body."""
        if self._after_return and data:
            self._after_return = False
            data = data.removeprefix(b"\n")
        *ended, begun = _LINE_END.split(data)
        if ended:
            ended[0] = bytes(self._begun + ended[0])
            if self._is_first:
                self._is_first = False
                ended[0] = ended[0].removeprefix(_MARK)
            self._lines.extend(ended)
            self._begun.clear()
            self._after_return = data.endswith(b"\r")
        self._begun += begun

    def next(self) -> bytes | None:
        """The data of the next event; None where it has not come whole. Raises TOO_LARGE."""
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
                Kind.TOO_LARGE, f"an event of the answer is over the limit of {self._most} bytes"
            )
        return None

    @property
    def held(self) -> int:
        """Bytes of the event that has begun."""
        return self._size + len(self._begun)

    @property
    def is_between(self) -> bool:
        """Whether a body that ends here ends after an event."""
        return not (self._data or self._begun)

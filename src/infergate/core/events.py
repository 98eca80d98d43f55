"""Server-sent events: texts over HTTP, one after the other in one body.

Of an event its data alone is of use here. Source: the HTML standard, 9.2.5 and 9.2.6.

*Rule.* However the bytes are cut, each is looked at once, and no more of them are held than what
one event may have.
"""

from __future__ import annotations

import re
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
        self._waiting = bytearray()  # less what was made lines of
        self._searched = 0  # bytes of it that hold no line end
        self._after_return = False  # a line feed now would belong to the line before
        self._is_first = True
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: Buffer) -> None:
        """More of the body."""
        self._waiting += data

    def next(self) -> bytes | None:
        """The data of the next event; None where it has not come whole. Raises TOO_LARGE."""
        while (line := self._line()) is not None:
            if not line and self._data:
                data = b"\n".join(self._data)
                self._data, self._size = [], 0
                return data
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value) + 1
                self._check()
        self._check()
        return None

    @property
    def is_between(self) -> bool:
        """Whether a body that ends here ends after an event."""
        return not (self._data or self._waiting)

    def _line(self) -> bytes | None:
        waiting = self._waiting
        if self._after_return and waiting:
            self._after_return = False
            if waiting[0] == b"\n"[0]:
                del waiting[:1]
        found = _LINE_END.search(waiting, self._searched)
        if found is None:
            self._searched = len(waiting)
            return None
        start, stop = found.span()
        self._after_return = found[0] == b"\r"
        line = bytes(memoryview(waiting)[:start])
        del waiting[:stop]
        self._searched = 0
        if self._is_first:
            self._is_first = False
            return line.removeprefix(_MARK)
        return line

    def _check(self) -> None:
        """``_searched`` bytes wait for the end of their line."""
        if self._size + self._searched > self._most:
            raise GatewayError(
                Kind.TOO_LARGE, f"an event of the answer is over the limit of {self._most} bytes"
            )

"""Events that an HTTP/2 connection reports to the code that uses it. Events that occur for every
request are named tuples, which are created three times as fast as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from infergate.core.tensor import Buffer
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.stream import Stream

new: Final = tuple.__new__
"""Creates a named tuple without the cost of its constructor."""


class Headers(NamedTuple):
    """A request, or the headers of a response. `end` means that there is no body."""

    stream: Stream
    fields: HeaderBlock
    end: bool


class Data(NamedTuple):
    """Part of a body: `size` bytes in `parts`, which may refer to the data passed to `receive`."""

    stream: Stream
    parts: list[Buffer]
    size: int
    end: bool


class Trailers(NamedTuple):
    """The body ended with trailers."""

    stream: Stream
    fields: HeaderBlock


@dataclass(slots=True)
class Reset:
    """The peer reset the stream, violated the protocol on it, or excluded it with a GOAWAY.
    `is_unprocessed` means that the peer did not process the request."""

    stream: Stream
    code: int
    is_unprocessed: bool


@dataclass(slots=True)
class Sent:
    """All data queued on the stream has been added to the output."""

    stream: Stream


@dataclass(slots=True)
class Ready:
    """The peer's first SETTINGS arrived, or later SETTINGS allow more streams."""


@dataclass(slots=True)
class Goaway:
    """The peer accepts no more streams. `code` is 0 for an orderly shutdown."""

    code: int
    reason: bytes


@dataclass(slots=True)
class Failed:
    """The last event: the connection has failed. The output ends with a GOAWAY."""

    code: int
    reason: str


Event = Headers | Data | Trailers | Reset | Sent | Ready | Goaway | Failed

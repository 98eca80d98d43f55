"""Events of an HTTP/2 peer, as reported to the user of the connection."""

from __future__ import annotations

from dataclasses import dataclass

from infergate.core.tensor import Buffer
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.stream import Stream


@dataclass(slots=True)
class Headers:
    """A request, or the headers of a response. `end`: there is no body."""

    stream: Stream
    fields: HeaderBlock
    end: bool


@dataclass(slots=True)
class Data:
    """Part of a body: `size` bytes in `parts`, valid while they are referenced."""

    stream: Stream
    parts: list[Buffer]
    size: int
    end: bool


@dataclass(slots=True)
class Trailers:
    """The body ended, with trailers."""

    stream: Stream
    fields: HeaderBlock


@dataclass(slots=True)
class Reset:
    """The peer reset the stream or broke a rule. `is_unprocessed`: it processed nothing."""

    stream: Stream
    code: int
    is_unprocessed: bool


@dataclass(slots=True)
class Sent:
    """All data queued on the stream has been handed to the transport."""

    stream: Stream


@dataclass(slots=True)
class Ready:
    """The peer's first SETTINGS arrived, or later SETTINGS that allow more streams."""


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

"""What an HTTP/2 peer did, as far as it concerns whoever holds the connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infergate.core.tensor import Buffer
from infergate.transport.h2.fields import Fields
from infergate.transport.h2.stream import Stream


@dataclass(slots=True)
class Headers:
    """A request, or the answer to one. ``end``: that is all of it."""

    stream: Stream
    fields: Fields
    end: bool


@dataclass(slots=True)
class Data:
    """Some of a body, which lives as long as it is held: ``size`` bytes in ``parts``. ``end``:
    nothing comes after it."""

    stream: Stream
    parts: Sequence[Buffer]
    size: int
    end: bool


@dataclass(slots=True)
class Trailers:
    """The end of a body that has fields."""

    stream: Stream
    fields: Fields


@dataclass(slots=True)
class Reset:
    """The stream is over, by the peer's will or by a rule it broke. ``untouched``: the peer says
    that it did nothing with it."""

    stream: Stream
    code: int
    untouched: bool


@dataclass(slots=True)
class Sent:
    """All that waited for the peer's windows on the stream is on its way."""

    stream: Stream


@dataclass(slots=True)
class Ready:
    """The peer's settings have come, or others that let us open more streams."""


@dataclass(slots=True)
class Goaway:
    """The peer takes no more streams. ``code`` is 0 where it leaves in good order."""

    code: int
    reason: bytes


@dataclass(slots=True)
class Failed:
    """The connection is over; a GOAWAY that says why is to be sent. Nothing comes after this."""

    code: int
    reason: str


Event = Headers | Data | Trailers | Reset | Sent | Ready | Goaway | Failed

"""What passes between a transport and a codec: one request or answer, no sockets.

Header and metadata names are lower-case; repeated ones are joined with ``", "``. A body or message
is given out as parts, so that a tensor's memory reaches the socket without being joined first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from infergate.core.memory import UNLIMITED, MemoryShare
from infergate.core.tensor import Buffer

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class HttpRequest:
    """``path`` is percent-encoded as it came, without the query; ``query`` without its ``?``."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    body: Sequence[Buffer] = ()
    memory: MemoryShare = field(default=UNLIMITED, kw_only=True, repr=False, compare=False)
    """Of a request to a backend: where its response is counted while it is received."""


class Rest(Protocol):
    """The rest of a body, which is made as it is pulled."""

    async def next(self) -> Sequence[Buffer] | None:
        """More of it; None at its end. Raises nothing but what cancels it."""
        ...

    async def close(self) -> None:
        """No more of it is wanted. It is called once, whatever happened."""
        ...


@dataclass(slots=True)
class HttpResponse:
    """``headers`` hold no Content-Length and no hop-by-hop fields: those are the transport's.

    ``reason`` is the status line's last part, where a protocol has words of its own for it;
    ``rest`` what follows ``body``, whose length nobody knows. None: ``body`` is all.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    body: Sequence[Buffer] = ()
    reason: str = ""
    rest: Rest | None = None


class LateMessage(Protocol):
    """A compressed message that inflates to more than its ``beginning``, which is inflated."""

    @property
    def beginning(self) -> Buffer:
        """Its first bytes."""
        ...

    async def whole(self, memory: MemoryShare) -> Buffer:
        """Inflate all of it, counted by ``memory`` before it is allocated. Raises OVERLOADED, and
        what is wrong with the message. It is called once."""
        ...


@dataclass(slots=True)
class RpcRequest:
    """A unary gRPC call. ``method`` is ``/package.Service/Method``."""

    method: str
    message: Sequence[Buffer] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    memory: MemoryShare = field(default=UNLIMITED, kw_only=True, repr=False, compare=False)
    """As ``HttpRequest.memory``."""
    late: LateMessage | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The message, if it is not inflated yet: ``message`` is empty then."""
    found: Any = field(default=None, init=False, repr=False, compare=False)
    """What its codec has found in the message, kept so that it is looked through once. It is nobody
    else's, and does not go to another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.method, self.message, self.metadata)


@dataclass(slots=True)
class RpcResponse:
    """The end of a unary gRPC call: a message, or a ``code`` other than 0 (OK) with ``details``."""

    message: Sequence[Buffer] = ()
    code: int = 0
    details: str = ""
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


def joined(parts: Sequence[Buffer]) -> Buffer:
    """All parts as one buffer; no copy where there is just one."""
    if len(parts) == 1:
        return parts[0]
    return b"".join(parts)


def size(parts: Sequence[Buffer]) -> int:
    """Bytes in all parts. Parts are byte buffers: ``len`` counts bytes."""
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))

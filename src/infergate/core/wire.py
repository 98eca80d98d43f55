"""The messages that pass between a transport and a codec.

Names of headers and metadata are lower-case. The values of a repeated name are joined with a comma
and a space. A body or message is a sequence of buffers, so that a tensor's memory is sent without a
copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from infergate.core.compilation import mypyc_attr
from infergate.core.memory import UNLIMITED, MemoryAccount
from infergate.core.records import EMPTY_MAPPING
from infergate.core.tensor import Buffer

NO_HEADERS: Final[Mapping[str, str]] = EMPTY_MAPPING


def _no_state() -> None:
    """Return the default of ``codec_state``. A default value would not work for a dataclass that
    extends a message, because the slot of the same name replaces the value."""


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class HttpRequest:
    """An HTTP request. ``path`` is percent-encoded, as received, and excludes the query. ``query``
    excludes the ``?``."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    body: Sequence[Buffer] = ()
    memory: MemoryAccount = field(default=UNLIMITED, kw_only=True, repr=False, compare=False)
    """For a request to a backend, the account charged for the response while it is received."""
    codec_state: Any = field(default_factory=_no_state, init=False, repr=False, compare=False)
    """Results that the codec's ``summarize`` keeps for its later steps. Only that codec uses them,
    and they are not pickled."""

    def __init__(  # noqa: PLR0913 - mypyc does not compile a dataclass's __init__
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        body: Sequence[Buffer] = (),
        *,
        memory: MemoryAccount = UNLIMITED,
    ) -> None:
        self.method, self.path, self.query = method, path, query
        self.headers, self.body = headers, body
        self.memory, self.codec_state = memory, None

    def __reduce__(self) -> tuple[Any, ...]:
        named = [field.name for field in fields(self) if field.init and not field.kw_only]
        return type(self), tuple([getattr(self, name) for name in named])


class BodyStream(Protocol):
    """A body that is produced while it is sent."""

    async def next(self) -> Sequence[Buffer] | None:
        """Return the next part of the body, or None at its end. Raises only cancellation."""
        ...

    async def close(self) -> None:
        """Stop producing the body. The transport calls this exactly once."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class HttpResponse:
    """An HTTP response. ``headers`` omit Content-Length and hop-by-hop fields, which the transport
    writes.

    ``reason`` is the reason phrase of the status line, for protocols that define their own.
    ``body_stream`` continues ``body`` with parts of unknown length. If it is None, ``body`` is
    complete."""

    status: int
    headers: Mapping[str, str] = NO_HEADERS
    body: Sequence[Buffer] = ()
    reason: str = ""
    body_stream: BodyStream | None = None

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str] = NO_HEADERS,
        body: Sequence[Buffer] = (),
        reason: str = "",
        body_stream: BodyStream | None = None,
    ) -> None:
        self.status, self.headers, self.body = status, headers, body
        self.reason, self.body_stream = reason, body_stream

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.status, self.headers, self.body, self.reason, self.body_stream
        return type(self), parts


class DeferredMessage(Protocol):
    """A compressed message; only its beginning has been inflated."""

    @property
    def prefix(self) -> Buffer:
        """The beginning of the inflated message."""
        ...

    async def inflate(self, memory: MemoryAccount) -> Buffer:
        """Return the complete inflated message, and charge ``memory`` before allocating. Call this
        method only once. Raises OVERLOADED, and errors of the compressed data."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class RpcRequest:
    """A unary gRPC call, or one request message of a stream. ``method`` is
    ``/package.Service/Method``."""

    method: str
    message: Sequence[Buffer] = ()
    metadata: Mapping[str, str] = NO_HEADERS
    memory: MemoryAccount = field(default=UNLIMITED, kw_only=True, repr=False, compare=False)
    """The account charged for the response, as in :class:`HttpRequest`."""
    deferred: DeferredMessage | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The message if it has not been inflated yet; ``message`` is then empty."""
    codec_state: Any = field(default_factory=_no_state, init=False, repr=False, compare=False)
    """Results that the codec's ``summarize`` keeps, as in :class:`HttpRequest`."""

    def __init__(
        self,
        method: str,
        message: Sequence[Buffer] = (),
        metadata: Mapping[str, str] = NO_HEADERS,
        *,
        memory: MemoryAccount = UNLIMITED,
        deferred: DeferredMessage | None = None,
    ) -> None:
        self.method, self.message, self.metadata = method, message, metadata
        self.memory, self.deferred, self.codec_state = memory, deferred, None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.method, self.message, self.metadata)


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class RpcResponse:
    """The response to a unary gRPC call, or one response of a stream: a message, or a ``code``
    other than 0 (OK) with ``details``."""

    message: Sequence[Buffer] = ()
    code: int = 0
    details: str = ""
    metadata: Mapping[str, str] = NO_HEADERS

    def __init__(
        self,
        message: Sequence[Buffer] = (),
        code: int = 0,
        details: str = "",
        metadata: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        self.message, self.code = message, code
        self.details, self.metadata = details, metadata

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.code, self.details, self.metadata)


def join_parts(parts: Sequence[Buffer]) -> Buffer:
    """Return all parts as one buffer. A single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    return b"".join(parts)


def total_size(parts: Sequence[Buffer]) -> int:
    """Return the total size of ``parts`` in bytes. Every part is a buffer of bytes."""
    size = 0
    for part in parts:  # ``sum`` and ``map`` are slower for a few parts
        size += len(part)
    return size

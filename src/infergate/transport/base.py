"""The contract between transports and the rest: bytes ⇄ sockets, no tensors.

Everything above this package speaks these types only, so another engine can take the place of
aiohttp and grpcio.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.limits import Limits
from infergate.core.memory import MemoryShare
from infergate.core.tensor import Buffer
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.transport.loads import Loads

Req_contra = TypeVar("Req_contra", contravariant=True)
Resp_co = TypeVar("Resp_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds: ``host`` and ``port``, of which 0 takes a free one; or, if there is
    one, the path ``unix`` of a socket file, which gets ``mode``."""

    host: str = ""
    port: int = 0
    unix: str = ""
    mode: int = 0o660

    def __str__(self) -> str:
        if self.unix:
            return f"unix:{self.unix}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One upstream server, on ``host`` and ``port`` or, if there is one, on the path ``unix`` of a
    socket file. ``path`` is a prefix for HTTP ("" or "/base", no slash at the end). ``framed``: it
    is spoken to in frames instead (``transport.frames``). ``address`` is the one of those of
    ``host`` that is meant; empty: any. Host headers and certificates go by the name."""

    host: str = ""
    port: int = 0
    tls: bool = False
    path: str = ""
    unix: str = ""
    framed: bool = False
    address: str = ""

    @property
    def reached(self) -> str:
        """What is connected to: an address, or a name that is looked up."""
        return self.address or self.host

    @property
    def authority(self) -> str:
        """``host:port`` with IPv6 in brackets; what a Host header says."""
        return "localhost" if self.unix else str(Address(self.host, self.port))

    def __str__(self) -> str:
        return str(Address(self.reached, self.port, self.unix))


def _nothing() -> None:
    """Only the sockets were there."""


@dataclass(frozen=True, slots=True)
class Bound:
    """``sockets`` that listen at one address: several where its name stands for several. They are
    the listener's, who closes them and calls ``let_go`` afterwards. ``loads`` is there where other
    processes accept from them as well.

    The library of gRPC (engine ``compat``) takes no sockets. It binds beside one that has
    SO_REUSEPORT and does not listen, which keeps the port for it.
    """

    sockets: tuple[socket.socket, ...]
    let_go: Callable[[], None] = _nothing
    loads: Loads | None = None

    @property
    def port(self) -> int:
        """Of TCP; 0 at the path of a file."""
        first = self.sockets[0]
        return 0 if first.family is socket.AF_UNIX else int(first.getsockname()[1])

    def close(self) -> None:
        """Nobody has accepted from them, or who has closed them already."""
        for each in self.sockets:
            each.close()
        self.let_go()


Bind = Callable[[Address], Awaitable[Bound]]
"""What has sockets for an address. Raises OSError."""


class HttpApp(Protocol):
    """What an HTTP listener serves."""

    async def respond(self, wire: HttpRequest, call: Call) -> HttpResponse:
        """Answer one request, its body read whole. Cancelled when the client goes away. Where the
        answer has a rest, that is closed in any case."""
        ...

    def refuse(self, error: GatewayError, wire: HttpRequest, call: Call) -> HttpResponse:
        """The answer to a request the transport itself turns away (too large, overloaded,
        too slow). ``wire`` has no body."""
        ...


class RpcApp(Protocol):
    """What a gRPC listener serves."""

    async def respond(self, wire: RpcRequest, call: Call) -> RpcResponse:
        """Answer one unary call to any method that ``streams`` does not hold."""
        ...

    def refuse(self, error: GatewayError, wire: RpcRequest, call: Call) -> RpcResponse:
        """The answer to a call the transport itself turns away. ``wire`` has no message."""
        ...

    @property
    def streams(self) -> Mapping[str, StreamHandler]:
        """Streaming methods by ``/package.Service/Method``."""
        ...

    @property
    def conversations(self) -> Mapping[str, Callable[[Call], Conversation]]:
        """Methods whose streams carry requests, and what makes one of such a stream."""
        ...


StreamHandler = Callable[[AsyncIterator[Buffer], Call], AsyncIterator[RpcResponse]]
"""Messages in, messages out; an RpcResponse with a code other than 0 ends the stream."""


class Conversation(Protocol):
    """A stream of requests, each of which has any number of answers."""

    @property
    def at_once(self) -> int:
        """How many requests are served at once."""
        ...

    async def begin(self) -> None:
        """Before anything is asked, which may be hours later. Raises GatewayError where there is to
        be no stream."""
        ...

    async def ask(
        self, message: Buffer, refused: GatewayError | None, memory: MemoryShare
    ) -> AsyncGenerator[RpcResponse, None]:
        """The answers to ``message``, which comes after all that were asked before; where the
        transport turns it away, the answer that tells what it ``refused`` it for. ``memory`` is the
        account of this request.

        An answer with a code other than 0 ends the stream. It is closed in any case.
        """
        ...


class Server(Protocol):
    """A listener."""

    @property
    def address(self) -> Address:
        """The address it really bound."""
        ...

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Those that it has now, as far as it knows them."""
        ...

    async def bind(self, bind: Bind | None = None, beside: Sequence[socket.socket] = ()) -> None:
        """Have sockets, by ``bind`` or of its own, and accept nobody yet. Its own may overlap
        ``beside``, which will be closed soon. Raises OSError where the address is taken."""
        ...

    async def start(self) -> None:
        """Accept; ``bind`` where that was not done. Raises OSError."""
        ...

    def serve(self, app: Any, limits: Limits) -> None:
        """From now on ``app``, of the kind that it was made for, serves what is asked, also on
        connections that are open; calls under way go on as they began. Connections that come keep
        ``limits``."""
        ...

    def calls(self) -> Iterable[asyncio.Task[None]]:
        """What serves requests and streams now."""
        ...

    def leave(self) -> None:
        """Stop accepting; connections stay. Where nothing can be done about that at once, ``stop``
        does it."""
        ...

    async def stop(self, grace: float) -> None:
        """Stop accepting, let requests finish for ``grace`` seconds, then cancel them. Called once
        more, it shortens that."""
        ...


class Upstream(Protocol[Req_contra, Resp_co]):
    """A pooled client of one carrier."""

    async def exchange(self, wire: Req_contra, endpoint: Endpoint, timeout: float) -> Resp_co:
        """Send and wait for the whole answer, at most ``timeout`` seconds.

        Raises CONNECT (nothing was sent), TIMEOUT, BACKEND_GARBAGE (the answer broke off or was
        not the protocol), TOO_LARGE. Cancelling it cancels the upstream request.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@runtime_checkable
class StreamUpstream(Protocol[Req_contra, Resp_co]):
    """What an upstream has besides that can be given many answers to one request."""

    def stream(
        self, wire: Req_contra, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[Resp_co, None]:
        """Send, and give the answers as they are pulled: no more of them are taken from the
        connection than that, but for what its own flow control lets in. Headers may come with any
        of them, and with one that holds nothing else.

        ``timeout``, in seconds, is of all of it; None: whoever pulls stops when he has waited
        enough. Raises like ``exchange``. Closing it, and cancelling a pull, cancels the upstream
        request.
        """
        ...


@runtime_checkable
class Dropping(Protocol):
    """What an upstream has besides whose endpoints may go away while others stay."""

    async def drop(self, endpoint: Endpoint) -> None:
        """Close all connections to ``endpoint``, where nothing is under way any more."""
        ...


class HttpStreamUpstream(
    Upstream[HttpRequest, HttpResponse], StreamUpstream[HttpRequest, HttpResponse], Protocol
):
    """Both of HTTP. Of an answer that is a stream of events each event is an answer."""


HttpUpstream = Upstream[HttpRequest, HttpResponse]
RpcUpstream = Upstream[RpcRequest, RpcResponse]

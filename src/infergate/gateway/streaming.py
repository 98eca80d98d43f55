"""Streams of inferences: any number of requests, each of which has any number of answers.

*Rule 1.* Requests of one sequence are carried out one after the other, as they came.
*Rule 2.* A request's only answer and its error wait for those of the requests before it, as
Triton's do, so that a client can tell by the order which is which. Answers that others follow wait
for none.
*Rule 3.* Each request is measured and told like a unary one.
*Rule 4.* A stream has one end, and its requests may have gone to several servers: of headers that
go back there are those of the request that was over last.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from infergate.codecs.base import Codec, Parsed, Streaming
from infergate.core.call import ROUNDING, Call
from infergate.core.errors import GatewayError, Kind, Unauthenticated
from infergate.core.memory import UNLIMITED, MemoryShare
from infergate.core.messages import STREAMED, InferRequest, InferResponse
from infergate.core.sequences import SequenceName, sequence_of
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import RpcRequest, RpcResponse, size
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import Bound

AT_ONCE: Final = 16
"""Requests of a stream that are served at once."""
_log = logging.getLogger(__name__)

Asked = tuple[InferRequest, Parsed, Bound]
Note = Callable[[Call], None]
RpcStreaming = Streaming[RpcRequest, RpcResponse]


class InTurn:
    """A codec whose streams have the messages of unary inferences."""

    def __init__(self, codec: Codec[RpcRequest, RpcResponse], stream: str) -> None:
        self._codec: Final = codec
        self.stream: str = stream

    def build_stream_response(self, answer: InferResponse, parsed: Parsed) -> RpcResponse:
        """See Streaming."""
        return self._codec.build_response(answer, parsed)

    def build_stream_end(self, parsed: Parsed) -> RpcResponse | None:  # noqa: ARG002 - none is told
        """See Streaming."""
        return None

    def build_stream_error(self, error: GatewayError, wire: RpcRequest) -> RpcResponse:
        """See Streaming."""
        return self._codec.build_error(error, wire)


@dataclass(slots=True, eq=False)
class _Request:
    """One request of a stream. ``asked`` is what it asks for, or what is wrong with it; ``before``
    it comes another of its sequence."""

    wire: RpcRequest
    call: Call
    asked: Asked | GatewayError
    before: _Request | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Its only answer, or its error, may be given."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Stream:
    """One stream. Implements :class:`infergate.transport.base.Conversation`."""

    def __init__(
        self,
        frontend: Frontend[RpcRequest, RpcResponse],
        codec: RpcStreaming | InTurn,
        name: Note,
        record: Note,
        call: Call,
    ) -> None:
        """``name`` gives a request its id, ``record`` is told of it when it is over; ``call`` is
        what is known of the stream."""
        self._frontend: Final = frontend
        self._codec: Final = codec
        self._name: Final = name
        self._record: Final = record
        self._call: Final = call
        self._sequences: Final[dict[SequenceName, _Request]] = {}
        """The latest request of each."""
        self._waiting: Final[dict[_Request, None]] = {}
        """Requests that may have an only answer to give, in the order that they came."""

    @property
    def at_once(self) -> int:
        """See Conversation."""
        return 1 if isinstance(self._codec, InTurn) else AT_ONCE

    async def begin(self) -> None:
        """See Conversation."""
        self._call.operation = STREAMED
        await self._frontend.welcome(self._call)

    async def ask(
        self, message: Buffer, refused: GatewayError | None, memory: MemoryShare = UNLIMITED
    ) -> AsyncGenerator[RpcResponse, None]:
        """See Conversation."""
        call = dataclasses.replace(
            self._call,
            started=time.monotonic(),
            whole=self._call.deadline,
            operation=STREAMED,
            protocol=self._frontend.codec.name,
            messages=0,
            bytes_in=len(message),
            memory=memory,
            returned={},
        )
        self._name(call)
        wire = RpcRequest(self._codec.stream, (message,), call.headers)
        request = _Request(wire, call, refused or await self._read(wire, call))
        sequence = _sequence(request.asked)
        if sequence is not None:
            request.before = self._sequences.get(sequence)
            self._sequences[sequence] = request
        self._waiting[request] = None
        self._call_next()
        return self._told(request, sequence)

    async def _read(self, wire: RpcRequest, call: Call) -> Asked | GatewayError:
        try:
            return await self._frontend.read_streamed(wire, call)
        except GatewayError as error:
            return error
        except Exception:  # noqa: BLE001 - it is logged, and costs one request
            return _bug(call)

    async def _told(
        self, request: _Request, sequence: SequenceName | None
    ) -> AsyncGenerator[RpcResponse, None]:
        """All answers to ``request``, counted and told."""
        call = request.call
        try:
            async with aclosing(self._answered(request)) as messages:
                async for message in messages:
                    assert call.messages is not None
                    call.messages += 1
                    call.bytes_out += size(message.message)
                    yield message
        except BaseException:  # the client went away, or all of the stream is cut
            if self._call.cut is None:
                call.outcome = Kind.CANCELLED.value
            else:
                call.fail(self._call.cut)
            raise
        finally:
            self._leave(request)
            request.over.set()
            if sequence is not None and self._sequences.get(sequence) is request:
                del self._sequences[sequence]
            if call.returned:
                self._call.returned = call.returned
            self._record(call)

    async def _answered(self, request: _Request) -> AsyncGenerator[RpcResponse, None]:
        call = request.call
        if request.before is not None:
            await request.before.over.wait()
            request.before = None  # else each would keep all before it
        error = None
        try:
            async with aclosing(self._answers(request)) as messages:
                async for message in messages:
                    yield message
        except GatewayError as raised:
            # Its frames hold the message and, as this one does, the error: all would stay until
            # cycles are collected.
            error = raised.with_traceback(None)
        except Exception:  # noqa: BLE001 - it is logged, and costs one request
            error = _bug(call)
        if error is None:
            return
        call.fail(error)
        if not call.messages:
            await request.turn.wait()
        if _ends_all(error, call):
            yield self._frontend.codec.build_error(error, request.wire)
        else:
            yield self._codec.build_stream_error(error, request.wire)

    async def _answers(self, request: _Request) -> AsyncGenerator[RpcResponse, None]:
        """Raises what comes instead of the next answer."""
        if isinstance(request.asked, GatewayError):
            raise request.asked
        operation, parsed, bound = request.asked
        call = request.call
        call.renew()
        ended = False
        async with aclosing(self._frontend.gateway.stream(operation, bound, call)) as answers:
            async for answer in answers:
                ended = answer.last
                if ended and not call.messages:
                    await request.turn.wait()
                else:
                    self._leave(request)
                how, labour = self._codec.build_stream_response, self._frontend.labour
                if labour.writes_short(answer, parsed):
                    yield how(answer, parsed)
                else:
                    message, held = await labour.written(call, how, answer, parsed)
                    yield message
                    call.memory.shrink(held)
        end = None if ended else self._codec.build_stream_end(parsed)
        if end is not None:
            yield end

    def _leave(self, request: _Request) -> None:
        """Nobody waits for ``request`` any more."""
        self._waiting.pop(request, None)
        self._call_next()

    def _call_next(self) -> None:
        for request in self._waiting:
            request.turn.set()
            return


def _ends_all(error: GatewayError, call: Call) -> bool:
    """Whether what went wrong with one request would with all that follow: the stream has no time
    left, or its credentials are not, or no more, good."""
    if isinstance(error, Unauthenticated):
        return True
    if error.kind is not Kind.TIMEOUT or call.whole is None:
        return False
    return time.monotonic() >= call.whole - ROUNDING


def _sequence(asked: Asked | GatewayError) -> SequenceName | None:
    """What tells the sequence of a request from others; None where it has none."""
    if isinstance(asked, GatewayError):
        return None
    return sequence_of(asked[0])


def _bug(call: Call) -> GatewayError:
    _log.exception("a bug while serving a stream of %s", call.protocol, extra=BUG)
    return GatewayError(Kind.INTERNAL, "internal error")

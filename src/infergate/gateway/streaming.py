"""Streams of inferences: any number of requests, each with any number of responses.

- Requests of one sequence run one after the other, in the order they arrived.
- A request's only response, or its error, waits for those of earlier requests, as in Triton, so
  that a client can match them by order. A response that others will follow does not wait.
- Each request is measured and recorded like a unary one.
- A stream has one set of trailers although its requests may go to several servers: it returns the
  backend headers of the request that finished last.
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
"""Requests of a stream that run at once."""
_log = logging.getLogger(__name__)

Asked = tuple[InferRequest, Parsed, Bound]
Note = Callable[[Call], None]
RpcStreaming = Streaming[RpcRequest, RpcResponse]


class InTurn:
    """A codec whose streams carry the messages of unary inferences."""

    def __init__(self, codec: Codec[RpcRequest, RpcResponse], stream: str) -> None:
        self._codec: Final = codec
        self.stream: str = stream

    def build_stream_response(self, answer: InferResponse, parsed: Parsed) -> RpcResponse:
        """Return ``response`` as a unary response."""
        return self._codec.build_response(answer, parsed)

    def build_stream_end(self, parsed: Parsed) -> RpcResponse | None:  # noqa: ARG002 - protocol
        """Return None: these streams have no end message."""
        return None

    def build_stream_error(self, error: GatewayError, wire: RpcRequest) -> RpcResponse:
        """Return ``error`` as a unary response."""
        return self._codec.build_error(error, wire)


@dataclass(slots=True, eq=False)
class _Request:
    """One request of a stream. ``parsed`` is its inference or what is wrong with it, ``previous``
    the request before it in the same sequence."""

    wire: RpcRequest
    call: Call
    asked: Asked | GatewayError
    before: _Request | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the request's only response, or its error, may be sent."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Stream:
    """One stream. Implements ``transport.base.Conversation``."""

    def __init__(
        self,
        frontend: Frontend[RpcRequest, RpcResponse],
        codec: RpcStreaming | InTurn,
        name: Note,
        record: Note,
        call: Call,
    ) -> None:
        """``assign_id`` gives each request its id, ``record`` is called when a request ends;
        ``call`` describes the stream."""
        self._frontend: Final = frontend
        self._codec: Final = codec
        self._name: Final = name
        self._record: Final = record
        self._call: Final = call
        self._sequences: Final[dict[SequenceName, _Request]] = {}
        """The latest request of each sequence."""
        self._waiting: Final[dict[_Request, None]] = {}
        """Requests that may still send an only response, in the order they arrived."""

    @property
    def at_once(self) -> int:
        """How many requests the transport may hand over at once."""
        return 1 if isinstance(self._codec, InTurn) else AT_ONCE

    async def begin(self) -> None:
        """Authenticate the client. Raises GatewayError."""
        self._call.operation = STREAMED
        await self._frontend.welcome(self._call)

    async def ask(
        self, message: Buffer, refused: GatewayError | None, memory: MemoryShare = UNLIMITED
    ) -> AsyncGenerator[RpcResponse, None]:
        """Start the request in ``message`` and return its responses. ``refused`` is the transport's
        reason to refuse it."""
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
        except Exception:  # noqa: BLE001 - logged; costs one request only
            return _bug(call)

    async def _told(
        self, request: _Request, sequence: SequenceName | None
    ) -> AsyncGenerator[RpcResponse, None]:
        """Yield all responses to ``request``, count them and record the request."""
        call = request.call
        try:
            async with aclosing(self._answered(request)) as messages:
                async for message in messages:
                    assert call.messages is not None
                    call.messages += 1
                    call.bytes_out += size(message.message)
                    yield message
        except BaseException:  # the client disconnected, or the gateway aborts the stream
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
            request.before = None  # else each request would keep all earlier ones alive
        error = None
        try:
            async with aclosing(self._answers(request)) as messages:
                async for message in messages:
                    yield message
        except GatewayError as raised:
            # The traceback's frames refer to the message and the error, a reference cycle that
            # would keep both until the garbage collector runs.
            error = raised.with_traceback(None)
        except Exception:  # noqa: BLE001 - logged; costs one request only
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
        """Yield the responses to ``request``. Raises the error that comes instead of the next
        one."""
        if isinstance(request.asked, GatewayError):
            raise request.asked
        operation, parsed, binding = request.asked
        call = request.call
        call.renew()
        ended = False
        async with aclosing(self._frontend.gateway.stream(operation, binding, call)) as responses:
            async for result in responses:
                ended = result.last
                if ended and not call.messages:
                    await request.turn.wait()
                else:
                    self._leave(request)
                build, offload = self._codec.build_stream_response, self._frontend.labour
                if offload.writes_short(result, parsed):
                    yield build(result, parsed)
                else:
                    message, counted_bytes = await offload.written(call, build, result, parsed)
                    yield message
                    call.memory.shrink(counted_bytes)
        end_message = None if ended else self._codec.build_stream_end(parsed)
        if end_message is not None:
            yield end_message

    def _leave(self, request: _Request) -> None:
        """Let later requests send their responses without waiting for ``request``."""
        self._waiting.pop(request, None)
        self._call_next()

    def _call_next(self) -> None:
        for request in self._waiting:
            request.turn.set()
            return


def _ends_all(error: GatewayError, call: Call) -> bool:
    """Return whether every later request of the stream would fail with ``error`` too: the stream's
    deadline has passed, or its credentials are not valid, or no longer."""
    if isinstance(error, Unauthenticated):
        return True
    if error.kind is not Kind.TIMEOUT or call.whole is None:
        return False
    return time.monotonic() >= call.whole - ROUNDING


def _sequence(asked: Asked | GatewayError) -> SequenceName | None:
    """Return the request's sequence; None if it has none."""
    if isinstance(asked, GatewayError):
        return None
    return sequence_of(asked[0])


def _bug(call: Call) -> GatewayError:
    _log.exception("internal error while serving a stream of %s", call.protocol, extra=BUG)
    return GatewayError(Kind.INTERNAL, "internal error")

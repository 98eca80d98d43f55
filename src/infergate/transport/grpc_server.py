"""A gRPC server on grpcio; messages of all methods pass as bytes.

One generic handler takes all calls: methods in `app.streams` and `app.request_streams` as
bidirectional streams, which on the wire includes server streaming, and all others as unary. The
application decides which methods exist.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
import grpc.aio

from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.tensor import Buffer
from infergate.core.vocabulary import BUG
from infergate.core.wire import NO_HEADERS, RpcRequest, RpcResponse, joined
from infergate.transport import grpc_metadata, grpc_tls
from infergate.transport.base import Address, Bind, Bound, Conversation, RpcApp, StreamHandler
from infergate.transport.binding import bound
from infergate.transport.door import Door
from infergate.transport.grpc_conversation import held
from infergate.transport.grpc_stream import until
from infergate.transport.guard import Admission, Share, shutting_down
from infergate.transport.h2.messages import OVERHEAD

log = logging.getLogger(__name__)

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
FIXED: Final = (
    "body",
    "headers",
    "streams",
    "header_time",
    "idle_body_time",
    "keepalive_time",
    "connections",
)
"""Limits that a server of the library keeps for as long as it listens."""
_LAST_WORDS: Final = 1.0
"""Seconds in which clients can receive the status of their calls."""
_METHODS: Final = 256
"""Number of cached method handlers."""
_PING_EVERY: Final = 500
"""The shortest accepted interval between a client's pings, in milliseconds: half of the shortest
that clients sensibly choose. (grpc's default of 300,000 would disconnect many clients that use
tritonclient's KeepAliveOptions.)"""


class GrpcServer:
    """A :class:`~infergate.transport.base.Server` for gRPC."""

    def __init__(
        self,
        address: Address,
        app: RpcApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
    ) -> None:
        """Of `gate` only the TLS settings and the connection limit are used; connections belong to
        the library, which does not report them."""
        self._wanted = address
        self._certificates = None if door is None else door.certificates
        self._most = limits.connections if door is None else min(door.most, limits.connections)
        self._address = address
        self._limits = limits
        self._methods = _Methods(app, admission, grpc_tls.reader(self._certificates))
        self._beside: Bound | None = None
        self._server: Any = None

    @property
    def address(self) -> Address:
        """The bound address."""
        return self._address

    sockets: Final = ()  # the library does not expose them

    async def bind(self, bind: Bind | None = None, beside: Sequence[socket.socket] = ()) -> None:
        """Bind the address. A listener of the library cannot share its address with another of this
        process."""
        del beside
        address = self._wanted
        if bind is not None:
            shared = self._beside = await bind(address)
            address = replace(address, port=shared.port)
        server = grpc.aio.server(options=self._options(shared=bind is not None))
        server.add_generic_rpc_handlers((self._methods,))
        self._server = server
        try:
            port = grpc_tls.listen(server, str(address), self._certificates)
        except RuntimeError as error:  # grpcio does not give the reason
            await self.stop(0)
            raise await _why_not(address, str(error)) from error
        self._address = replace(address, port=port)

    def _options(self, *, shared: bool) -> list[tuple[str, int]]:
        limits = self._limits
        return [
            # Servers on one port share its connections at random: only if that is wanted.
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", limits.body + OVERHEAD),
            ("grpc.max_send_message_length", limits.body + OVERHEAD),
            # Between the two limits grpc refuses at random, so they are equal.
            ("grpc.max_metadata_size", limits.headers),
            ("grpc.absolute_max_metadata_size", limits.headers),
            ("grpc.max_concurrent_streams", limits.streams),
            ("grpc.max_allowed_incoming_connections", self._most),
            # For the TLS handshake and the client's HTTP/2 SETTINGS.
            ("grpc.server_handshake_timeout_ms", _milliseconds(limits.header_time)),
            # A silent client is pinged, and disconnected if it does not answer. (The library's
            # own option for this, keepalive_timeout, has no effect.)
            ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_time)),
            ("grpc.http2.ping_timeout_ms", _milliseconds(limits.idle_body_time)),
            ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY),
            # Without this, clients without open calls would be pinged every two hours at most.
            ("grpc.keepalive_permit_without_calls", 1),
        ]

    async def start(self) -> None:
        """Bind if necessary, and accept connections."""
        if self._server is None:
            await self.bind()
        await self._server.start()

    def serve(self, app: RpcApp, limits: Limits) -> None:
        """Serve `app` from now on. Those of `limits` that the library keeps (`FIXED_LIMITS`) stay
        unchanged."""
        self._methods.app = app
        self._methods.admission.keep(limits)

    def calls(self) -> Iterable[asyncio.Task[None]]:
        """Return the tasks that serve calls."""
        return tuple(self._methods.running)

    def leave(self) -> None:
        """Do nothing: the library cannot stop accepting before it stops."""

    async def stop(self, grace: float) -> None:
        """Stop accepting, wait `grace` seconds for calls, then cancel them. Streams see the end of
        their clients' messages at once."""
        self._methods.over.set()
        if self._server is not None:
            stopping = asyncio.create_task(self._server.stop(grace + _LAST_WORDS))
            done, _ = await asyncio.wait({stopping}, timeout=grace)
            if not done:
                self._methods.give_up(shutting_down())
            await stopping
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.close()


async def _why_not(address: Address, told: str) -> OSError:
    """Return the reason why `address` cannot be bound, found by binding it. If that succeeds, as
    when the port has just become free, return grpcio's own message `message`."""
    try:
        probe = await bound(address)
    except OSError as error:
        if error.errno is None or isinstance(error, socket.gaierror):
            return error
        return OSError(error.errno, f"{os.strerror(error.errno)}: {address}")
    probe.close()
    return OSError(f"{told}: {address}")


def _milliseconds(seconds: float) -> int:
    return min(max(1, round(seconds * 1000)), 2**31 - 1)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """All methods, known or unknown, served by the current `app`. `stopped` is set when the server
    stops; `active` holds the active calls."""

    def __init__(
        self, app: RpcApp, admission: Admission, identify: Callable[[Any], tuple[str, ...]]
    ) -> None:
        self.app = app
        self.admission: Final = admission
        self._identify: Final = identify
        self.running: Final[dict[asyncio.Task[None], Call]] = {}
        self.over = asyncio.Event()
        self._unary = functools.lru_cache(_METHODS)(self._make_unary)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of one call."""
        method: str = handler_call_details.method
        if self._stream_handler(method) is None:
            return self._unary(method)
        return grpc.stream_stream_rpc_method_handler(self._make_stream(method))

    def _stream_handler(self, method: str) -> StreamHandler | None:
        """Return the handler of a streaming method, or None if the method is unary or unknown."""
        begin = self.app.conversations.get(method)
        return self.app.streams.get(method) if begin is None else self._make_conversation(begin)

    def give_up(self, error: GatewayError) -> None:
        """End all active calls with `error`."""
        for task, call in tuple(self.running.items()):
            call.cut = error
            task.cancel()

    @contextmanager
    def _counted(self, call: Call) -> Iterator[None]:
        """Register `call` as served by the current task. Raises the error that ends it early."""
        task: Any = asyncio.current_task()
        self.running[task] = call
        try:
            yield
        except asyncio.CancelledError:
            if call.cut is None:
                raise
            raise call.cut from None
        finally:
            del self.running[task]

    def _make_unary(self, method: str) -> Any:
        async def respond(message: bytes, context: Any) -> bytes:
            return await self._answer(method, message, context)

        return grpc.unary_unary_rpc_method_handler(respond)

    def _make_conversation(self, begin: Callable[[Call], Conversation]) -> StreamHandler:
        def respond(messages: AsyncIterator[Buffer], call: Call) -> AsyncIterator[RpcResponse]:
            return held(begin(call), messages, self.admission)

        return respond

    async def _respond(self, method: str, message: bytes, call: Call, context: Any) -> RpcResponse:
        length = call.bytes_in = len(message)
        wire = RpcRequest(method, (message,), call.headers)
        share = call.memory = Share(self.admission)
        try:
            call.peer_identity = self._identify(context)
            share.take(length)
            with self._counted(call):
                return await self.app.respond(wire, call)
        except GatewayError as error:
            return self._refusal(error, method, call)
        except Exception:
            log.exception("answering %s failed", method, extra=BUG)
            return self._refusal(_internal(), method, call)
        finally:
            share.release()

    async def _answer(self, method: str, message: bytes, context: Any) -> bytes:
        response = await self._respond(method, message, _call_of(context), context)
        if response.code:
            _end(context, response)
            return b""
        if response.metadata:
            context.set_trailing_metadata(grpc_metadata.write(response.metadata))
        return _message(response)

    def _make_stream(self, method: str) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        async def respond(messages: AsyncIterator[bytes], context: Any) -> None:
            await self._answer_stream(method, messages, context)

        return respond

    async def _answer_stream(
        self, method: str, messages: AsyncIterator[bytes], context: Any
    ) -> None:
        call = _call_of(context)
        handler = self._stream_handler(method)
        assert (
            handler is not None
        )  # the set of streaming methods does not depend on the configuration
        try:
            call.peer_identity = self._identify(context)
            self.admission.admit_stream()
        except GatewayError as error:
            await self._turn_away(error, method, call, context)
            return
        requests = until(messages, self.over)
        responses = handler(requests, call)
        try:
            with self._counted(call):
                async for response in responses:
                    if response.code:
                        _end(context, response, call.returned)
                        return
                    await context.write(_message(response))
            context.set_trailing_metadata(grpc_metadata.write(call.returned))
        except grpc.aio.InternalError:
            return  # the client has left
        except GatewayError as error:
            await self._turn_away(error, method, call, context)
        except Exception:
            log.exception("streaming %s failed", method, extra=BUG)
            _end(context, self._refusal(_internal(), method, call))
        finally:
            self.admission.release_stream()
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()
            await requests.aclose()

    async def _turn_away(self, error: GatewayError, method: str, call: Call, context: Any) -> None:
        """End a stream with `error`."""
        refusal = self._refusal(error, method, call)
        if refusal.code:
            _end(context, refusal)
        else:  # the protocol sends errors as messages
            await context.write(_message(refusal))

    def _refusal(self, error: GatewayError, method: str, call: Call) -> RpcResponse:
        try:
            return self.app.refuse(error, RpcRequest(method, metadata=call.headers), call)
        except Exception:
            log.exception("refusing %s failed", method, extra=BUG)
            return RpcResponse(code=grpc.StatusCode.INTERNAL.value[0], details="internal error")


def _internal() -> GatewayError:
    return GatewayError(Kind.INTERNAL, "internal error")


def _call_of(context: Any) -> Call:
    now = time.monotonic()
    remaining: float | None = context.time_remaining()
    return Call(
        peer=grpc_metadata.read_peer(context.peer()),
        started=now,
        deadline=None if remaining is None else now + remaining,
        headers=grpc_metadata.read(context.invocation_metadata() or ()),
    )


def _end(context: Any, response: RpcResponse, returned: Mapping[str, str] = NO_HEADERS) -> None:
    context.set_code(_CODES.get(response.code, grpc.StatusCode.UNKNOWN))
    context.set_details(response.details)
    if response.metadata or returned:
        context.set_trailing_metadata(grpc_metadata.write({**returned, **response.metadata}))


def _message(response: RpcResponse) -> bytes:
    message = joined(response.message)
    return message if isinstance(message, bytes) else bytes(message)

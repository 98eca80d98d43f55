"""A gRPC server on grpcio. One generic handler serves all calls, and passes their messages on as
bytes. The methods in `app.streams` and `app.request_streams` are served as bidirectional streams,
because server streaming looks the same on the wire. All other methods are unary."""

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

from infergate.core.errors import GatewayError, internal_error
from infergate.core.limits import Limits
from infergate.core.log_events import BUG
from infergate.core.request_context import RequestContext
from infergate.core.wire import NO_HEADERS, RpcRequest, RpcResponse, join_parts
from infergate.transport.base import Address, BindFunction, BoundSockets, RpcApp
from infergate.transport.compat import grpcio_tls
from infergate.transport.grpc import metadata
from infergate.transport.grpc.drain import until_stopped
from infergate.transport.grpc.framing import MESSAGE_OVERHEAD
from infergate.transport.grpc.rpc_app import build_refusal, stream_handler
from infergate.transport.net.bind import bind_sockets
from infergate.transport.server.admission import Admission, shutting_down
from infergate.transport.server.connection_gate import ConnectionGate
from infergate.transport.server.incoming_request import IncomingRequest

log = logging.getLogger(__name__)

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
FIXED_LIMITS: Final = (
    "body",
    "headers",
    "streams",
    "header_time",
    "idle_body_time",
    "keepalive_time",
    "connections",
)
"""Limits that cannot change while a grpcio server listens."""
_STATUS_SECONDS: Final = 1.0  # seconds after the grace period for sending statuses
_CACHED_METHODS: Final = 256
_MIN_PING_INTERVAL_MS: Final = 500
"""Minimum interval between a client's pings. With grpc's default of 300,000, many clients that use
tritonclient's KeepAliveOptions would be disconnected."""


class GrpcioServer:
    """A :class:`~infergate.transport.base.Server` for gRPC."""

    def __init__(
        self,
        address: Address,
        app: RpcApp,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
    ) -> None:
        """Only the TLS settings and the connection limit of `gate` are used, because grpcio owns
        the connections and does not report them."""
        self._requested_address = address
        self._certificates = None if gate is None else gate.certificates
        self._max_connections = (
            limits.connections if gate is None else min(gate.max_connections, limits.connections)
        )
        self.address = address
        self._limits = limits
        self._methods = _MethodHandlers(
            app, admission, grpcio_tls.identity_reader(self._certificates)
        )
        self._port_holder: BoundSockets | None = None
        self._server: Any = None

    sockets: Final = ()  # grpcio does not expose its sockets

    async def bind(
        self, bind: BindFunction | None = None, closing: Sequence[socket.socket] = ()
    ) -> None:
        """Bind the address. No other listener of this process may share it."""
        del closing
        address = self._requested_address
        if bind is not None:
            shared = self._port_holder = await bind(address)
            address = replace(address, port=shared.port)
        server = grpc.aio.server(options=self._options(shared=bind is not None))
        server.add_generic_rpc_handlers((self._methods,))
        self._server = server
        try:
            port = grpcio_tls.bind_port(server, str(address), self._certificates)
        except RuntimeError as error:  # grpcio does not report the reason
            await self.stop(0)
            raise await _bind_error(address, str(error)) from error
        self.address = replace(address, port=port)

    def _options(self, *, shared: bool) -> list[tuple[str, int]]:
        limits = self._limits
        return [
            # The value 0 prevents another process from sharing the port by accident.
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", limits.body + MESSAGE_OVERHEAD),
            ("grpc.max_send_message_length", limits.body + MESSAGE_OVERHEAD),
            # Between the soft and the hard limit, grpc rejects headers at random, so the limits are
            # equal.
            ("grpc.max_metadata_size", limits.headers),
            ("grpc.absolute_max_metadata_size", limits.headers),
            ("grpc.max_concurrent_streams", limits.streams),
            # With this protection, calls that have ended count as streams until grpc frees them, so
            # grpc would refuse calls of clients that respect the limit.
            ("grpc.http.overload_protection", 0),
            ("grpc.max_allowed_incoming_connections", self._max_connections),
            # This limit applies to the TLS handshake and the client's HTTP/2 SETTINGS.
            ("grpc.server_handshake_timeout_ms", _milliseconds(limits.header_time)),
            # A silent client is pinged, and disconnected if it does not respond. (The library's own
            # option for this, keepalive_timeout, has no effect.)
            ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_time)),
            ("grpc.http2.ping_timeout_ms", _milliseconds(limits.idle_body_time)),
            ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            # Without this option, grpc pings clients without open calls at most every two hours.
            ("grpc.keepalive_permit_without_calls", 1),
        ]

    async def start(self) -> None:
        """Bind if necessary, and accept connections."""
        if self._server is None:
            await self.bind()
        await self._server.start()

    def set_app(self, app: RpcApp, limits: Limits) -> None:
        """Serve `app` from now on. The limits in `FIXED_LIMITS` do not change."""
        self._methods.app = app
        self._methods.admission.apply_limits(limits)

    def active_requests(self) -> Iterable[asyncio.Future[None]]:
        return tuple(self._methods.active)

    def stop_accepting(self) -> None:
        """Do nothing, because grpcio cannot stop accepting connections before `stop`."""

    async def stop(self, grace: float) -> None:
        """Stop accepting calls, end the input of streams, wait up to `grace` seconds for all calls
        to end, then cancel the remaining calls."""
        self._methods.stopped.set()
        if self._server is not None:
            stopping = asyncio.create_task(self._server.stop(grace + _STATUS_SECONDS))
            done, _ = await asyncio.wait({stopping}, timeout=grace)
            if not done:
                self._methods.cancel_with(shutting_down())
            await stopping
        port_holder, self._port_holder = self._port_holder, None
        if port_holder is not None:
            port_holder.close()


async def _bind_error(address: Address, message: str) -> OSError:
    """Bind `address` again and return the error, or return an error with `message` if the address
    can be bound."""
    try:
        probe = await bind_sockets(address)
    except OSError as error:
        if error.errno is None or isinstance(error, socket.gaierror):
            return error
        return OSError(error.errno, f"{os.strerror(error.errno)}: {address}")
    probe.close()
    return OSError(f"{message}: {address}")


def _milliseconds(seconds: float) -> int:
    return min(max(1, round(seconds * 1000)), 2**31 - 1)


class _MethodHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves all methods with `app`. `stopped` is set when the server stops. `active` holds the
    calls in progress."""

    def __init__(
        self, app: RpcApp, admission: Admission, identify: Callable[[Any], tuple[str, ...]]
    ) -> None:
        self.app = app
        self.admission: Final = admission
        self._identify: Final = identify
        self.active: Final[dict[asyncio.Task[None], RequestContext]] = {}
        self.stopped = asyncio.Event()
        self._unary = functools.lru_cache(_CACHED_METHODS)(self._create_unary)

    def service(self, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        if stream_handler(self.app, method, self.admission) is None:
            return self._unary(method)
        return grpc.stream_stream_rpc_method_handler(functools.partial(self._serve_stream, method))

    def cancel_with(self, error: GatewayError) -> None:
        """End all active calls with `error`."""
        for task, context in tuple(self.active.items()):
            context.abort_error = error
            task.cancel()

    @contextmanager
    def _registered(self, context: RequestContext) -> Iterator[None]:
        """Register the current task as serving `context`. If the task is cancelled and
        `context.abort_error` is set, raise that error."""
        task: Any = asyncio.current_task()
        self.active[task] = context
        try:
            yield
        except asyncio.CancelledError:
            if context.abort_error is None:
                raise
            raise context.abort_error from None
        finally:
            del self.active[task]

    def _create_unary(self, method: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(functools.partial(self._serve_unary, method))

    async def _respond(
        self, method: str, message: bytes, context: RequestContext, servicer_context: Any
    ) -> RpcResponse:
        length = context.record.bytes_in = len(message)
        wire = RpcRequest(method, (message,), context.headers)
        request = IncomingRequest(context, self.admission)
        try:
            context.peer_identity = self._identify(servicer_context)
            request.account.admit(length)
            with self._registered(context):
                return await self.app.respond(wire, context)
        except GatewayError as error:
            return build_refusal(self.app, error, method, context)
        except Exception:
            log.exception("serving %s failed", method, extra=BUG)
            return build_refusal(self.app, internal_error(), method, context)
        finally:
            request.account.release()

    async def _serve_unary(self, method: str, message: bytes, servicer_context: Any) -> bytes:
        response = await self._respond(
            method, message, _create_context(servicer_context), servicer_context
        )
        if response.code:
            _set_status(servicer_context, response)
            return b""
        if response.metadata:
            servicer_context.set_trailing_metadata(metadata.write(response.metadata))
        return bytes(join_parts(response.message))

    async def _serve_stream(
        self, method: str, messages: AsyncIterator[bytes], servicer_context: Any
    ) -> None:
        context = _create_context(servicer_context)
        handler = stream_handler(self.app, method, self.admission)
        # The set of streaming methods does not depend on the configuration.
        assert handler is not None
        try:
            context.peer_identity = self._identify(servicer_context)
            self.admission.admit_stream()
        except GatewayError as error:
            await self._refuse_stream(error, method, context, servicer_context)
            return
        requests = until_stopped(messages, self.stopped)
        responses = handler(requests, context)
        try:
            with self._registered(context):
                async for response in responses:
                    if response.code:
                        _set_status(servicer_context, response, context.response_headers)
                        return
                    await servicer_context.write(bytes(join_parts(response.message)))
            servicer_context.set_trailing_metadata(metadata.write(context.response_headers))
        except grpc.aio.InternalError:
            return  # the client has disconnected
        except GatewayError as error:
            await self._refuse_stream(error, method, context, servicer_context)
        except Exception:
            log.exception("streaming %s failed", method, extra=BUG)
            _set_status(
                servicer_context, build_refusal(self.app, internal_error(), method, context)
            )
        finally:
            self.admission.release_stream()
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()
            await requests.aclose()

    async def _refuse_stream(
        self, error: GatewayError, method: str, context: RequestContext, servicer_context: Any
    ) -> None:
        refusal = build_refusal(self.app, error, method, context)
        if refusal.code:
            _set_status(servicer_context, refusal)
        else:  # the protocol sends errors as messages
            await servicer_context.write(bytes(join_parts(refusal.message)))


def _create_context(servicer_context: Any) -> RequestContext:
    remaining: float | None = servicer_context.time_remaining()
    return RequestContext(
        metadata.parse_peer(servicer_context.peer()),
        deadline=None if remaining is None else time.monotonic() + remaining,
        headers=metadata.read(servicer_context.invocation_metadata() or ()),
    )


def _set_status(
    servicer_context: Any, response: RpcResponse, headers: Mapping[str, str] = NO_HEADERS
) -> None:
    servicer_context.set_code(_CODES.get(response.code, grpc.StatusCode.UNKNOWN))
    servicer_context.set_details(response.details)
    if response.metadata or headers:
        servicer_context.set_trailing_metadata(metadata.write({**headers, **response.metadata}))

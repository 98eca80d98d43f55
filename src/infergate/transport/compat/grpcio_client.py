"""A gRPC client on grpcio, with one channel per endpoint. Messages are passed on as bytes.

grpcio reports server statuses and transport failures with the same codes. `_response_or_raise`
distinguishes them by the channel's state and the clock, which a server cannot influence, before it
considers grpc-core's texts. CONNECT is raised only if the call was certainly not sent: no
certificate authority is trusted, or the channel is not connected *and* grpc-core reports a failed
connection. Other failures of the connection are BACKEND_GARBAGE, after which only idempotent
requests are retried."""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
import grpc.aio

from infergate.core.errors import GatewayError, Kind, backend_failure, backend_garbage
from infergate.core.hops import FIRST_HOP, HOPS_HEADER
from infergate.core.limits import KIB, Limits
from infergate.core.memory import MIN_ACCOUNTED_BYTES
from infergate.core.tls_settings import ClientTls
from infergate.core.wire import RpcRequest, RpcResponse, join_parts, total_size
from infergate.transport.base import Endpoint
from infergate.transport.grpc import headers
from infergate.transport.grpc import metadata as grpc_metadata
from infergate.transport.grpc.framing import MESSAGE_OVERHEAD
from infergate.transport.tls import client_context

_READY: Final = grpc.ChannelConnectivity.READY
_NOT_CONNECTED: Final = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "empty address list",
)
"""Prefixes of grpc-core's messages for failed name resolution and failed connections."""
_HANDSHAKE = re.compile("handshake|check peer|erification check")
"""Matches messages of TLS failures after TCP has connected. A match only selects an error text."""
_NO_ALPN: Final = "selected ALPN"
_TOO_LARGE: Final = re.compile("(Received|Decompressed) message larger than max")
_LOCAL_STATUSES: Final = (
    "Stream removed (",
    "No status received",
    "Compression bit set but no encoding configured",
)
"""Prefixes of the messages of statuses that grpc-core (1.80) creates itself."""
_SERVER_PREFIX: Final = "SERVER:"
"""The prefix of grpc-core's error text if the server, not the client, rejected a message."""
_CLOCK_TOLERANCE: Final = 0.005  # seconds by which grpc's clock may be ahead of Python's

_MethodStubs = dict[str, Any]


class GrpcioUpstream:
    """An :data:`~infergate.transport.base.RpcUpstream` on grpcio."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        self._limits = limits
        self._tls = tls or ClientTls()
        self._options = _options(limits)
        if self._tls.server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        self._channels: dict[Endpoint, tuple[Any, _MethodStubs]] = {}

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        """Send a request. Return the complete response, or the status that the server sent."""
        message = self._message(wire)
        channel, methods = self._channels.get(endpoint) or self._open(endpoint)
        stub = methods.get(wire.method)
        if stub is None:
            stub = methods[wire.method] = channel.unary_unary(wire.method)
        deadline = time.monotonic() + timeout
        call = stub(message, timeout=timeout, metadata=_metadata(wire))
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            return _response_or_raise(error, endpoint, deadline, channel)
        if response is None:  # the status is OK, but no complete message arrived
            raise backend_garbage("the backend's response has no message", endpoint.authority)
        if len(response) > MIN_ACCOUNTED_BYTES:  # grpcio delivers a response in one piece
            wire.memory.grow(len(response))
        metadata = _merged_metadata(await call.initial_metadata(), await call.trailing_metadata())
        return RpcResponse((response,), metadata=metadata)

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        """Yield a response for each message. The first response has the initial metadata. A status
        other than OK, or trailing metadata, is yielded in a last response without a message. grpcio
        may drop the initial metadata of a stream without messages."""
        message = self._message(wire)
        channel, _ = self._channels.get(endpoint) or self._open(endpoint)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        call = channel.unary_stream(wire.method)(message, timeout=timeout, metadata=_metadata(wire))
        has_started = False
        try:
            while (item := await call.read()) is not grpc.aio.EOF:
                initial_metadata = () if has_started else await call.initial_metadata()
                has_started = True
                wire.memory.grow(len(item))
                yield RpcResponse((item,), metadata=grpc_metadata.read(initial_metadata))
                wire.memory.shrink(len(item))
            initial_metadata = () if has_started else await call.initial_metadata()
            final_metadata = _merged_metadata(initial_metadata, await call.trailing_metadata())
            if final_metadata:
                yield RpcResponse(metadata=final_metadata)
        except grpc.aio.AioRpcError as error:
            yield _response_or_raise(error, endpoint, deadline, channel, has_started=has_started)
        finally:
            call.cancel()

    def _message(self, wire: RpcRequest) -> bytes:
        if total_size(wire.message) > self._limits.body + MESSAGE_OVERHEAD:
            public = f"the message is over the limit of {self._limits.body} bytes"
            raise GatewayError(Kind.TOO_LARGE, public)
        return bytes(join_parts(wire.message))

    def _open(self, endpoint: Endpoint) -> tuple[Any, _MethodStubs]:
        target, options = endpoint.authority, self._options
        if endpoint.address:
            target = f"{'ipv6' if ':' in endpoint.address else 'ipv4'}:{endpoint}"
            # grpcio requires the authority to match the certificate.
            authority = self._tls.server_name or endpoint.authority
            options = [*options, ("grpc.default_authority", authority)]
        if endpoint.tls:
            channel = grpc.aio.secure_channel(target, _credentials(self._tls, endpoint), options)
        else:
            channel = grpc.aio.insecure_channel(target, options)
        entry: tuple[Any, _MethodStubs] = (channel, {})
        self._channels[endpoint] = entry
        return entry

    async def disconnect(self, endpoint: Endpoint) -> None:
        if (opened := self._channels.pop(endpoint, None)) is not None:
            await opened[0].close()

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel, _ in channels:
            await channel.close()


def _merged_metadata(first: Any, last: Any) -> dict[str, str]:
    return {**grpc_metadata.read(first or ()), **grpc_metadata.read(last or ())}


def _metadata(wire: RpcRequest) -> Any:
    return grpc_metadata.write({HOPS_HEADER: FIRST_HOP, **wire.metadata})


def _credentials(settings: ClientTls, endpoint: Endpoint) -> Any:
    authorities = (
        client_context.default_authorities() if settings.ca is None else settings.ca.read_bytes()
    )
    if not authorities:  # grpcio would use its bundled certificate authorities
        detail = f"{endpoint.authority}: no trusted certificates are installed"
        raise backend_failure(Kind.CONNECT, client_context.NO_TLS, detail)
    if settings.certificate is None or settings.key is None:
        return grpc.ssl_channel_credentials(authorities)
    return grpc.ssl_channel_credentials(
        authorities, settings.key.read_bytes(), settings.certificate.read_bytes()
    )


def _options(limits: Limits) -> list[tuple[str, Any]]:
    connect = int(limits.connect_time * 1000)
    return [
        ("grpc.max_receive_message_length", limits.body + MESSAGE_OVERHEAD),
        ("grpc.max_send_message_length", limits.body + MESSAGE_OVERHEAD),
        ("grpc.max_metadata_size", 64 * KIB),
        ("grpc.absolute_max_metadata_size", 64 * KIB),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # The interval is the same as in `grpc.client_connection`. Servers treat more frequent pings
        # as abuse.
        ("grpc.keepalive_time_ms", 310_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # The channel reconnects to a restarted backend within two seconds. The first option also
        # limits the time of a connection attempt.
        ("grpc.min_reconnect_backoff_ms", connect),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def _response_or_raise(
    error: Any, endpoint: Endpoint, deadline: float, channel: Any, *, has_started: bool = False
) -> RpcResponse:
    """Return the server's response, or raise the transport failure. `deadline` is a value of
    `time.monotonic`."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or ""
    detail = f"{endpoint}: {code.name}: {details}"
    is_abandoned = headers.is_abandoned(code.value[0], details)
    is_late = time.monotonic() >= deadline - _CLOCK_TOLERANCE
    if is_late and (is_abandoned or code is grpc.StatusCode.DEADLINE_EXCEEDED):
        public = "the backend did not respond in time"
        raise backend_failure(Kind.TIMEOUT, public, detail) from error
    if code is grpc.StatusCode.UNAVAILABLE and channel.get_state() is not _READY:
        if details.startswith(_NOT_CONNECTED):
            public = "the backend could not be reached"
            if _NO_ALPN in details:
                public = client_context.NO_HTTP2
            elif _HANDSHAKE.search(details):
                public = client_context.NO_TLS
            raise backend_failure(Kind.CONNECT, public, detail) from error
        public = "the backend closed the connection before it responded"
        raise backend_garbage(public, detail) from error
    if (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED
        and _TOO_LARGE.search(details)
        and not details.startswith(_SERVER_PREFIX)
    ):
        public = "the backend's response is too large"
        raise backend_failure(Kind.TOO_LARGE, public, detail) from error
    if is_abandoned or details.startswith(_LOCAL_STATUSES):
        raise backend_garbage("the backend's response is incomplete", detail) from error
    initial_metadata = () if has_started else error.initial_metadata()
    metadata = _merged_metadata(initial_metadata, error.trailing_metadata())
    return RpcResponse(code=code.value[0], details=details, metadata=metadata)

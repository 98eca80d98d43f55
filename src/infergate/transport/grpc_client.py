"""A gRPC client over grpcio: one channel an endpoint, messages pass as bytes.

*Strategy.* grpcio reports what the server said and what went wrong on the way by the same status
codes, and since 1.60 or so marks them no more. ``_told_apart`` takes them apart by what cannot be
the server's: the channel's own state, our own clock, and only then grpc-core's own words.

*Rule 1.* CONNECT is raised only where the call surely never left: the channel has no connection
*and* grpc-core says that it could not make one. Everything doubtful is BACKEND_GARBAGE, which
nobody retries.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
import grpc.aio

from infergate.core.certificates import ClientTls
from infergate.core.errors import GatewayError, Kind, Origin, garbage
from infergate.core.limits import KIB, Limits
from infergate.core.memory import SMALL
from infergate.core.wire import RpcRequest, RpcResponse, joined, size
from infergate.transport import grpc_metadata, tls
from infergate.transport.base import Endpoint
from infergate.transport.h2 import calls
from infergate.transport.h2.messages import OVERHEAD

_CONNECTED: Final = grpc.ChannelConnectivity.READY
_NOT_CONNECTED: Final = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "empty address list",
)
"""How grpc-core's load balancing and resolver begin to say that there is no connection."""
_HANDSHAKE = re.compile("handshake|check peer|erification check")
"""How it words what failed after TCP had connected; this chooses a message only."""
_NO_ALPN: Final = "selected ALPN"
_TOO_LONG: Final = re.compile("(Received|Decompressed) message larger than max")
_OURSELVES: Final = (
    "Stream removed (",
    "No status received",
    "Compression bit set but no encoding configured",
)
"""How grpc-core (1.80) begins the words of a status it made up itself."""
_THEIRS: Final = "SERVER:"
_EARLY: Final = 0.005
"""Seconds by which grpc's clock may be ahead of ours."""

_Methods = dict[str, Any]


class GrpcUpstream:
    """An :data:`~infergate.transport.base.RpcUpstream`."""

    def __init__(self, limits: Limits, tls: ClientTls | None = None) -> None:
        self._limits = limits
        self._tls = tls or ClientTls()
        self._options = _options(limits)
        if self._tls.server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        self._channels: dict[Endpoint, tuple[Any, _Methods]] = {}

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        """Send and wait for the whole answer. See :class:`~infergate.transport.base.Upstream`.

        A status that the server sent, whatever its code, is an :class:`RpcResponse`.
        """
        message = self._message(wire)
        channel, methods = self._channels.get(endpoint) or self._open(endpoint)
        ask = methods.get(wire.method)
        if ask is None:
            ask = methods[wire.method] = channel.unary_unary(wire.method)
        started = time.monotonic()
        call = ask(message, timeout=timeout, metadata=_metadata(wire))
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            late = time.monotonic() - started >= timeout - _EARLY
            connected = channel.get_state() is _CONNECTED
            return _told_apart(error, endpoint, late=late, connected=connected)
        if answer is None:  # status OK, but no message or half of one
            raise garbage("the backend's answer holds no message", endpoint.authority)
        if len(answer) > SMALL:  # the library hands it over whole
            wire.memory.grow(len(answer))
        metadata = _together(await call.initial_metadata(), await call.trailing_metadata())
        return RpcResponse((answer,), metadata=metadata)

    async def stream(
        self, wire: RpcRequest, endpoint: Endpoint, timeout: float | None
    ) -> AsyncGenerator[RpcResponse, None]:
        """Send one message and no other, give each that comes. See
        :class:`~infergate.transport.base.StreamUpstream`.

        A status of the server other than OK is the last :class:`RpcResponse`. Metadata comes with
        the first message and, where there is any, with a last one that holds none.
        """
        message = self._message(wire)
        channel, _ = self._channels.get(endpoint) or self._open(endpoint)
        started = time.monotonic()
        call = channel.unary_stream(wire.method)(message, timeout=timeout, metadata=_metadata(wire))
        begun = False
        try:
            while (answer := await _next(call)) is not grpc.aio.EOF:
                if isinstance(answer, bytes):
                    head = () if begun else await call.initial_metadata()
                    begun = True
                    wire.memory.grow(len(answer))
                    yield RpcResponse((answer,), metadata=grpc_metadata.read(head))
                    wire.memory.shrink(len(answer))
                    continue
                late = timeout is not None and time.monotonic() - started >= timeout - _EARLY
                connected = channel.get_state() is _CONNECTED
                yield _told_apart(answer, endpoint, late=late, connected=connected, begun=begun)
                return
            head = () if begun else await call.initial_metadata()
            metadata = _together(head, await call.trailing_metadata())
            if metadata:
                yield RpcResponse(metadata=metadata)
        finally:
            call.cancel()

    def _message(self, wire: RpcRequest) -> bytes:
        if size(wire.message) > self._limits.body + OVERHEAD:
            raise GatewayError(
                Kind.TOO_LARGE, f"the message is over the limit of {self._limits.body} bytes"
            )
        message = joined(wire.message)
        return message if isinstance(message, bytes) else bytes(message)

    def _open(self, endpoint: Endpoint) -> tuple[Any, _Methods]:
        target, options = endpoint.authority, self._options
        if endpoint.address:
            target = f"{'ipv6' if ':' in endpoint.address else 'ipv4'}:{endpoint}"
            # The library wants the authority to be what the certificate is for.
            authority = self._tls.server_name or endpoint.authority
            options = [*options, ("grpc.default_authority", authority)]
        if endpoint.tls:
            channel = grpc.aio.secure_channel(target, _credentials(self._tls, endpoint), options)
        else:
            channel = grpc.aio.insecure_channel(target, options)
        opened: tuple[Any, _Methods] = (channel, {})
        self._channels[endpoint] = opened
        return opened

    async def drop(self, endpoint: Endpoint) -> None:
        """See :class:`~infergate.transport.base.Dropping`."""
        if (opened := self._channels.pop(endpoint, None)) is not None:
            await opened[0].close()

    async def close(self) -> None:
        """Close all connections."""
        channels, self._channels = list(self._channels.values()), {}
        for channel, _ in channels:
            await channel.close()


def _together(first: Any, last: Any) -> dict[str, str]:
    """The metadata before an answer and after it, which counts where both have a name."""
    return {**grpc_metadata.read(first or ()), **grpc_metadata.read(last or ())}


def _metadata(wire: RpcRequest) -> Any:
    return grpc_metadata.write(wire.metadata) if wire.metadata else None


async def _next(call: Any) -> Any:
    """The stream's next message, its bad end as an AioRpcError, or EOF."""
    try:
        return await call.read()
    except grpc.aio.AioRpcError as error:
        return error


def _credentials(settings: ClientTls, endpoint: Endpoint) -> Any:
    authorities = tls.authorities() if settings.ca is None else settings.ca.read_bytes()
    if not authorities:  # grpcio would take its bundled ones
        raise GatewayError(
            Kind.CONNECT,
            tls.NO_TLS,
            origin=Origin.BACKEND,
            detail=f"{endpoint.authority}: no trusted certificates are installed",
        )
    if settings.certificate is None or settings.key is None:
        return grpc.ssl_channel_credentials(authorities)
    return grpc.ssl_channel_credentials(
        authorities, settings.key.read_bytes(), settings.certificate.read_bytes()
    )


def _options(limits: Limits) -> list[tuple[str, Any]]:
    connect = int(limits.connect_time * 1000)
    return [
        ("grpc.max_receive_message_length", limits.body + OVERHEAD),
        ("grpc.max_send_message_length", limits.body + OVERHEAD),
        ("grpc.max_metadata_size", 64 * KIB),
        ("grpc.absolute_max_metadata_size", 64 * KIB),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # As the own engine: no server takes it for an attack.
        ("grpc.keepalive_time_ms", 310_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # A backend that comes back is found within two seconds. The first of these bounds one
        # attempt to connect as well.
        ("grpc.min_reconnect_backoff_ms", connect),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def _told_apart(
    error: Any, endpoint: Endpoint, *, late: bool, connected: bool, begun: bool = False
) -> RpcResponse:
    """The server's answer, with its first metadata unless it has ``begun``; or raises what happened
    on the way to it."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or ""
    said = f"{endpoint}: {code.name}: {details}"
    is_abandoned = calls.is_abandoned(code.value[0], details)
    if late and (is_abandoned or code is grpc.StatusCode.DEADLINE_EXCEEDED):
        raise GatewayError(
            Kind.TIMEOUT, "the backend did not answer in time", origin=Origin.BACKEND, detail=said
        ) from error
    if code is grpc.StatusCode.UNAVAILABLE and not connected:
        if details.startswith(_NOT_CONNECTED):
            public = (
                tls.NO_TLS if _HANDSHAKE.search(details) else "the backend could not be reached"
            )
            raise GatewayError(
                Kind.CONNECT,
                tls.NO_HTTP2 if _NO_ALPN in details else public,
                origin=Origin.BACKEND,
                detail=said,
            ) from error
        raise garbage("the backend closed the connection before answering", said) from error
    if (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED
        and _TOO_LONG.search(details)
        and not details.startswith(_THEIRS)
    ):
        raise GatewayError(
            Kind.TOO_LARGE, "the backend's answer is too large", origin=Origin.BACKEND, detail=said
        ) from error
    if is_abandoned or details.startswith(_OURSELVES):
        raise garbage("the backend's answer broke off", said) from error
    return RpcResponse(
        code=code.value[0],
        details=details,
        metadata=_together(() if begun else error.initial_metadata(), error.trailing_metadata()),
    )

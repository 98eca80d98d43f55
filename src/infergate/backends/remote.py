"""A server behind the gateway: a transport and a codec behind the Backend protocol.

*Rule 1.* The shorter of the client's deadline and the route's timeout bounds every exchange and
travels upstream.
*Rule 2.* An exchange is tried again only where nothing was sent (CONNECT); anything else may have
been carried out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from infergate.backends.base import named, read_wrong
from infergate.backends.headers import HeaderRule
from infergate.codecs.base import Codec, Profile
from infergate.codecs.profiles import GENERIC, detect
from infergate.core.call import Call
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import Answer, Operation, ServerMetadata, ServerMetadataRequest
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.routing.balance import RoundRobin
from infergate.transport.base import Endpoint, Upstream

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_ATTEMPTS: Final = 2  # HAProxy and Envoy retry a refused connection once
_UNREACHED: Final = frozenset({Kind.CONNECT, Kind.TIMEOUT, Kind.NO_BACKEND, Kind.OVERLOADED})
_PROFILE_LIFETIME: Final = 60.0  # seconds; another kind of server may come up on the same address


@dataclass(frozen=True, slots=True)
class HeaderAccess(Generic[Req, Resp]):
    """Where a carrier keeps its headers."""

    add: Callable[[Req, Mapping[str, str]], Req]
    read: Callable[[Resp], Mapping[str, str]]


def _add_http(wire: HttpRequest, headers: Mapping[str, str]) -> HttpRequest:
    return replace(wire, headers={**headers, **wire.headers})


def _add_rpc(wire: RpcRequest, headers: Mapping[str, str]) -> RpcRequest:
    return replace(wire, metadata={**headers, **wire.metadata})


def _read_http(wire: HttpResponse) -> Mapping[str, str]:
    return wire.headers


def _read_rpc(wire: RpcResponse) -> Mapping[str, str]:
    return wire.metadata


HTTP_HEADERS: Final = HeaderAccess(_add_http, _read_http)
RPC_HEADERS: Final = HeaderAccess(_add_rpc, _read_rpc)


@dataclass(frozen=True, slots=True)
class Server:
    """What the operator says of a backend. ``timeout`` in seconds; ``profile`` None: ask it."""

    name: str
    endpoints: Sequence[Endpoint]
    timeout: float = 30.0
    profile: Profile | None = None
    forward_headers: Sequence[str] = ()
    return_headers: Sequence[str] = ()


class RemoteBackend(Generic[Req, Resp]):
    """Speaks ``codec`` to the endpoints of ``server`` over ``upstream``."""

    def __init__(
        self,
        server: Server,
        codec: Codec[Req, Resp],
        upstream: Upstream[Req, Resp],
        headers: HeaderAccess[Req, Resp],
        limits: Limits,
    ) -> None:
        self.name: Final = server.name
        self.protocol: Final = codec.name
        self.codec: Final = codec
        self._timeout: Final = server.timeout
        self._upstream: Final = upstream
        self._headers: Final = headers
        self._limits: Final = limits
        self._balance: Final = RoundRobin(server.endpoints, _ATTEMPTS)
        self._forwarded: Final = HeaderRule(server.forward_headers)
        self._returned: Final = HeaderRule(server.return_headers)
        self._declared: Final = server.profile
        self._profile: Profile | None = server.profile
        self._profile_until = float("inf") if server.profile else 0.0
        self._asking: Final = asyncio.Lock()

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Translate ``operation``, exchange it, and read the answer."""
        wire = self.codec.build_request(operation, await self.profile(call))
        answer = await self.exchange(wire, call)
        try:
            return self.codec.parse_response(answer, operation, self._limits)
        except GatewayError as error:
            raise read_wrong(error, self.name) from error

    async def exchange(self, wire: Req, call: Call) -> Resp:
        """Send ``wire`` to an endpoint and wait for its answer, whatever it is."""
        began = time.monotonic()
        call.tighten(began + self._timeout)
        forwarded = self._forwarded.select(call.headers)
        if forwarded:
            wire = self._headers.add(wire, forwarded)
        try:
            answer = await self._send(wire, call)
        finally:
            call.backend_seconds += time.monotonic() - began
        call.returned.update(self._returned.select(self._headers.read(answer)))
        return answer

    async def _send(self, wire: Req, call: Call) -> Resp:
        refused: GatewayError | None = None
        for endpoint in self._balance.order():
            assert call.deadline is not None
            remaining = call.deadline - time.monotonic()
            if remaining <= 0:
                raise self._late()
            try:
                return await self._upstream.exchange(wire, endpoint, remaining)
            except GatewayError as error:
                failure = named(error, self.name)
                if error.kind is not Kind.CONNECT:
                    raise failure from error
                refused = failure
        assert refused is not None
        raise refused

    def _late(self) -> GatewayError:
        return GatewayError(Kind.TIMEOUT, f"backend '{self.name}': the deadline has passed")

    async def profile(self, call: Call) -> Profile:
        """What kind of server this is: declared, or asked once and remembered for a while."""
        if not self.codec.profiled:
            return self._profile or GENERIC
        if self._profile is not None and time.monotonic() < self._profile_until:
            return self._profile
        now = time.monotonic()
        call.tighten(now + self._timeout)
        assert call.deadline is not None
        try:
            async with asyncio.timeout(call.deadline - now):
                await self._asking.acquire()  # one asks, the others wait for what it learns
        except TimeoutError:
            raise self._late() from None
        try:
            if self._profile is None or time.monotonic() >= self._profile_until:
                self._profile = await self._detect(call)
                self._profile_until = time.monotonic() + _PROFILE_LIFETIME
            return self._profile
        finally:
            self._asking.release()

    async def _detect(self, call: Call) -> Profile:
        question = ServerMetadataRequest()
        try:
            wire = self.codec.build_request(question, GENERIC)
            answer: Any = self.codec.parse_response(
                await self.exchange(wire, call), question, self._limits
            )
        except GatewayError as error:
            if error.kind in _UNREACHED:  # to be asked again by the next request
                raise
            return GENERIC  # it answers, but not this: a server we know nothing of
        assert isinstance(answer, ServerMetadata)
        return detect(answer)

    async def close(self) -> None:
        """Close the connections to all endpoints."""
        await self._upstream.close()

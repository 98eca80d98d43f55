"""A server behind the gateway: a transport and a codec behind the Backend protocol.

*Rule 1.* The shorter of the client's deadline and the timeout (the route's; if it has none, the
backend's) bounds every exchange and travels upstream.
*Rule 2.* An exchange is tried again only where nothing was sent (CONNECT); anything else may have
been carried out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from infergate.backends.base import named, read_wrong
from infergate.backends.detection import Detection
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
        self._detection: Final = Detection(server.profile, self._ask_profile)

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
        call.tighten(began + self._allowed(call))
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

    def _allowed(self, call: Call) -> float:
        """The route's timeout where it has one, else the backend's."""
        return self._timeout if call.timeout is None else call.timeout

    def _late(self) -> GatewayError:
        return GatewayError(Kind.TIMEOUT, f"backend '{self.name}': the deadline has passed")

    async def profile(self, call: Call) -> Profile:
        """What kind of server this is, where requests depend on it."""
        if not self.codec.profiled:
            return GENERIC
        call.tighten(time.monotonic() + self._allowed(call))
        try:
            return await self._detection.profile(call)
        except TimeoutError:
            raise self._late() from None

    async def _ask_profile(self, call: Call) -> Profile:
        question = ServerMetadataRequest()
        wire = self.codec.build_request(question, GENERIC)
        answer = self.codec.parse_response(await self.exchange(wire, call), question, self._limits)
        assert isinstance(answer, ServerMetadata)
        return detect(answer)

    async def close(self) -> None:
        """Close the connections to all endpoints."""
        await self._upstream.close()

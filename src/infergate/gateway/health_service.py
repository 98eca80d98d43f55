"""grpc.health.v1.Health: is the server, or one of its services, able to serve?

https://github.com/grpc/grpc/blob/master/doc/health-checking.md: the empty service name asks for the
server as a whole; Check answers NOT_FOUND for a service it does not know, Watch SERVICE_UNKNOWN.
All services stand and fall together here: they share the same backends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.core.call import Call
from infergate.core.limits import KIB
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, joined
from infergate.gateway.readiness import Readiness

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_LONGEST: Final = 64 * KIB
"""Bytes of a request, which holds one name: longer ones are not worth parsing."""


class Health:
    """Answers for ``services`` with one ``readiness``."""

    def __init__(
        self,
        message: Callable[[str], Any],
        services: Sequence[str],
        readiness: Readiness,
    ) -> None:
        self._request: Final = message("grpc.health.v1.HealthCheckRequest")
        self._response: Final = message("grpc.health.v1.HealthCheckResponse")
        self._statuses: Final = message("grpc.health.v1.HealthListResponse")
        self._services: Final = ("", *services)
        self._readiness: Final = readiness

    async def check(self, wire: RpcRequest, call: Call) -> RpcResponse:
        """The status now."""
        del call
        try:
            service = self._service(joined(wire.message))
        except DecodeError:
            return _malformed()
        if service not in self._services:
            return RpcResponse(code=_NOT_FOUND, details=f"service '{service}' is not served here")
        return self._told(await self._status())

    async def list(self, wire: RpcRequest, call: Call) -> RpcResponse:
        """The statuses of all services; what the request holds does not matter."""
        del wire, call
        status = await self._status()
        answer = self._statuses()
        for service in self._services:
            answer.statuses[service].status = status
        return RpcResponse((answer.SerializeToString(deterministic=True),))

    async def watch(
        self, messages: AsyncIterator[Buffer], call: Call
    ) -> AsyncIterator[RpcResponse]:
        """The status now and at each change, until the client goes away or the gateway drains:
        NOT_SERVING is the last that a watcher hears, and its stream does not hold the drain."""
        del call
        with self._readiness.watched():
            async for message in messages:
                try:
                    service = self._service(message)
                except DecodeError:
                    yield _malformed()
                    return
                known = service in self._services
                told: int | None = None
                while True:
                    status = await self._status() if known else SERVICE_UNKNOWN
                    if status != told:
                        yield self._told(status)
                        told = status
                    if self._readiness.draining and status != SERVING:
                        return
                    await self._readiness.changed()

    def _service(self, message: Buffer) -> str:
        if len(message) > _LONGEST:
            raise DecodeError
        name: str = self._request.FromString(message).service
        return name

    async def _status(self) -> int:
        return SERVING if await self._readiness.ready() else NOT_SERVING

    def _told(self, status: int) -> RpcResponse:
        return RpcResponse((self._response(status=status).SerializeToString(),))


def _malformed() -> RpcResponse:
    return RpcResponse(code=_INVALID_ARGUMENT, details="the HealthCheckRequest cannot be read")

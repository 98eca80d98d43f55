"""The gRPC health service, ``grpc.health.v1.Health``.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md: an empty service name means the
whole server; Check answers NOT_FOUND for an unknown service, Watch SERVICE_UNKNOWN. All services
have the same status here, because they share the same backends.
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
"""Bytes of a request, which holds one name; a longer one is rejected unparsed."""


class Health:
    """Reports the state of ``readiness`` for each of ``services``."""

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
        """Return the current status."""
        del call
        try:
            service = self._service(joined(wire.message))
        except DecodeError:
            return _malformed()
        if service not in self._services:
            return RpcResponse(code=_NOT_FOUND, details=f"service '{service}' is not served here")
        return self._told(await self._status())

    async def list(self, wire: RpcRequest, call: Call) -> RpcResponse:
        """Return the status of every service. The content of the request is ignored."""
        del wire, call
        status = await self._status()
        response = self._statuses()
        for service in self._services:
            response.statuses[service].status = status
        return RpcResponse((response.SerializeToString(deterministic=True),))

    async def watch(
        self, messages: AsyncIterator[Buffer], call: Call
    ) -> AsyncIterator[RpcResponse]:
        """Send the current status and every change of it, until the client disconnects or the
        gateway drains.

        When the gateway drains, NOT_SERVING is the last message, and then the stream ends so that
        it does not delay the drain.
        """
        del call
        with self._readiness.watched():
            async for message in messages:
                try:
                    service = self._service(message)
                except DecodeError:
                    yield _malformed()
                    return
                is_known = service in self._services
                last_sent: int | None = None
                while True:
                    status = await self._status() if is_known else SERVICE_UNKNOWN
                    if status != last_sent:
                        yield self._told(status)
                        last_sent = status
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

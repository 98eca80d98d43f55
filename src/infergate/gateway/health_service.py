"""The gRPC health service, ``grpc.health.v1.Health``.

The specification is https://github.com/grpc/grpc/blob/master/doc/health-checking.md. An empty
service name means the server. For an unknown service, Check returns NOT_FOUND and Watch returns
SERVICE_UNKNOWN. All services have the same status, because they share the same backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from infergate.core.limits import KIB
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer
from infergate.core.wire import RpcRequest, RpcResponse, join_parts
from infergate.gateway.readiness import Readiness

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_MAX_REQUEST_BYTES: Final = 64 * KIB
"""Maximum bytes of a request, which contains one service name. A longer request is rejected without
being parsed."""


class HealthService:
    """Reports the result of ``readiness`` as the status of each of ``services``."""

    def __init__(
        self, message: Callable[[str], Any], services: Sequence[str], readiness: Readiness
    ) -> None:
        self._request_type: Final = message("grpc.health.v1.HealthCheckRequest")
        self._response_type: Final = message("grpc.health.v1.HealthCheckResponse")
        self._list_response_type: Final = message("grpc.health.v1.HealthListResponse")
        self._services: Final = ("", *services)
        self._readiness: Final = readiness

    async def check(self, wire: RpcRequest, context: RequestContext) -> RpcResponse:
        del context
        try:
            service = self._service_name(join_parts(wire.message))
        except DecodeError:
            return _malformed_request()
        if service not in self._services:
            return RpcResponse(
                code=_NOT_FOUND, details=f"service '{service}' is not served by this listener"
            )
        return self._status_response(await self._status())

    async def list(self, wire: RpcRequest, context: RequestContext) -> RpcResponse:
        """Return the status of every service. The request is not parsed."""
        del wire, context
        status = await self._status()
        response = self._list_response_type()
        for service in self._services:
            response.statuses[service].status = status
        return RpcResponse((response.SerializeToString(deterministic=True),))

    async def watch(
        self, messages: AsyncIterator[Buffer], context: RequestContext
    ) -> AsyncIterator[RpcResponse]:
        """Send the current status and every change of the status, until the client disconnects.

        When the gateway drains, the last message for a known service is NOT_SERVING. The stream
        then ends, so that it does not delay the drain."""
        del context
        with self._readiness.watching():
            async for message in messages:
                try:
                    service = self._service_name(message)
                except DecodeError:
                    yield _malformed_request()
                    return
                is_known = service in self._services
                last_sent: int | None = None
                while True:
                    status = await self._status() if is_known else SERVICE_UNKNOWN
                    if status != last_sent:
                        yield self._status_response(status)
                        last_sent = status
                    if self._readiness.is_draining and status != SERVING:
                        return
                    await self._readiness.wait_for_change()

    def _service_name(self, message: Buffer) -> str:
        if len(message) > _MAX_REQUEST_BYTES:
            raise DecodeError
        name: str = self._request_type.FromString(message).service
        return name

    async def _status(self) -> int:
        return SERVING if await self._readiness.is_ready() else NOT_SERVING

    def _status_response(self, status: int) -> RpcResponse:
        return RpcResponse((self._response_type(status=status).SerializeToString(),))


def _malformed_request() -> RpcResponse:
    return RpcResponse(
        code=_INVALID_ARGUMENT, details="the HealthCheckRequest is malformed or longer than 64 KiB"
    )

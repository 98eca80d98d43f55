"""The gateway's own gRPC services: ``grpc.health.v1`` and server reflection.

A schema provides the message classes, because the gateway does not import the codecs that contain
them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from infergate.core.request_context import RequestContext
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.health_service import HealthService
from infergate.gateway.readiness import Readiness
from infergate.gateway.reflection_service import ReflectionSchema, ReflectionService
from infergate.transport.base import StreamHandler

UnaryHandler = Callable[[RpcRequest, RequestContext], Awaitable[RpcResponse]]
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
REFLECTION_SERVICES: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """The handlers of methods, keyed by ``/package.Service/Method``."""

    unary: Mapping[str, UnaryHandler]
    streams: Mapping[str, StreamHandler]


def gateway_services(
    schema: ReflectionSchema, services: Sequence[str], readiness: Readiness
) -> GatewayServices:
    """Return the health and reflection services of a listener. ``services`` are the full names of
    the services that frontends serve on the listener."""
    all_services = (*services, HEALTH_SERVICE, *REFLECTION_SERVICES)
    health = HealthService(schema.message_class, all_services, readiness)
    streams: dict[str, StreamHandler] = {f"/{HEALTH_SERVICE}/Watch": health.watch}
    for name in REFLECTION_SERVICES:
        package = name.rpartition(".")[0]
        streams[f"/{name}/ServerReflectionInfo"] = ReflectionService(
            schema, package, all_services
        ).info
    return GatewayServices(
        unary={f"/{HEALTH_SERVICE}/Check": health.check, f"/{HEALTH_SERVICE}/List": health.list},
        streams=streams,
    )

"""The gateway's own gRPC services: grpc.health.v1 and server reflection, which Triton lacks.

The message classes are passed in as a schema, because they belong to the codecs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from infergate.core.call import Call
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.health_service import Health
from infergate.gateway.readiness import Readiness
from infergate.gateway.reflection_service import Reflection, Schema
from infergate.transport.base import StreamHandler

Unary = Callable[[RpcRequest, Call], Awaitable[RpcResponse]]
HEALTH: Final = "grpc.health.v1.Health"
REFLECTIONS: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


@dataclass(frozen=True, slots=True)
class OwnServices:
    """Handlers by ``/package.Service/Method``."""

    unary: Mapping[str, Unary]
    streams: Mapping[str, StreamHandler]


def own_services(schema: Schema, services: Sequence[str], readiness: Readiness) -> OwnServices:
    """Build health and reflection for a listener that serves ``services`` (full names)."""
    all_services = (*services, HEALTH, *REFLECTIONS)
    health = Health(schema.message, all_services, readiness)
    streams: dict[str, StreamHandler] = {f"/{HEALTH}/Watch": health.watch}
    for name in REFLECTIONS:
        package = name.rpartition(".")[0]
        streams[f"/{name}/ServerReflectionInfo"] = Reflection(schema, package, all_services).info
    return OwnServices(
        unary={f"/{HEALTH}/Check": health.check, f"/{HEALTH}/List": health.list},
        streams=streams,
    )

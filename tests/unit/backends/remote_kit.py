"""A codec and an upstream for tests of RemoteBackend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import Capabilities, Profile
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import HealthStatus, ModelMetadata, Operation, Response
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.transport.base import Endpoint


class FakeCodec:
    """Records operations. Parses each response to the value in ``responses`` for the operation's
    type; the default is a healthy status."""

    name = "fake"
    needs_profile = False
    needs_metadata = False
    capabilities = Capabilities(frozenset(Datatype))
    streaming_methods: frozenset[str] = frozenset()

    def __init__(self, responses: Mapping[type, Response | GatewayError] | None = None) -> None:
        self.responses = dict(responses or {})
        self.requests: list[Operation] = []
        self.profiles: list[Profile] = []

    def build_request(
        self, operation: Operation, profile: Profile, model: ModelMetadata | None = None
    ) -> RpcRequest:
        self.requests.append(operation)
        self.profiles.append(profile)
        return RpcRequest(type(operation).__name__)

    def parse_response(
        self,
        wire: RpcResponse,
        operation: Operation,
        limits: Limits,
        model: ModelMetadata | None = None,
    ) -> Response:
        if wire.code:
            raise GatewayError(Kind.BAD_REQUEST, wire.details, origin=Origin.BACKEND)
        response = self.responses.get(type(operation), HealthStatus(ok=True))
        if isinstance(response, GatewayError):
            raise response
        return response


class FakeUpstream:
    """Records requests, and responds with the results of ``respond``."""

    def __init__(
        self, respond: Callable[[RpcRequest, Endpoint], RpcResponse] | None = None
    ) -> None:
        self.sent: list[tuple[RpcRequest, Endpoint, float]] = []
        self.respond = respond or (lambda wire, endpoint: RpcResponse(details=wire.method))
        self.closed = False

    async def exchange(self, wire: RpcRequest, endpoint: Endpoint, timeout: float) -> RpcResponse:
        self.sent.append((wire, endpoint, timeout))
        await asyncio.sleep(0)
        return self.respond(wire, endpoint)

    async def close(self) -> None:
        self.closed = True


def backend(upstream: FakeUpstream, codec: Any, **settings: Any) -> RemoteBackend[Any, Any]:
    server = BackendSettings("b1", **settings)
    return RemoteBackend(server, codec, upstream, RPC_MESSAGES, DEFAULT_LIMITS)

"""Connects clients to the recording models through two gateways. The messages pass from codec to
codec in this process, without sockets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, Final

from infergate.backends.backend_settings import BackendSettings
from infergate.backends.base import Backend
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import Profile, TransportKind
from infergate.codecs.profiles import PROFILES
from infergate.codecs.registry import plugins
from infergate.core.errors import Kind, backend_failure
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.matrix.cases import HANGING_MODEL
from infergate.matrix.client_kinds import ClientKind
from infergate.matrix.recording_backend import HANGING_TIMEOUT, RecordingBackend
from infergate.routing.table import Route, RouteTable
from infergate.transport.base import Endpoint

WITHOUT_METADATA: Final = ("kserve-v1",)
"""Protocols without metadata. The clients know the metadata, and the gateways declare it."""
BUILTIN: Final = "builtin"
BACKENDS: Final = (
    BUILTIN,
    "v2-rest",
    "v2-grpc",
    "graphpipe",
    "trtis-http",
    "trtis-grpc",
    "tfs-grpc",
    "tfs-rest",
    *WITHOUT_METADATA,
)
_PROFILES: Final = {"v2-rest": "triton", "v2-grpc": "triton", "graphpipe": "graphpipe-go"}
"""The profiles of backends by protocol. The profiles of all other backends are detected."""


class LoopbackUpstream:
    """An ``Upstream`` that passes messages to ``frontend`` instead of a server. As in the real
    transports, only gRPC sends the deadline to the server, and size-prefixed GraphPipe responses
    have neither a status nor headers."""

    def __init__(self, frontend: Frontend[Any, Any]) -> None:
        self._frontend: Final = frontend

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        respond = self._frontend.respond
        try:
            async with asyncio.timeout(timeout):
                if isinstance(wire, RpcRequest):
                    deadline, message = time.monotonic() + timeout, (join_parts(wire.message),)
                    context = RequestContext("matrix", deadline, headers=wire.metadata)
                    call = RpcRequest(wire.method, message, wire.metadata)
                    reply: RpcResponse = await respond(call, context)
                    return replace(reply, message=(join_parts(reply.message),))
                path, body = endpoint.path + wire.path or "/", (join_parts(wire.body),)
                request = HttpRequest(wire.method, path, wire.query, wire.headers, body)
                context = RequestContext("matrix", headers=wire.headers)
                response: HttpResponse = await respond(request, context)
        except TimeoutError:
            raise backend_failure(Kind.TIMEOUT, "the backend did not respond in time") from None
        body = (join_parts(response.body),)
        return HttpResponse(200, body=body) if endpoint.framed else replace(response, body=body)

    async def close(self) -> None:
        """Do nothing: there are no connections."""


def make_target(recorder: RecordingBackend, backend: str, model: str) -> Backend:
    """Return a backend that reaches ``model`` of ``recorder`` over the protocol ``backend``."""
    if backend == BUILTIN:
        return recorder
    profile = PROFILES.get(_PROFILES.get(backend, ""))
    return connect(ClientKind(backend, backend), profile, recorder, recorder.metadata_of(model))


def connect(
    kind: ClientKind,
    profile: Profile | None,
    target: Backend,
    model: ModelMetadata,
    version: str = "",
) -> RemoteBackend[Any, Any]:
    """Return a client of ``kind`` for a new gateway that sends requests to ``target``. If endpoint
    URLs of the protocol identify a model (``model_path``), the client's URL identifies ``model``
    and ``version``. Without a ``profile``, the client detects the profile."""
    plugin, name = plugins()[kind.protocol], target.name
    table = RouteTable((Route(HANGING_MODEL, name, timeout=HANGING_TIMEOUT), Route("*", name)))
    declared = {}
    if target.protocol in WITHOUT_METADATA:
        declared[model.name] = ModelMetadata(
            model.name, inputs=model.inputs, outputs=model.outputs, max_batch_size=0
        )
    gateway = RoutingGateway(table, {name: target}, declared)
    options = {**kind.options, "model": model.name} if kind.is_framed else kind.options
    upstream = LoopbackUpstream(Frontend(plugin.create(options), gateway, DEFAULT_LIMITS))
    path = "" if kind.is_framed else model_path(kind.protocol, model.name, version)
    endpoint = Endpoint(path=path, framed=kind.is_framed)
    settings = BackendSettings(kind.protocol, (endpoint,), profile=profile)
    codec = kind.codec or plugin.create({})
    access: Any = HTTP_MESSAGES if plugin.transport_kind is TransportKind.HTTP else RPC_MESSAGES
    return RemoteBackend(settings, codec, upstream, access, DEFAULT_LIMITS)


def model_path(protocol: str, model: str, version: str = "") -> str:
    """Return the path of ``model`` in an endpoint URL of ``protocol``. The path is empty if the
    URLs of the protocol do not identify a model."""
    plugin = plugins()[protocol]
    if not plugin.supports_framing:
        return ""
    return f"/{plugin.claims[0]}/{model}" + (f"/versions/{version}" if version else "")

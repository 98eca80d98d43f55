"""Runs a request through a gateway with a single target. The target's backend keeps the message
instead of sending it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from infergate.backends.base import Backend
from infergate.backends.remote import RemoteBackend
from infergate.codecs import wire_format
from infergate.codecs.base import Codec, PartialInferRequest, RequestSummary, SupportsStreaming
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.config.values import display_names
from infergate.core.errors import GatewayError
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.rename import metadata_to_backend
from infergate.gateway.route_layers import RouteLayer
from infergate.migration.explain import steps
from infergate.migration.explain.backends import make_capturing_backend
from infergate.migration.explain.capture import Captured, TransformedInference
from infergate.migration.explain.route_checks import RouteTarget
from infergate.routing.table import RouteTable
from infergate.transport.base import Endpoint

Json = dict[str, Any]
Wire = HttpRequest | RpcRequest
PEER: Final = "explain"
_TIMEOUT_SECONDS: Final = 60.0
_OK: Final = "ok"
_ANSWERED: Final = "nothing is sent: the gateway itself answers this request"
_NEEDS_QUERY: Final = (
    "unknown, because {} needs information that only the server has, such as the model's metadata; "
    "{}query the server with --metadata"
)
_DECLARE: Final = "declare the model under 'models', or "


def error_text(error: GatewayError) -> str:
    """Return the kind, the public text and the detail of ``error`` on one line."""
    return f"{error.kind.value}: {error.public} {error.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class TargetExplanation:
    """The message that one target of the route would receive. ``error`` is the reason why the
    message does not exist or is unknown."""

    role: str
    when: str
    backend: str
    protocol: str
    endpoints: tuple[str, ...]
    pipeline: str = ""
    """``forward`` if the message passes through, or ``translate``, as in the access log."""
    steps: tuple[str, ...] = ()
    url: str = ""
    message: Json = field(default_factory=dict)
    """The message as text, with the keys of ``wire_format.describe_request``. It is empty for
    embedded models."""
    layout: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """A client's request. ``declared`` is the known metadata, keyed by the client's model name."""

    config: Config
    codec: Codec[Any, Any]
    wire: Wire
    headers: Mapping[str, str]
    declared: Mapping[str, ModelMetadata]
    summary: RequestSummary
    queries_servers: bool
    layers: tuple[RouteLayer, ...] = ()
    """The layers of the route that change tensors."""

    @property
    def is_inference(self) -> bool:
        return self.summary.operation is InferRequest

    def _context(self) -> RequestContext:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        request_id = self.headers[REQUEST_ID_HEADER]
        return RequestContext(PEER, deadline, headers=self.headers, request_id=request_id)

    async def send_to(
        self, target: RouteTarget
    ) -> tuple[TargetExplanation, InferRequest | None, ModelMetadata | None]:
        """Send the request to ``target`` through a gateway. Return an explanation of the message
        that the backend keeps, the client's inference, and the model's metadata with the client's
        names. The inference and the metadata are None if unknown."""
        captured, route = Captured(), target.route
        backend = make_capturing_backend(
            self.config,
            route.backend,
            captured,
            queries_servers=self.queries_servers,
            keeps_queries=not self.is_inference,
        )
        try:
            rule = compiled.routing_table(self.config).name_rule
            transformed = TransformedInference()
            layers: Mapping[int, tuple[RouteLayer, ...]] = (
                {0: (*self.layers, transformed)} if self.layers else {}
            )
            gateway = RoutingGateway(
                RouteTable((route,), rule),
                {route.backend: backend},
                self.declared,
                GatewayOptions(layers=layers),
            )
            limits = compiled.limits(self.config)
            frontend: Frontend[Any, Any] = Frontend(self.codec, gateway, limits)
            inference = metadata = None
            if self.is_inference:
                inference, metadata = await self._parse(frontend), await self._describe(gateway)
            captured.needs_query = False
            context = self._context()
            await self._send(frontend, context)
            sent = await self._read_back(backend, captured, target) or captured.operation
            details = (
                _describe(captured, sent)
                if captured.is_complete
                else {"error": self._missing(captured, context, backend)}
            )
            explanation = TargetExplanation(
                target.role,
                target.when,
                route.backend,
                backend.protocol,
                tuple(display_names(self.config.backends[route.backend].endpoints)),
                context.record.pipeline,
                _steps(sent, inference, transformed.request, target, backend),
                **details,
            )
            return explanation, inference, metadata
        finally:
            await backend.close()

    def _missing(self, captured: Captured, context: RequestContext, backend: Backend) -> str:
        """Return the reason why the backend has kept no message."""
        record = context.record
        if captured.needs_query:
            protocols = " or ".join({self.codec.name: 0, backend.protocol: 0})
            declare = "" if self.summary.model in self.declared else _DECLARE
            return _NEEDS_QUERY.format(protocols, declare)
        if record.outcome == _OK:
            return _ANSWERED
        return f"{record.outcome}: {record.error} {record.detail}".rstrip()

    async def _parse(self, frontend: Frontend[Any, Any]) -> InferRequest | None:
        """Return the client's inference, or None if it is invalid or needs unknown metadata."""
        wire = replace(self.wire)
        if frontend.open_request is not None:
            frontend.open_request(wire)
        try:
            parsed = await frontend.translation.parse(wire, self._context())
        except GatewayError:
            return None
        return parsed.operation if isinstance(parsed.operation, InferRequest) else None

    async def _describe(self, gateway: RoutingGateway) -> ModelMetadata | None:
        summary = self.summary
        try:
            return await gateway.describe(summary.model, summary.version, self._context())
        except GatewayError:
            return None

    async def _send(self, frontend: Frontend[Any, Any], context: RequestContext) -> None:
        wire, codec = replace(self.wire), self.codec
        streams = set(codec.streaming_methods)
        if isinstance(codec, SupportsStreaming):
            streams.add(codec.streaming_method)
        if isinstance(wire, RpcRequest) and wire.method in streams:
            try:
                request, _, binding = await frontend.parse_stream_request(wire, context)
                async for _ in frontend.gateway.stream(request, binding, context):
                    pass
            except GatewayError as error:
                context.record.record_error(error)
            return
        response = await frontend.respond(wire, context)
        if isinstance(response, HttpResponse) and response.body_stream is not None:
            await response.body_stream.next()
            await response.body_stream.close()

    async def _read_back(
        self, backend: Backend, captured: Captured, target: RouteTarget
    ) -> InferRequest | None:
        """Return the inference that the server would read from the captured message, or None if
        unknown."""
        if captured.wire is None or not isinstance(backend, RemoteBackend):
            return None  # an embedded model reads no message
        wire, plugin = replace(captured.wire), plugins()[backend.protocol]
        model = target.route.backend_model(self.summary.model)
        if plugin.supports_framing and isinstance(wire, HttpRequest):
            wire.path = f"/{plugin.claims[0]}/model"  # the model is not in the message
        try:
            parsed = backend.codec.parse_request(wire, compiled.limits(self.config))
            if isinstance(parsed, PartialInferRequest):
                parsed = parsed.complete(await self._backend_metadata(backend, model, target))
        except GatewayError:
            return None
        operation = parsed.operation
        if not isinstance(operation, InferRequest):
            return None
        return replace(operation, model=model) if plugin.supports_framing else operation

    async def _backend_metadata(
        self, backend: Backend, model: str, target: RouteTarget
    ) -> ModelMetadata:
        """Return the model's metadata with the backend's names. Raises GatewayError."""
        route, summary = target.route, self.summary
        declared = self.declared.get(summary.model)
        if declared is None:
            version = route.backend_version(summary.version)
            return await backend.describe(model, version, self._context())
        return metadata_to_backend(declared, InferRequest(summary.model, summary.version), route)


def _steps(
    sent: InferRequest | None,
    client: InferRequest | None,
    transformed: InferRequest | None,
    target: RouteTarget,
    backend: Backend,
) -> tuple[str, ...]:
    if client is None or sent is None:
        return ()
    rewrite = target.route.rewrite
    transforms = () if transformed is None else tuple(steps.transform_steps(client, transformed))
    return (
        *transforms,
        *steps.request_steps(transformed or client, sent, rewrite, backend.protocol),
        *steps.response_steps(rewrite),
    )


def _describe(captured: Captured, sent: InferRequest | None) -> Json:
    """Return the fields of ``TargetExplanation`` that describe the message."""
    wire, inputs = captured.wire, () if sent is None else sent.inputs
    if wire is None:  # an embedded model
        lines = (f"input '{each.name}': {steps.describe_tensor(each)}" for each in inputs)
        return {"layout": tuple(lines)}
    body = wire.body if isinstance(wire, HttpRequest) else wire.message
    return {
        "url": _url(wire, captured.endpoint or Endpoint()),
        "message": wire_format.describe_request(wire),
        "layout": tuple(steps.tensor_layout(body, inputs)),
    }


def _url(wire: Wire, endpoint: Endpoint) -> str:
    if isinstance(wire, RpcRequest):
        return f"{'grpcs' if endpoint.tls else 'grpc'}://{endpoint}{wire.method}"
    if endpoint.framed:
        return f"unix:{endpoint.unix}" if endpoint.unix else f"tcp://{endpoint}"
    scheme = "https" if endpoint.tls else "http"
    path = f"{endpoint.path}{wire.path or '/'}{wire_format.mask_query(wire.query)}"
    return f"{scheme}://{endpoint.authority}{path}"

"""Explains a request: its listener and protocol, its route, and the message that each target would
receive. The module ``target`` runs the request through the real gateway, once for each target of
the route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from infergate.assembly.transforms import make_transform_layer
from infergate.config import compile as compiled
from infergate.config.routes import RouteConfig
from infergate.config.schema import Config
from infergate.core.errors import GatewayError
from infergate.core.messages import OPERATION_NAMES, InferRequest, ModelMetadata
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.wire import HttpRequest, RpcRequest
from infergate.gateway.dispatch import assign_request_id
from infergate.gateway.services import HEALTH_SERVICE, REFLECTION_SERVICES
from infergate.migration.explain.client_request import ClientRequest
from infergate.migration.explain.listeners import codec_of, listener_of
from infergate.migration.explain.route_checks import RouteCheck, check_routes, targets_of
from infergate.migration.explain.split_choice import split_notes
from infergate.migration.explain.target import (
    PEER,
    ExplainedRequest,
    TargetExplanation,
    Wire,
    error_text,
)
from infergate.routing.table import Route

__all__ = ["ExplainOptions", "Explanation", "ModelMetadata", "explain"]
_ACCESS_NOTE: Final = "Access rules and rate limits are not applied here."
_OWN_SERVICES: Final = tuple(f"/{name}/" for name in (HEALTH_SERVICE, *REFLECTION_SERVICES))
"""The method prefixes of the gateway's own gRPC services."""
_CACHE_NOTE: Final = (
    "The gateway does not send requests that hit the route's response cache. The cache is not read "
    "here."
)
_SERVER_NOTE: Final = "The gateway itself answers requests about the server."


@dataclass(slots=True)
class Explanation:
    """The path of a request through the gateway."""

    listener: str
    protocol: str
    operation: str = ""
    model: str = ""
    version: str = ""
    routes: list[RouteCheck] = field(default_factory=list)
    targets: list[TargetExplanation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""
    """The reason why the gateway rejects the request before it reaches a target, or empty."""
    inference: InferRequest | None = None
    """The client's inference, or None if it is unknown."""
    metadata: ModelMetadata | None = None
    """The model's metadata with the client's names, or None if it is unknown."""


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """``queries_servers`` allows metadata queries to servers. ``recorded`` is the metadata derived
    from the tensors of a recorded request, or None for other requests."""

    queries_servers: bool = False
    recorded: ModelMetadata | None = None


async def explain(config: Config, request: ClientRequest, options: ExplainOptions) -> Explanation:
    """Explain ``request``. Raises RequestError if no listener of ``config`` has its transport."""
    listener, wire = listener_of(config, request), request.wire
    codec, envelope = codec_of(config, listener, wire)
    result = Explanation(listener, codec.name)
    if isinstance(wire, RpcRequest) and wire.method.startswith(_OWN_SERVICES):
        result.protocol = "grpc"
        result.notes.append(_SERVER_NOTE)
        return result
    if envelope:
        result.notes.append(f"The envelope '{envelope}' carries the request.")
    if config.access is not None:
        result.notes.append(_ACCESS_NOTE)
    table = compiled.routing_table(config)
    try:
        summary = codec.summarize(replace(wire))
        table.name_rule.check_model(summary.model, summary.version)
    except GatewayError as error:
        result.error = error_text(error)
        return result
    model, version = summary.model, summary.version
    result.model, result.version = model, version
    result.operation = OPERATION_NAMES[summary.operation]
    if not model and summary.operation is not InferRequest:
        result.notes.append(_SERVER_NOTE)
        return result
    context = _context(wire)
    headers = context.headers
    result.routes, route = check_routes(table.routes, model, version, headers)
    if route is None:
        result.error = f"not_found: no route matches the model '{model}'"
        return result
    configured = config.routes[result.routes[-1].number - 1]
    result.notes += _layer_notes(configured)
    layer = make_transform_layer(configured, compiled.limits(config), None)
    declared = compiled.declared_models(config)
    # With transforms, the model's tensors differ from the recorded tensors.
    if options.recorded is not None and model not in declared and layer is None:
        declared[model] = replace(options.recorded, name=model)
    explained = ExplainedRequest(
        config,
        codec,
        wire,
        headers,
        declared,
        summary,
        options.queries_servers,
        () if layer is None else (layer,),
    )
    await _add_targets(result, explained, route)
    if result.inference is not None:
        own_id = _headers(wire).get(REQUEST_ID_HEADER) == context.request_id
        result.notes += split_notes(route, result.inference, context, has_own_id=own_id)
    return result


async def _add_targets(result: Explanation, explained: ExplainedRequest, route: Route) -> None:
    for target in targets_of(route):
        if target.role == "backend" or explained.is_inference:  # other targets get only inferences
            explanation, inference, metadata = await explained.send_to(target)
            result.targets.append(explanation)
            result.inference = result.inference or inference
            result.metadata = result.metadata or metadata


def _layer_notes(route: RouteConfig) -> Iterator[str]:
    if route.hooks:
        names = ", ".join(route.hooks)
        yield f"The hooks {names} may change or answer the request. They are not run."
    if route.cache is not None:
        yield _CACHE_NOTE


def _headers(wire: Wire) -> Mapping[str, str]:
    return wire.headers if isinstance(wire, HttpRequest) else wire.metadata


def _context(wire: Wire) -> RequestContext:
    """Return a context with the client's headers, and with a request id as in the gateway."""
    context = RequestContext(PEER, headers=_headers(wire))
    assign_request_id(context)
    return context

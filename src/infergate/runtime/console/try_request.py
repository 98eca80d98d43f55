"""Sends a test request through the gateway in any client protocol, and shows each message.

The client's codec builds the message, and a real frontend parses it. Copies of the route's backends
send requests to the real endpoints and record the messages.

*Rule.* Access rules and rate limits do not apply to the operator's request. The request is neither
mirrored nor counted as a client's request, but backends and endpoints count it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from infergate.backends.base import Backend
from infergate.backends.remote import RemoteBackend
from infergate.codecs import wire_format
from infergate.codecs.base import Codec, CodecPlugin, Profile, SupportsMessageFields
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.routing.table import RouteTable
from infergate.runtime.console import tensor_format
from infergate.runtime.console.explanations import explain
from infergate.transport.base import Endpoint, Upstream

Json = dict[str, Any]
TRY: Final = "try"
EXAMPLE: Final = "example"
CODE: Final = "code"
INFER: Final = "infer"
_QUERIES: Final[Mapping[str, Callable[[str, str], Operation]]] = {
    "metadata": messages.ModelMetadataRequest,
    "ready": messages.ModelReadyRequest,
    "server ready": lambda _model, _version: messages.ServerReadyRequest(),
    "server live": lambda _model, _version: messages.ServerLiveRequest(),
    "server metadata": lambda _model, _version: messages.ServerMetadataRequest(),
}
"""Functions that build the operations other than inference from a model and a version."""
_TIMEOUT_SECONDS: Final = 60.0
"""Timeout of a test request."""
_MAX_INPUTS: Final = 64
_PEER: Final = "console"
_EMPTY: Final[tuple[Any, ...]] = ("", None, [], {})
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
"""Header names and values that every transport accepts (RFC 9110, 5.6.2 and 5.5; gRPC: ASCII)."""


@dataclass(frozen=True, slots=True)
class _RecordingUpstream:
    """An upstream that adds its messages to ``exchanges``. It does not support streams."""

    upstream: Upstream[Any, Any]
    codec: Codec[Any, Any]
    exchanges: list[Json]
    backend: str

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        exchange: Json = {
            "backend": self.backend,
            "endpoint": str(endpoint),
            "request": _describe_request(self.codec, wire),
            "answer": None,
            "error": "",
        }
        self.exchanges.append(exchange)
        began = time.monotonic()
        try:
            response = await self.upstream.exchange(wire, endpoint, timeout)
        except GatewayError as error:
            exchange["error"] = f"{error.kind.value}: {error.public} {error.detail}".rstrip()
            raise
        finally:
            exchange["seconds"] = time.monotonic() - began
        exchange["answer"] = _describe_response(self.codec, wire, response)
        return response

    async def close(self) -> None:
        """Do nothing, because the real backend owns the upstream."""


async def run_action(config: Config, gateway: RoutingGateway, action: str, request: Json) -> Json:
    """Perform an action of the console. ``action`` is TRY, EXAMPLE or CODE, and ``request`` is the
    JSON that docs/console.md describes. Raises GatewayError if the request is invalid or cannot be
    sent."""
    return await {TRY: _try_request, EXAMPLE: _example, CODE: _code}[action](
        config, gateway, request
    )


async def _try_request(config: Config, gateway: RoutingGateway, request: Json) -> Json:
    limits = compiled.limits(config)
    plugin = _plugin(request)
    model, version = _string(request, "model"), _string(request, "version")
    operation = _operation(request, model, version, limits)
    exchanges: list[Json] = []
    context = RequestContext(_PEER, time.monotonic() + _TIMEOUT_SECONDS, headers=_headers(request))
    recording_gateway = _recording_gateway(gateway, model, version, context, exchanges)
    options = compiled.frontend_options(config)
    codec: Codec[Any, Any] = plugin.create(options.get(plugin.name, {}))
    frontend: Frontend[Any, Any] = Frontend(codec, recording_gateway, limits)
    try:
        metadata = None
        if codec.needs_metadata and isinstance(operation, InferRequest):
            metadata = await _metadata(recording_gateway, model, version, context)
        profile = replace(GENERIC, supports_binary=bool(request.get("binary")))
        wire = _build_request(plugin, codec, operation, profile, metadata)
        context.headers = {**wire_headers(wire), **context.headers, "x-request-id": f"{_PEER}-try"}
        request_shown = _describe_request(codec, wire)
        began = time.monotonic()
        response = await frontend.respond(wire, context)
        seconds = time.monotonic() - began
        if isinstance(response, HttpResponse) and response.body_stream is not None:
            await response.body_stream.close()
        record = context.record
        return {
            "request": request_shown,
            "answer": _describe_response(codec, wire, response),
            "exchanges": exchanges,
            "result": _format_result(codec, response, operation, limits, metadata),
            "seconds": seconds,
            "backend_seconds": record.backend_seconds,
            "protocol": plugin.name,
            "route": record.route,
            "backend": record.backend,
            "backend_protocol": record.backend_protocol,
            "pipeline": record.pipeline,
            "outcome": record.outcome,
            "error": record.error,
            "detail": record.detail,
            **explain(record.outcome),
        }
    finally:
        await recording_gateway.close()


async def _example(config: Config, gateway: RoutingGateway, request: Json) -> Json:
    del config
    metadata = await _describe_model(gateway, request)
    return {"inputs": tensor_format.example(metadata), "versions": list(metadata.versions)}


async def _code(config: Config, gateway: RoutingGateway, request: Json) -> Json:
    """Return the inference as source code for several clients, keyed by the client's name."""
    from infergate.migration.explain.client_code import CLIENTS, code_of  # noqa: PLC0415 - rare
    from infergate.migration.explain.client_inference import ClientInference  # noqa: PLC0415
    from infergate.migration.explain.client_request import http_request  # noqa: PLC0415
    from infergate.migration.explain.listeners import client_addresses  # noqa: PLC0415

    model, version = _string(request, "model"), _string(request, "version")
    operation = _operation(request, model, version, compiled.limits(config))
    if not isinstance(operation, InferRequest):
        raise bad_request("only inferences can be written as code")
    headers = _headers(request)
    try:
        metadata = await _describe_model(gateway, request)
    except GatewayError:
        metadata = None  # only some clients need metadata
    addresses = client_addresses(config, http_request("POST", "/", {}))
    inference = ClientInference(operation, addresses, headers, metadata)
    return {"code": await asyncio.to_thread(code_of, CLIENTS, inference)}


async def _describe_model(gateway: RoutingGateway, request: Json) -> messages.ModelMetadata:
    model, version = _string(request, "model"), _string(request, "version")
    context = RequestContext(_PEER, time.monotonic() + _TIMEOUT_SECONDS, headers=_headers(request))
    recording_gateway = _recording_gateway(gateway, model, version, context, [])
    try:
        return await recording_gateway.describe(model, version, context)
    finally:
        await recording_gateway.close()


async def _metadata(
    gateway: RoutingGateway, model: str, version: str, context: RequestContext
) -> messages.ModelMetadata:
    """Return the model's metadata. Protocols that omit names or shapes need it for requests."""
    try:
        return await gateway.describe(model, version, context.child())
    except GatewayError as error:
        raise GatewayError(
            error.kind,
            "building this client's message needs the model's metadata, which is not available: "
            f"{error.public}",
        ) from error


# ---- the request


def _plugin(request: Json) -> CodecPlugin:
    plugin = plugins().get(_string(request, "protocol"))
    if plugin is None:
        raise bad_request(f"unknown protocol {request.get('protocol')!r}")
    return plugin


def _string(request: Json, key: str) -> str:
    value = request.get(key, "")
    if not isinstance(value, str):
        raise bad_request(f"{key} must be a string")
    return value


def _headers(request: Json) -> dict[str, str]:
    headers = request.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise bad_request("headers must be an object of strings")
    if len(headers) > DEFAULT_LIMITS.header_count:
        raise bad_request(f"headers must have at most {DEFAULT_LIMITS.header_count} members")
    for name, value in headers.items():  # a transport would reject other headers
        if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
            raise bad_request(f"the name or the value of header {name!r} is invalid")
    return {name.lower(): value for name, value in headers.items()}


def _operation(request: Json, model: str, version: str, limits: Limits) -> Operation:
    name = _string(request, "operation") or INFER
    if name in _QUERIES:
        return _QUERIES[name](model, version)
    if name != INFER:
        raise bad_request(f"operation must be one of: {', '.join((INFER, *_QUERIES))}")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) > _MAX_INPUTS:
        raise bad_request(f"inputs must be a list of at most {_MAX_INPUTS} tensors")
    parsed, headroom = [], tensor_format.MAX_BYTES
    for description in inputs:
        parsed.append(tensor_format.parse(description, limits))
        headroom -= len(parsed[-1].data)
        if headroom < 0:
            raise bad_request(f"the inputs together exceed {tensor_format.MAX_BYTES} bytes")
    return InferRequest(model, version, id=_string(request, "id"), inputs=tuple(parsed))


def _build_request(
    plugin: CodecPlugin,
    codec: Codec[Any, Any],
    operation: Operation,
    profile: Profile,
    metadata: messages.ModelMetadata | None,
) -> Any:
    unsupported = frozenset(Datatype) - codec.capabilities.datatypes
    for tensor in operation.inputs if isinstance(operation, InferRequest) else ():
        if tensor.datatype in unsupported:
            raise bad_request(
                f"{plugin.name} does not support {tensor.datatype.value}, the datatype of "
                f"'{tensor.name}'"
            )
    wire = codec.build_request(operation, profile, metadata)
    if plugin.supports_framing and isinstance(wire, HttpRequest):
        # A GraphPipe server has only one model, so the codec's request does not name the model.
        model = getattr(operation, "model", "")
        version = getattr(operation, "version", "")
        path = f"/{plugin.claims[0]}/{_quote_name(model)}"
        path += f"/versions/{_quote_name(version)}" if version else ""
        wire.path = path + wire.path.rstrip("/")
    return wire


def _quote_name(name: str) -> str:
    return quote(name, safe="")


def wire_headers(wire: Any) -> Mapping[str, str]:
    """Return the headers or metadata that a transport would send with the request."""
    return dict(wire.headers if isinstance(wire, HttpRequest) else wire.metadata)


# ---- the gateway that sends the request


def _recording_gateway(
    gateway: RoutingGateway,
    model: str,
    version: str,
    context: RequestContext,
    exchanges: list[Json],
) -> RoutingGateway:
    """Return a gateway whose backends record messages. The model's route, if there is one, is the
    only route."""
    backends_by_name = {backend.name: backend for backend in gateway.backends}
    try:
        binding = gateway.bind(model, version, context.child())
    except GatewayError:
        return RoutingGateway(RouteTable((), gateway.name_rule), {}, gateway.declared)
    route = replace(binding.route, mirror=None)
    names = (route.backend, route.fallback, *(target.backend for target in route.split))
    backends = {name: _with_recording(backends_by_name[name], exchanges) for name in names if name}
    # Only layers that change the tensors of clients apply; hooks and caches are skipped.
    layers = {0: tuple(reversed(binding.metadata_layers))}
    table = RouteTable((route,), gateway.name_rule)
    return RoutingGateway(table, backends, gateway.declared, GatewayOptions(layers=layers))


def _with_recording(backend: Backend, exchanges: list[Json]) -> Backend:
    if not isinstance(backend, RemoteBackend):
        return backend  # an embedded model has no messages
    return backend.with_upstream(
        lambda upstream: _RecordingUpstream(upstream, backend.codec, exchanges, backend.name)
    )


# ---- the messages


def _describe_request(codec: Codec[Any, Any], wire: Any) -> Json:
    shown = wire_format.describe_request(wire)
    if not shown["decoded"] and isinstance(codec, SupportsMessageFields):
        shown["decoded"] = _format_fields(codec.request_fields(wire))
    return shown


def _describe_response(codec: Codec[Any, Any], request: Any, wire: Any) -> Json:
    shown = wire_format.describe_response(wire, getattr(request, "method", ""))
    if not shown["decoded"] and isinstance(codec, SupportsMessageFields):
        shown["decoded"] = _format_fields(codec.response_fields(wire))
    return shown


def _format_fields(fields_shown: Json | None) -> str:
    return (
        "" if fields_shown is None else wire_format.truncate(wire_format.format_json(fields_shown))
    )


# ---- the result


def _format_result(
    codec: Codec[Any, Any],
    wire: Any,
    operation: Operation,
    limits: Limits,
    metadata: messages.ModelMetadata | None,
) -> str:
    """Return the JSON of the response that the client parses from the message."""
    try:
        response: Response = codec.parse_response(wire, operation, limits, metadata)
    except GatewayError as error:
        return wire_format.format_json({"error": error.kind.value, "message": error.public})
    return wire_format.truncate(wire_format.format_json(_response_json(response)))


def _response_json(response: Response) -> Json:
    if isinstance(response, InferResponse):
        summary: Json = {"model": response.model, "version": response.version, "id": response.id}
        outputs = [tensor_format.to_json(tensor) for tensor in response.outputs]
        return {key: value for key, value in summary.items() if value} | {"outputs": outputs}
    return {key: value for key, value in _plain_json(response).items() if value not in _EMPTY}


def _plain_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain_json(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain_json(element) for element in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)

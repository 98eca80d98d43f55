"""Sends a test request through the gateway in any client protocol, and shows each message.

The client's codec builds the message, a real frontend parses it, and the route's own backends send
it over their connections to the real endpoints. A copy of each backend records the messages. Other
requests are not affected.

*Rule.* The request is the operator's: access rules and rate limits do not apply to it, and it is
not counted as a client's request. Backends and endpoints count it as usual. It is not mirrored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from infergate.backends.base import Backend
from infergate.backends.remote import RemoteBackend
from infergate.codecs.base import Codec, CodecPlugin, Profile
from infergate.codecs.profiles import GENERIC
from infergate.codecs.registry import plugins
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.call import Call
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, bad_request
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import (
    Answer,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    Operation,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from infergate.core.wire import HttpRequest, HttpResponse
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import Gateway
from infergate.routing.table import RouteTable
from infergate.runtime.console import tensors, wires
from infergate.runtime.console.explanations import explained
from infergate.transport.base import Endpoint, Upstream

Json = dict[str, Any]
TRY: Final = "try"
EXAMPLE: Final = "example"
INFER: Final = "infer"
_QUESTIONS: Final[Mapping[str, Callable[[str, str], Operation]]] = {
    "metadata": ModelMetadataRequest,
    "ready": ModelReadyRequest,
    "server ready": lambda _model, _version: ServerReadyRequest(),
    "server live": lambda _model, _version: ServerLiveRequest(),
    "server metadata": lambda _model, _version: ServerMetadataRequest(),
}
"""The operations other than inference, from a model and a version."""
_PATIENCE: Final = 60.0
"""The deadline of a test request."""
_INPUTS: Final = 64
_PEER: Final = "console"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
"""Headers that every transport accepts (RFC 9110, 5.5 and 5.6.2; gRPC: printable ASCII)."""


@dataclass(slots=True)
class _Seen:
    """The messages that were exchanged with backends."""

    exchanges: list[Json] = field(default_factory=list)


class _Tap:
    """An Upstream that records its messages. It has no streams: a test request is one message."""

    def __init__(self, upstream: Upstream[Any, Any], seen: _Seen, backend: str) -> None:
        self._upstream: Final = upstream
        self._seen: Final = seen
        self._backend: Final = backend

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        """Exchange the messages and record them."""
        exchange: Json = {
            "backend": self._backend,
            "endpoint": str(endpoint),
            "request": wires.of_request(wire),
            "answer": None,
            "error": "",
        }
        self._seen.exchanges.append(exchange)
        began = time.monotonic()
        try:
            response = await self._upstream.exchange(wire, endpoint, timeout)
        except GatewayError as error:
            exchange["error"] = f"{error.kind.value}: {error.public} {error.detail}".rstrip()
            raise
        finally:
            exchange["seconds"] = time.monotonic() - began
        exchange["answer"] = wires.of_answer(response, getattr(wire, "method", ""))
        return response

    async def close(self) -> None:
        """Do nothing: the upstream belongs to the real backend."""


async def carried_out(config: Config, gateway: Gateway, what: str, asked: Json) -> Json:
    """Perform an action of the console: ``action`` is TRY or EXAMPLE, ``request`` is the JSON that
    docs/console.md describes. Raises GatewayError if the request is invalid or cannot be sent."""
    return await {TRY: _tried, EXAMPLE: _example}[what](config, gateway, asked)


async def _tried(config: Config, gateway: Gateway, asked: Json) -> Json:
    limits = compiled.limits(config)
    plugin = _plugin(asked)
    model, version = _text(asked, "model"), _text(asked, "version")
    operation = _operation(asked, model, version, limits)
    recording = _Seen()
    call = Call(_PEER, time.monotonic(), headers=_headers(asked))
    call.tighten(call.started + _PATIENCE)
    recording_gateway = _gateway(gateway, model, version, call, recording)
    options = compiled.frontend_options(config)
    codec: Codec[Any, Any] = plugin.make(options.get(plugin.name, {}))
    frontend: Frontend[Any, Any] = Frontend(codec, recording_gateway, limits)
    try:
        metadata = None
        if codec.described and isinstance(operation, InferRequest):
            metadata = await _described(recording_gateway, model, version, call)
        profile = replace(GENERIC, binary=bool(asked.get("binary")))
        wire = _written(plugin, codec, operation, profile, metadata)
        call.headers = {**wire_headers(wire), **call.headers, "x-request-id": f"{_PEER}-try"}
        request_shown = wires.of_request(wire)
        began = time.monotonic()
        response = await frontend.respond(wire, call)
        seconds = time.monotonic() - began
        if isinstance(response, HttpResponse) and response.rest is not None:
            await response.rest.close()
        return {
            "request": request_shown,
            "answer": wires.of_answer(response, getattr(wire, "method", "")),
            "exchanges": recording.exchanges,
            "result": _read(codec, response, operation, limits, metadata),
            "seconds": seconds,
            "backend_seconds": call.backend_seconds,
            "protocol": plugin.name,
            "route": call.route,
            "backend": call.backend,
            "backend_protocol": call.backend_protocol,
            "way": call.way,
            "outcome": call.outcome,
            "error": call.error,
            "detail": call.detail,
            **explained(call.outcome),
        }
    finally:
        await recording_gateway.close()


async def _example(config: Config, gateway: Gateway, asked: Json) -> Json:
    del config
    model, version = _text(asked, "model"), _text(asked, "version")
    call = Call(_PEER, time.monotonic(), headers=_headers(asked))
    call.tighten(call.started + _PATIENCE)
    recording_gateway = _gateway(gateway, model, version, call, _Seen())
    try:
        metadata = await recording_gateway.describe(model, version, call)
    finally:
        await recording_gateway.close()
    return {"inputs": tensors.example(metadata), "versions": list(metadata.versions)}


async def _described(gateway: Gateway, model: str, version: str, call: Call) -> ModelMetadata:
    """Return the metadata that a client needs whose protocol omits names or shapes."""
    try:
        return await gateway.describe(model, version, _beside(call))
    except GatewayError as error:
        raise GatewayError(
            error.kind,
            "building this client's message needs the model's metadata, which is not available: "
            f"{error.public}",
        ) from error


# ---- the request


def _plugin(asked: Json) -> CodecPlugin:
    plugin = plugins().get(_text(asked, "protocol"))
    if plugin is None:
        raise bad_request(f"unknown protocol {asked.get('protocol')!r}")
    return plugin


def _text(asked: Json, key: str) -> str:
    value = asked.get(key, "")
    if not isinstance(value, str):
        raise bad_request(f"{key} must be a string")
    return value


def _headers(asked: Json) -> dict[str, str]:
    headers = asked.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise bad_request("headers must be an object of strings")
    if len(headers) > DEFAULT_LIMITS.header_count:
        raise bad_request(f"more than {DEFAULT_LIMITS.header_count} headers")
    for name, value in headers.items():  # a transport would have rejected other headers
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise bad_request(f"{name!r} is not a valid header")
    return {name.lower(): value for name, value in headers.items()}


def _operation(asked: Json, model: str, version: str, limits: Limits) -> Operation:
    name = _text(asked, "operation") or INFER
    if name in _QUESTIONS:
        return _QUESTIONS[name](model, version)
    if name != INFER:
        raise bad_request(f"operation must be one of: {', '.join((INFER, *_QUESTIONS))}")
    inputs = asked.get("inputs")
    if not isinstance(inputs, list) or len(inputs) > _INPUTS:
        raise bad_request(f"inputs must be a list of at most {_INPUTS} tensors")
    parsed, headroom = [], tensors.MOST
    for description in inputs:
        parsed.append(tensors.read(description, limits))
        headroom -= len(parsed[-1].data)
        if headroom < 0:
            raise bad_request(f"the inputs together exceed {tensors.MOST} bytes")
    return InferRequest(model, version, id=_text(asked, "id"), inputs=tuple(parsed))


def _written(
    plugin: CodecPlugin,
    codec: Codec[Any, Any],
    operation: Operation,
    profile: Profile,
    described: ModelMetadata | None,
) -> Any:
    """Return the client's message."""
    unsupported = frozenset(Datatype) - codec.caps.datatypes
    for tensor in operation.inputs if isinstance(operation, InferRequest) else ():
        if tensor.datatype in unsupported:
            raise bad_request(
                f"{plugin.name} does not support {tensor.datatype.value}, the datatype of "
                f"'{tensor.name}'"
            )
    wire = codec.build_request(operation, profile, described)
    if plugin.framed and isinstance(wire, HttpRequest):
        # The codec's request does not name the model, because such a server has only one.
        model = getattr(operation, "model", "")
        version = getattr(operation, "version", "")
        path = f"/{plugin.claims[0]}/{_segment(model)}"
        path += f"/versions/{_segment(version)}" if version else ""
        wire.path = path + wire.path.rstrip("/")
    return wire


def _segment(name: str) -> str:
    return quote(name, safe="")


def wire_headers(wire: Any) -> Mapping[str, str]:
    """Return the headers or metadata that a transport would put on the call."""
    return dict(wire.headers if isinstance(wire, HttpRequest) else wire.metadata)


# ---- the gateway that sends it


def _gateway(gateway: Gateway, model: str, version: str, call: Call, seen: _Seen) -> Gateway:
    """Return a gateway with only the model's route, if any, whose backends record messages."""
    backends_by_name = {backend.name: backend for backend in gateway.backends}
    try:
        route = gateway.bind(model, version, _beside(call)).route
    except GatewayError:
        return Gateway(RouteTable((), gateway.names), {}, gateway.declared)
    route = replace(route, mirror=None)
    names = (route.backend, route.fallback, *(target.backend for target in route.split))
    backends = {name: _tapped(backends_by_name[name], seen) for name in names if name}
    return Gateway(RouteTable((route,), gateway.names), backends, gateway.declared)


def _tapped(backend: Backend, seen: _Seen) -> Backend:
    if not isinstance(backend, RemoteBackend):
        return backend  # an embedded model: there are no messages
    return backend.over(lambda upstream: _Tap(upstream, seen, backend.name))


def _beside(call: Call) -> Call:
    """Return a call for a metadata request of the console itself."""
    return Call(_PEER, time.monotonic(), deadline=call.deadline, headers=call.headers)


# ---- the result


def _read(
    codec: Codec[Any, Any],
    answer: Any,
    operation: Operation,
    limits: Limits,
    described: ModelMetadata | None,
) -> str:
    """Return the response as the client understands it, as JSON."""
    try:
        response: Answer = codec.parse_response(answer, operation, limits, described)
    except GatewayError as error:
        return wires.pretty({"error": error.kind.value, "message": error.public})
    return wires.cut(wires.pretty(_answer(response)))


def _answer(read: Answer) -> Json:
    if isinstance(read, InferResponse):
        summary: Json = {"model": read.model, "version": read.version, "id": read.id}
        outputs = [tensors.told(tensor) for tensor in read.outputs]
        return {key: value for key, value in summary.items() if value} | {"outputs": outputs}
    return {key: value for key, value in _plain(read).items() if value not in ("", None, [], {})}


def _plain(value: Any) -> Any:
    """Convert a value to JSON's types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(element) for element in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)

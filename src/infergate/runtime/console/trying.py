"""Sends a request through the gateway as a client of any protocol would, and shows each message.

*Strategy.* The client's codec writes the message, the real frontend's reads it, and the route's own
backends carry it out, over their connections, to the endpoints that requests go to: but a copy of
each backend shows what passes. Nothing of that is in the way of any other request.

*Rule.* It is the operator who asks: access rules and rates do not count for him, and he is not
counted among the clients; backends and endpoints count all that they are sent. No copies go to a
route's mirror.
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
"""What may be asked besides inferences, of a model and a version."""
_PATIENCE: Final = 60.0
"""Seconds that a try has at most."""
_INPUTS: Final = 64
_PEER: Final = "console"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
"""Headers that any carrier takes (RFC 9110, 5.5 and 5.6.2; gRPC: printable ASCII)."""


@dataclass(slots=True)
class _Seen:
    """What was sent to backends, and what came back."""

    exchanges: list[Json] = field(default_factory=list)


class _Tap:
    """An Upstream that shows what passes. It has no streams: a try is one message."""

    def __init__(self, upstream: Upstream[Any, Any], seen: _Seen, backend: str) -> None:
        self._upstream: Final = upstream
        self._seen: Final = seen
        self._backend: Final = backend

    async def exchange(self, wire: Any, endpoint: Endpoint, timeout: float) -> Any:
        """See Upstream."""
        told: Json = {
            "backend": self._backend,
            "endpoint": str(endpoint),
            "request": wires.of_request(wire),
            "answer": None,
            "error": "",
        }
        self._seen.exchanges.append(told)
        began = time.monotonic()
        try:
            answer = await self._upstream.exchange(wire, endpoint, timeout)
        except GatewayError as error:
            told["error"] = f"{error.kind.value}: {error.public} {error.detail}".rstrip()
            raise
        finally:
            told["seconds"] = time.monotonic() - began
        told["answer"] = wires.of_answer(answer, getattr(wire, "method", ""))
        return answer

    async def close(self) -> None:
        """It is another's."""


async def carried_out(config: Config, gateway: Gateway, what: str, asked: Json) -> Json:
    """What the console asks for: ``what`` is TRY or EXAMPLE, ``asked`` as docs/console.md says.
    Raises GatewayError for what cannot be sent or is not known."""
    return await {TRY: _tried, EXAMPLE: _example}[what](config, gateway, asked)


async def _tried(config: Config, gateway: Gateway, asked: Json) -> Json:
    limits = compiled.limits(config)
    plugin = _plugin(asked)
    model, version = _text(asked, "model"), _text(asked, "version")
    operation = _operation(asked, model, version, limits)
    seen = _Seen()
    call = Call(_PEER, time.monotonic(), headers=_headers(asked))
    call.tighten(call.started + _PATIENCE)
    own = _gateway(gateway, model, version, call, seen)
    options = compiled.frontend_options(config)
    codec: Codec[Any, Any] = plugin.make(options.get(plugin.name, {}))
    frontend: Frontend[Any, Any] = Frontend(codec, own, limits)
    try:
        described = None
        if codec.described and isinstance(operation, InferRequest):
            described = await _described(own, model, version, call)
        profile = replace(GENERIC, binary=bool(asked.get("binary")))
        wire = _written(plugin, codec, operation, profile, described)
        call.headers = {**wire_headers(wire), **call.headers, "x-request-id": f"{_PEER}-try"}
        shown = wires.of_request(wire)
        began = time.monotonic()
        answer = await frontend.respond(wire, call)
        seconds = time.monotonic() - began
        if isinstance(answer, HttpResponse) and answer.rest is not None:
            await answer.rest.close()
        return {
            "request": shown,
            "answer": wires.of_answer(answer, getattr(wire, "method", "")),
            "exchanges": seen.exchanges,
            "result": _read(codec, answer, operation, limits, described),
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
        await own.close()


async def _example(config: Config, gateway: Gateway, asked: Json) -> Json:
    del config
    model, version = _text(asked, "model"), _text(asked, "version")
    call = Call(_PEER, time.monotonic(), headers=_headers(asked))
    call.tighten(call.started + _PATIENCE)
    own = _gateway(gateway, model, version, call, _Seen())
    try:
        described = await own.describe(model, version, call)
    finally:
        await own.close()
    return {"inputs": tensors.example(described), "versions": list(described.versions)}


async def _described(gateway: Gateway, model: str, version: str, call: Call) -> ModelMetadata:
    """What a client that writes no names or shapes was told, or knows."""
    try:
        return await gateway.describe(model, version, _beside(call))
    except GatewayError as error:
        raise GatewayError(
            error.kind,
            "the message of such a client is made by the model's metadata, which could not be had: "
            f"{error.public}",
        ) from error


# ---- what is asked


def _plugin(asked: Json) -> CodecPlugin:
    plugin = plugins().get(_text(asked, "protocol"))
    if plugin is None:
        raise bad_request(f"there is no protocol {asked.get('protocol')!r}")
    return plugin


def _text(asked: Json, key: str) -> str:
    value = asked.get(key, "")
    if not isinstance(value, str):
        raise bad_request(f"{key} is a text")
    return value


def _headers(asked: Json) -> dict[str, str]:
    given = asked.get("headers") or {}
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise bad_request("headers is an object of texts")
    if len(given) > DEFAULT_LIMITS.header_count:
        raise bad_request(f"more than {DEFAULT_LIMITS.header_count} headers")
    for name, value in given.items():  # what a transport would not have let in
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise bad_request(f"{name!r} is no header that could be sent")
    return {name.lower(): value for name, value in given.items()}


def _operation(asked: Json, model: str, version: str, limits: Limits) -> Operation:
    name = _text(asked, "operation") or INFER
    if name in _QUESTIONS:
        return _QUESTIONS[name](model, version)
    if name != INFER:
        raise bad_request(f"operation is one of: {', '.join((INFER, *_QUESTIONS))}")
    inputs = asked.get("inputs")
    if not isinstance(inputs, list) or len(inputs) > _INPUTS:
        raise bad_request(f"inputs is a list of at most {_INPUTS} tensors")
    read, room = [], tensors.MOST
    for each in inputs:
        read.append(tensors.read(each, limits))
        room -= len(read[-1].data)
        if room < 0:
            raise bad_request(f"all inputs have {tensors.MOST} bytes at most")
    return InferRequest(model, version, id=_text(asked, "id"), inputs=tuple(read))


def _written(
    plugin: CodecPlugin,
    codec: Codec[Any, Any],
    operation: Operation,
    profile: Profile,
    described: ModelMetadata | None,
) -> Any:
    """The client's message."""
    lacking = frozenset(Datatype) - codec.caps.datatypes
    for tensor in operation.inputs if isinstance(operation, InferRequest) else ():
        if tensor.datatype in lacking:
            raise bad_request(f"{plugin.name} has no {tensor.datatype.value}: '{tensor.name}'")
    wire = codec.build_request(operation, profile, described)
    if plugin.framed and isinstance(wire, HttpRequest):  # its servers' addresses are a model's
        model = getattr(operation, "model", "")
        version = getattr(operation, "version", "")
        at = f"/{plugin.claims[0]}/{_segment(model)}"
        at += f"/versions/{_segment(version)}" if version else ""
        wire.path = at + wire.path.rstrip("/")
    return wire


def _segment(name: str) -> str:
    return quote(name, safe="")


def wire_headers(wire: Any) -> Mapping[str, str]:
    """Those that a transport would put on the call."""
    return dict(wire.headers if isinstance(wire, HttpRequest) else wire.metadata)


# ---- who carries it out


def _gateway(gateway: Gateway, model: str, version: str, call: Call, seen: _Seen) -> Gateway:
    """One of the model's route alone, if there is one, whose backends show what passes."""
    known = {each.name: each for each in gateway.backends}
    try:
        route = gateway.bind(model, version, _beside(call)).route
    except GatewayError:
        return Gateway(RouteTable((), gateway.names), {}, gateway.declared)
    route = replace(route, mirror=None)
    names = (route.backend, route.fallback, *(each.backend for each in route.split))
    backends = {name: _tapped(known[name], seen) for name in names if name}
    return Gateway(RouteTable((route,), gateway.names), backends, gateway.declared)


def _tapped(backend: Backend, seen: _Seen) -> Backend:
    if not isinstance(backend, RemoteBackend):
        return backend  # it runs in this process: nothing passes
    return backend.over(lambda upstream: _Tap(upstream, seen, backend.name))


def _beside(call: Call) -> Call:
    """For a question of the console's own."""
    return Call(_PEER, time.monotonic(), deadline=call.deadline, headers=call.headers)


# ---- what came of it


def _read(
    codec: Codec[Any, Any],
    answer: Any,
    operation: Operation,
    limits: Limits,
    described: ModelMetadata | None,
) -> str:
    """The answer as its client reads it, as JSON."""
    try:
        read: Answer = codec.parse_response(answer, operation, limits, described)
    except GatewayError as error:
        return wires.pretty({"error": error.kind.value, "message": error.public})
    return wires.cut(wires.pretty(_answer(read)))


def _answer(read: Answer) -> Json:
    if isinstance(read, InferResponse):
        told: Json = {"model": read.model, "version": read.version, "id": read.id}
        outputs = [tensors.told(each) for each in read.outputs]
        return {key: value for key, value in told.items() if value} | {"outputs": outputs}
    return {key: value for key, value in _plain(read).items() if value not in ("", None, [], {})}


def _plain(value: Any) -> Any:
    """Only what JSON has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)

"""The captured exchanges of the real server as wire messages."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from infergate.core.wire import HttpRequest, RpcRequest
from legacy import captures

PACKAGE = "/nvidia.inferenceserver.GRPCService/"


class Response(NamedTuple):
    """Header names are in lower case in ``headers``, and as captured in ``names``."""

    status: int
    reason: str
    headers: dict[str, str]
    names: tuple[str, ...]
    body: bytes


@dataclass(frozen=True)
class Exchange:
    name: str
    request: HttpRequest
    response: Response

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """A gRPC call; a stream has several requests and responses."""

    name: str
    requests: tuple[RpcRequest, ...]
    code: str
    details: str
    responses: tuple[bytes, ...]

    def __str__(self) -> str:
        return self.name


def _head(raw: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    start, *lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return start, [(name, value.strip()) for name, _, value in pairs], body


def _request(raw: bytes) -> HttpRequest:
    start, pairs, body = _head(raw)
    method, target, _ = start.split(" ")
    path, _, query = target.partition("?")
    headers = {name.lower(): value for name, value in pairs}
    length = int(headers.get("content-length", 0))
    return HttpRequest(method, path, query, headers, (body[:length],) if length else ())


def _response(raw: bytes) -> Response:
    start, pairs, body = _head(raw)
    if start.startswith("HTTP/1.1 100"):
        return _response(body)
    _, status, reason = start.split(" ", 2)
    headers = {name.lower(): value for name, value in pairs}
    if "content-length" in headers:  # the responses to pipelined requests follow
        body = body[: int(headers["content-length"])]
    return Response(int(status), reason, headers, tuple(name for name, _ in pairs), body)


def known_fields(status: Any) -> Any:
    """Return a copy of ``status``, a ServerStatus, without the fields that a gateway cannot know:
    statistics, and settings that the metadata of a model does not contain."""
    copy = type(status)()
    copy.CopyFrom(status)
    _clear(copy, "uptime_ns", *(f"{name}_stats" for name in _STATISTICS))
    for model in copy.model_status.values():
        config = model.config
        _clear(config, "version_policy", "instance_group", "default_model_filename")
        for tensor in (*config.input, *config.output):
            tensor.ClearField("reshape")
        for output in config.output:
            output.ClearField("label_filename")
        for version in model.version_status.values():
            _clear(version, "infer_stats", "model_execution_count", "model_inference_count")
            version.ClearField("last_inference_timestamp_milliseconds")
    return copy


_STATISTICS = ("health", "status", "model_control", "shm_control", "repository")


def _clear(message: Any, *names: str) -> None:
    for name in names:
        message.ClearField(name)


HTTP = [
    Exchange(exchange.name, _request(exchange.request), _response(exchange.response))
    for exchange in captures.exchanges()
    if exchange.response
]
GRPC = [
    Call(
        call.name,
        tuple(RpcRequest(PACKAGE + call.method, (message,)) for message in call.requests),
        call.code,
        call.details,
        call.responses,
    )
    for call in captures.calls()
]

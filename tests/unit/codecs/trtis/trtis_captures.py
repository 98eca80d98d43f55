"""The captured exchanges of the real server as wire messages."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infergate.core.wire import HttpRequest, RpcRequest

_FOLDER = Path(__file__).resolve().parents[3] / "legacy" / "captures"
PACKAGE = "/nvidia.inferenceserver.GRPCService/"


@dataclass(frozen=True)
class Response:
    """``raw`` are the captured bytes; header names are in lower case."""

    status: int
    reason: str
    headers: dict[str, str]
    names: tuple[str, ...]
    body: bytes
    raw: bytes


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


def _cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_FOLDER / name).read_text("utf-8").splitlines()]


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
    return Response(int(status), reason, headers, tuple(name for name, _ in pairs), body, raw)


def _exchange(case: dict[str, Any]) -> Exchange | None:
    response = case["response"].encode("latin-1")
    if not response:
        return None
    return Exchange(case["name"], _request(case["request"].encode("latin-1")), _response(response))


def _call(case: dict[str, Any]) -> Call:
    return Call(
        case["name"],
        tuple(
            RpcRequest(PACKAGE + case["method"], (each.encode("latin-1"),))
            for each in case["requests"]
        ),
        case["code"],
        case["details"],
        tuple(each.encode("latin-1") for each in case["responses"]),
    )


HTTP = [found for case in _cases("http.jsonl") if (found := _exchange(case)) is not None]
"""Empty if the server closed the connection without a response."""
EXPLICIT = [
    found for case in _cases("http_explicit.jsonl") if (found := _exchange(case)) is not None
]
GRPC = [_call(case) for case in _cases("grpc.jsonl")]

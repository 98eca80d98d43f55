"""The captured exchanges of the real server as wire messages."""

from dataclasses import dataclass
from typing import NamedTuple

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


HTTP = [
    Exchange(each.name, _request(each.request), _response(each.response))
    for each in captures.exchanges()
    if each.response
]
GRPC = [
    Call(
        each.name,
        tuple(RpcRequest(PACKAGE + each.method, (message,)) for message in each.requests),
        each.code,
        each.details,
        each.responses,
    )
    for each in captures.calls()
]

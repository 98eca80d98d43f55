"""The legacy server's HTTP endpoints.

A connection reads raw bytes, because the real server's HTTP behavior is imitated too: no Date or
Server header, a bare 400 and 405, lost requests, and connections that close without a response. The
last headers of a response have the order in which libevhtp adds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from google.protobuf import json_format, text_format

from legacy.messages import debug_string, short_debug_string
from legacy.models import LATEST, LegacyError
from legacy.server_state import ServerState

_HEADER_LIMIT = 8190
_REASONS = {200: "OK", 400: "Bad Request", 405: "Not Allowed"}
_BYTES = ("Content-Type", "application/octet-stream")

Crash = Callable[[str], None]
WriteLog = Callable[..., None]


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    version: str
    headers: list[tuple[str, str]]
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each.lower() == name), None)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def format(self) -> str:
        return parse_qs(self.target.partition("?")[2]).get("format", [""])[0]

    @property
    def keeps_alive(self) -> bool:
        connection = (self.header("connection") or "").lower()
        return connection == "keep-alive" if self.version == "HTTP/1.0" else connection != "close"


@dataclass(frozen=True)
class Reply:
    code: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def encoded(self, request: Request) -> bytes:
        headers = list(self.headers)
        if self.body:
            _add(headers, "Content-Length", str(len(self.body)))
        if request.version == "HTTP/1.0":
            if request.keeps_alive:
                headers.append(("Connection", "keep-alive"))
        else:
            if not request.keeps_alive:
                headers.append(("Connection", "close"))
            _add(headers, "Content-Length", "0")
        _add(headers, "Content-Type", "text/plain")
        lines = [f"{request.version} {self.code} {_REASONS[self.code]}"]
        lines += [f"{name}: {value}" for name, value in headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def _add(headers: list[tuple[str, str]], name: str, value: str) -> None:
    if name not in dict(headers):
        headers.append((name, value))


BAD_REQUEST, NOT_ALLOWED = Reply(400), Reply(405)


class Endpoints:
    """Maps requests to responses."""

    def __init__(self, state: ServerState, crash: Crash) -> None:
        self._state = state
        self._messages = state.messages
        self._crash = crash

    async def infer(self, request: Request) -> Reply | None:
        """Return the response, or None to close the connection without one."""
        behavior = self._state.behavior
        if request.method != "POST":
            return NOT_ALLOWED
        if not (found := re.fullmatch(r"/api/infer/([^/]+)(?:/(\d+))?", request.path)):
            return BAD_REQUEST
        if behavior.silent:
            return None
        if (text := request.header("nv-inferrequest")) is None:
            if behavior.crashes_without_header:
                self._crash("no NV-InferRequest")
                return None
            return Reply(400, body=b"The request header should contain 'NV-InferRequest'")
        header = self._messages.InferRequestHeader()
        try:
            text_format.Parse(text.encode("latin-1").decode(), header)
        except (text_format.ParseError, UnicodeDecodeError):
            return BAD_REQUEST
        model, version = found[1], LATEST if found[2] is None else int(found[2])
        try:
            return await self._run_inference(request, model, version, header)
        except LegacyError as error:
            status = self._state.status(error)
            if error.unreported or (error.late and behavior.closes_on_wrong_size):
                return None
            echo = self._messages.InferResponseHeader(id=header.id)
            return Reply(400, [*_header_lines(echo), *_status(status), _BYTES])

    async def _run_inference(
        self, request: Request, model: str, version: int, header: Any
    ) -> Reply:
        inference = self._state.inference
        checked = inference.check(model, version, header)
        response, raw = await inference.infer(checked, inference.split(checked, request.body))
        binary = request.format == "binary"
        trailer = response.SerializeToString() if binary else debug_string(response)
        status = [*_header_lines(response), *_status(self._state.status()), _BYTES]
        return Reply(200, status, b"".join(raw) + trailer)

    def other(self, request: Request) -> Reply:
        """Return the response to a request that is not an inference."""
        routes = (
            ("/api/health", "GET", self._health),
            ("/api/status", "GET", self._server_status),
            ("/api/modelcontrol", "POST", self._model_control),
            ("/api/repository", "GET", self._repository),
            ("/api/sharedmemorycontrol/status", "GET", self._shared_memory_status),
            ("/api/sharedmemorycontrol", "POST", self._shared_memory),
        )
        for prefix, method, respond in routes:
            if request.path == prefix or request.path.startswith(f"{prefix}/"):
                if request.method != method:
                    return NOT_ALLOWED
                try:
                    return respond(request, request.path[len(prefix) :])
                except LegacyError as error:
                    return Reply(400, _status(self._state.status(error)))
        return BAD_REQUEST

    def _success(self) -> Reply:
        return Reply(200, _status(self._state.status()))

    def _message(self, request: Request, message: Any) -> Reply:
        status = _status(self._state.status())
        if request.format == "binary":
            return Reply(200, [_BYTES, *status], message.SerializeToString(deterministic=True))
        return Reply(200, status, debug_string(message))

    def _health(self, _request: Request, rest: str) -> Reply:
        if rest not in {"/live", "/ready"}:
            return BAD_REQUEST
        ready = self._state.ready(rest[1:])
        return Reply(200 if ready else 400, _status(self._state.status()))

    def _server_status(self, request: Request, rest: str) -> Reply:
        message = self._state.server_status(rest[1:])
        if self._state.behavior.status_json and (
            request.format == "json"
            or (not request.format and request.header("accept") == "application/json")
        ):
            text = json_format.MessageToJson(message, indent=None, preserving_proto_field_name=True)
            return Reply(200, _status(self._state.status()), text.encode())
        return self._message(request, message)

    def _model_control(self, _request: Request, rest: str) -> Reply:
        if not (found := re.fullmatch(r"/(load|unload)/([^/]+)", rest)):
            return BAD_REQUEST
        repository = self._state.repository
        (repository.load if found[1] == "load" else repository.unload)(found[2])
        return self._success()

    def _repository(self, request: Request, rest: str) -> Reply:
        return self._message(request, self._state.index()) if rest == "/index" else BAD_REQUEST

    def _shared_memory_status(self, request: Request, rest: str) -> Reply:
        return BAD_REQUEST if rest else self._message(request, self._messages.SharedMemoryStatus())

    def _shared_memory(self, _request: Request, rest: str) -> Reply:
        if found := re.fullmatch(r"/register/([^/]+)(/.*)/(\d+)/(\d+)", rest):
            # The first slash only separates the name from the key.
            self._state.register(found[1], found[2].removeprefix("/"))
        if found := re.fullmatch(r"/cudaregister/([^/]+)/(\d+)/(\d+)", rest):
            self._state.register_cuda(found[1])
        if re.fullmatch(r"/unregister/[^/]+|/unregisterall", rest):
            return self._success()
        return BAD_REQUEST


def _header_lines(header: Any) -> list[tuple[str, str]]:
    return [("NV-InferResponse", short_debug_string(header).decode())]


def _status(status: Any) -> list[tuple[str, str]]:
    return [("NV-Status", short_debug_string(status).decode())]


class Connection(asyncio.Protocol):
    """One client connection. Requests are served one after the other."""

    def __init__(
        self, endpoints: Endpoints, state: ServerState, crash: Crash, write_log: WriteLog
    ) -> None:
        self._endpoints = endpoints
        self._behavior = state.behavior
        self._crash = crash
        self._write_log = write_log
        self._buffer = b""
        self._head: Request | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._proceed()

    def _proceed(self) -> None:
        while not self._transport.is_closing() and (request := self._next()):
            if request.path == "/api/infer" or request.path.startswith("/api/infer/"):
                self._task = asyncio.ensure_future(self._infer(request))
                return
            self._write(request, self._endpoints.other(request))
            if self._behavior.drops_pipelined:
                self._buffer = b""

    async def _infer(self, request: Request) -> None:
        reply = await self._endpoints.infer(request)
        self._task = None
        if reply is None:
            self._transport.close()
            return
        self._write(request, reply)
        self._proceed()

    def _write(self, request: Request, reply: Reply) -> None:
        self._transport.write(reply.encoded(request))
        if not request.keeps_alive:
            self._transport.close()

    def _next(self) -> Request | None:
        """Remove the next complete request from the buffer and return it."""
        if self._head is None and not self._take_head():
            return None
        assert self._head is not None
        length = int(self._head.header("content-length") or 0)
        if len(self._buffer) < length:
            return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        head, self._head = self._head, None
        return Request(head.method, head.target, head.version, head.headers, body)

    def _take_head(self) -> bool:
        text, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        first, *lines = text.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = [(name, value.strip(" \t")) for name, _, value in pairs]
        sizes = [len(value) for _, value in headers]
        with contextlib.suppress(ValueError):
            method, target, version = parts
            sizes.append(len(target))
            if not self._behavior.limits_header or max(sizes) <= _HEADER_LIMIT:
                self._buffer, self._head = rest, Request(method, target, version, headers)
                self._write_log(method=method, target=target, headers=headers)
                return self._begin(self._head)
        self._transport.close()
        return False

    def _begin(self, head: Request) -> bool:
        """Act on a request's head before its body is read. Return whether to continue."""
        chunked = head.header("transfer-encoding") is not None
        if chunked and head.header("content-length") is None and self._behavior.crashes_on_chunked:
            self._crash("a chunked body without Content-Length")
            self._transport.close()
            return False
        if (head.header("expect") or "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

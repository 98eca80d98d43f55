"""A gateway between a gRPC or HTTP client and scripted servers, in memory and on a virtual clock.

``Pair`` takes the same steps with and without relays, and compares what ``Stack.observed`` returns:
everything that a client, a server or an operator can see.
"""

from __future__ import annotations

import asyncio
import contextvars
import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from infergate.backends.backend_settings import BackendSettings
from infergate.backends.endpoints import BalanceSettings
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.codecs.profiles import TRITON
from infergate.codecs.registry import plugins
from infergate.codecs.trtis import GRPC
from infergate.codecs.trtis import messages as legacy
from infergate.codecs.trtis.grpc_methods import INFER as LEGACY_METHOD
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.core.counters import BackendCounters
from infergate.core.limits import Limits
from infergate.core.messages import ModelMetadata, TensorMetadata
from infergate.core.request_context import RequestContext
from infergate.core.route_policy import RetryPolicy
from infergate.gateway.dispatch import HttpDispatch, RpcDispatch, assign_request_id
from infergate.gateway.frontend import Frontend, RequestAuthorizer
from infergate.gateway.gateway import RoutingGateway
from infergate.observe.access_log import log_fields
from infergate.observe.request_counters import RequestCounters
from infergate.routing.table import Rewrite, Route, RouteTable
from infergate.runtime.offload.ipc_message import pack, unpack
from infergate.transport.base import Address, Endpoint
from infergate.transport.client import pool
from infergate.transport.framed.client import HttpOrFrameUpstream
from infergate.transport.grpc import client as client_module
from infergate.transport.grpc.client import H2Upstream
from infergate.transport.grpc.server import H2Server
from infergate.transport.http1.server import H1Server
from infergate.transport.http2 import events, header_blocks
from infergate.transport.http2.frames import Code
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.roles import Http2ClientConnection, Http2ServerConnection
from infergate.transport.server.admission import Admission

METHOD = "/inference.GRPCInferenceService/ModelInfer"
SERVICE = "inference.GRPCInferenceService"
RESPONSE_HEADERS = header_blocks.encode_block(
    (":status", "200"), ("content-type", "application/grpc"), ("x-load", "0.5")
)
_QUIET_ROUNDS = 12
_DATE = re.compile(rb"date: [^\r]*\r\n")
_RESOLUTION = 0.001
_current: contextvars.ContextVar[Stack] = contextvars.ContextVar("stack")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when a test moves it."""

    now = 1000.0

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """The pending timers."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return [timer for timer in scheduled if not timer.cancelled()]

    def time(self) -> float:
        return self.now


class MemoryTransport(asyncio.Transport):
    """A transport that collects the written bytes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_lost = False
        self._loop = loop
        self._protocol = protocol

    def write(self, data: Any) -> None:
        if not self.is_lost:
            self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def take(self) -> bytes:
        written = bytes(self.sent)
        self.sent.clear()
        return written

    def close(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.is_lost

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5000) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Do nothing, because the tests pass received bytes directly to a protocol."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_reading(self) -> bool:
        return True

    def can_write_eof(self) -> bool:
        return False


class ServerEnd:
    """A scripted server's end of a connection from the gateway."""

    def __init__(self, stack: Stack, protocol: Any) -> None:
        self.stack = stack
        self.protocol = protocol
        self.transport = MemoryTransport(stack.loop, protocol)
        self.engine = Http2ServerConnection(65536, stack.max_server_streams)
        self.bodies: dict[int, tuple[HeaderBlock, bytearray]] = {}

    def receive(self) -> bool:
        """Exchange pending bytes; return whether there were any."""
        data = self.transport.take()
        for event in self.engine.receive(data, self.stack.loop.now) if data else ():
            match event:
                case events.Headers(stream, fields):
                    self.bodies[stream.id] = fields, bytearray()
                case events.Data(stream, parts, _, end):
                    fields, body = self.bodies[stream.id]
                    for part in parts:
                        body += part
                    if end:
                        key = dict(fields.pairs)["x-request-id"]
                        self.stack.requests.append((fields.pairs, bytes(body)))
                        self.stack.pending.setdefault(key, []).append((self, stream))
                case events.Reset(stream, code):
                    fields, _ = self.bodies[stream.id]
                    key = dict(fields.pairs)["x-request-id"]
                    self.stack.server_resets.append((key, code))
                    self.stack.drop(self, stream.id)
                case _:
                    pass
        output = b"".join(map(bytes, self.engine.take_output()))
        if output and not self.transport.is_lost:
            self.protocol.data_received(output)
        return bool(data or output)

    def lose(self) -> None:
        self.transport.close()
        self.stack.drop(self)


async def _open_connection(
    _loop: object, create_protocol: Callable[[], Any], _endpoint: object, _tls: object
) -> Any:
    stack = _current.get()
    stack.connects += 1
    if stack.refuses_connections:
        raise ConnectionRefusedError("refused")
    protocol = create_protocol()
    end = stack.end_type(stack, protocol)
    stack.servers.append(end)
    protocol.connection_made(end.transport)
    return protocol


def feed(protocol: Any, data: bytes) -> None:
    """Pass received bytes to an asyncio protocol."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    while data:
        buffer = protocol.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        protocol.buffer_updated(count)


class Helpers:
    """Runs jobs in this process, and pickles the arguments as for helper processes."""

    async def run(self, _deadline: float | None, *job: Any, **_options: Any) -> Any:
        await asyncio.sleep(0)
        pickled, buffers = pack(job)
        function, *arguments = unpack(pickled, memoryview(b"".join(buffers)))
        return function(*arguments)


class Stack:
    """One gateway, its client and its servers."""

    end_type: Callable[[Stack, Any], Any] = ServerEnd
    access: Any = RPC_MESSAGES

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        relays: bool,
        endpoints: int = 1,
        max_requests: int = 0,
        authorizer: Callable[[], RequestAuthorizer] = lambda: None,  # type: ignore[assignment,return-value]
        limits: Limits | None = None,
        is_legacy: bool = False,
        has_helpers: bool = False,
    ) -> None:
        self.loop = loop
        self.is_legacy = self.declares = is_legacy
        self.relays = relays
        self.limits = limits or Limits(in_flight=4, body=200_000)
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)
        self.max_server_streams = 100
        self.refuses_connections = False
        self.connects = self.generated_ids = 0
        self.servers: list[ServerEnd] = []
        self.requests: list[tuple[Any, bytes]] = []
        self.server_resets: list[tuple[str, int]] = []
        self.pending: dict[str, list[tuple[ServerEnd, Any]]] = {}
        self.records: list[tuple[Any, ...]] = []
        self.metrics = RequestCounters()
        self.counters = BackendCounters()
        self.authorizer = authorizer()
        self.contexts: list[RequestContext] = []
        addresses = [Endpoint("server", 8000 + number) for number in range(endpoints)]
        self.offload: Any = Helpers() if has_helpers else None
        self.backend: RemoteBackend[Any, Any] = RemoteBackend(
            BackendSettings(
                "b",
                addresses,
                timeout=5.0,
                profile=TRITON,
                forward_headers=["x-*"],
                return_headers=["x-load"],
                balancing=BalanceSettings("round-robin"),
                max_requests=max_requests,
                max_queue=1,
            ),
            self.new_codec(),
            self.new_upstream(),
            self.access,
            self.limits,
            counters=self.counters,
            offload=self.offload,
        )
        policy: Any = self.backend._endpoints._cluster._policy
        policy._random = lambda: 0.0  # both stacks start with the first endpoint
        self.admission = Admission(self.limits)
        self.listener = self.new_listener()
        self.listener.loop = loop
        self.connection: Any = self.listener._create_connection()
        self.transport = MemoryTransport(loop, self.connection)
        self.context.run(self.connection.connection_made, self.transport)
        self.client = Http2ClientConnection(65536)
        self.unsent = bytearray()
        self.received: dict[int, list[tuple[Any, ...]]] = {}
        self.connection_events: list[tuple[Any, ...]] = []
        self.streams: dict[str, Any] = {}

    def new_codec(self) -> Any:
        """Return the codec of the servers."""
        return GRPC.create({}) if self.is_legacy else V2Grpc()

    def new_client_codec(self) -> Any:
        """Return the codec of the clients."""
        return self.new_codec()

    def new_upstream(self) -> Any:
        """Return the transport to the servers."""
        return H2Upstream(self.limits)

    def new_listener(self) -> Any:
        return H2Server(Address(), self.make_app(), self.limits, self.admission)

    def wrap_frontend(self, frontend: Any) -> Any:
        service = legacy.SERVICE if self.is_legacy else SERVICE
        return RpcDispatch(
            {service: frontend}, {}, {}, self._record, self._assign_id, relays=self.relays
        )

    def make_app(self) -> Any:
        """Build the application, as at a start or a reload."""
        routes = [
            Route("m", "b"),
            Route("renamed", "b", rewrite=Rewrite("m", "2")),
            Route("quick", "b", timeout=0.5),
            Route("trusted", "b", validate=False),
            Route("once", "b", retry=RetryPolicy(max_retries=0)),
            Route("again", "b", retry=RetryPolicy(is_idempotent=True)),
        ]
        declared = {
            model: ModelMetadata(
                model,
                inputs=(TensorMetadata("x", "UINT8", (-1,)),),
                outputs=(TensorMetadata("y", "UINT8", (-1,)),),
                max_batch_size=0,
            )
            for model in ("m", "renamed", "quick")
        }
        self.gateway = RoutingGateway(
            RouteTable(routes), {"b": self.backend}, declared if self.declares else {}
        )
        frontend: Any = Frontend(
            self.new_client_codec(), self.gateway, self.limits, self.offload, self.authorizer
        )
        return self.wrap_frontend(frontend)

    def _assign_id(self, context: RequestContext) -> None:
        if "x-request-id" not in context.headers:
            self.generated_ids += 1
            context.headers = {**context.headers, "x-request-id": f"g{self.generated_ids}"}
        assign_request_id(context)

    def _record(self, context: RequestContext) -> None:
        self.contexts.append(context)
        fields = log_fields(context, 0.0, 0.0)
        self.records.append(tuple(fields._replace(backend_seconds=0.0)))
        self.metrics.record(context.record, 0.0)
        self.gateway.own_statistics.record(context.record, 0.0, 0.0)

    # ---- the client

    def call(
        self, key: str, message: bytes, headers: Sequence[tuple[str, str]] = (), cut: int = -1
    ) -> None:
        """Call the method, and send only the first ``cut`` bytes, or all bytes for -1."""
        block = header_blocks.encode_block(
            (":method", "POST"),
            (":scheme", "http"),
            (":path", LEGACY_METHOD if self.is_legacy else METHOD),
            (":authority", "gateway"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-request-id", key),
            *headers,
        )
        prefix = b"\0" + len(message).to_bytes(4, "big")
        self.streams[key] = self.client.open_stream(block, (prefix, message))
        self.write(cut)

    def write(self, cut: int = -1) -> None:
        """Send at most ``cut`` of the client's pending bytes, or all bytes for -1."""
        for part in self.client.take_output():
            self.unsent += part
        count = len(self.unsent) if cut < 0 else min(cut, len(self.unsent))
        data = bytes(self.unsent[:count])
        del self.unsent[:count]
        if data and not self.transport.is_lost:
            feed(self.connection, data)

    def reset(self, key: str) -> None:
        """Reset the stream of a call, if it is open."""
        self.client.reset(self.streams[key], Code.CANCEL)
        self.write()

    def _read(self) -> bool:
        data = self.transport.take()
        for event in self.client.receive(data, self.loop.now) if data else ():
            match event:
                case events.Headers(stream, fields, end):
                    self._note(stream, "headers", tuple(fields.pseudo.items()), fields.pairs, end)
                case events.Data(stream, parts, _, end):
                    self._note(stream, "data", b"".join(map(bytes, parts)), end)
                case events.Trailers(stream, fields):
                    self._note(stream, "trailers", fields.pairs)
                case events.Reset(stream, code):
                    self._note(stream, "reset", int(code))
                case events.Goaway(code):
                    self.connection_events.append(("goaway", code))
                case events.Failed(code, reason):
                    self.connection_events.append(("failed", code, reason))
                case _:
                    pass
        return bool(data)

    def _note(self, stream: Any, kind: str, *values: Any) -> None:
        noted = self.received.setdefault(stream.id, [])
        if kind == "data" and noted and noted[-1][0] == "data":
            noted[-1] = "data", noted[-1][1] + values[0], values[1]
        else:
            noted.append((kind, *values))

    # ---- the servers

    def drop(self, end: ServerEnd, stream: int | None = None) -> None:
        """Forget requests that can no longer be answered."""
        self.pending = {
            key: remaining
            for key, waiting in self.pending.items()
            if (
                remaining := [
                    (server, each)
                    for server, each in waiting
                    if not (server is end and (stream is None or stream == each.id))
                ]
            )
        }

    def answer(self, key: str, kind: str) -> None:
        """Answer the latest pending request ``key`` with the response or failure ``kind``."""
        end, stream = self.pending[key][-1]
        engine = end.engine
        trailers = header_blocks.encode_block(("grpc-status", "0"))
        message = legacy_response(key) if self.is_legacy else response_message(key, kind)
        body: tuple[bytes, ...] = (b"\0" + len(message).to_bytes(4, "big"), message)
        match kind:
            case "ok" | "long" | "many" | "wrong":
                engine.send_message(stream, RESPONSE_HEADERS, body, trailers)
            case "garbage":
                body = b"\0" + (3).to_bytes(4, "big"), b"\xff\xff\xff"
                engine.send_message(stream, RESPONSE_HEADERS, body, trailers)
            case "empty":
                engine.send_message(stream, RESPONSE_HEADERS, (), trailers)
            case "two":
                engine.send_message(stream, RESPONSE_HEADERS, body * 2, trailers)
            case "invalid" | "unavailable" | "cancelled" | "late":
                code = {"invalid": "3", "unavailable": "14", "cancelled": "1", "late": "4"}[kind]
                status = header_blocks.encode_block(
                    (":status", "200"),
                    ("content-type", "application/grpc"),
                    ("grpc-status", code),
                    ("grpc-message", f"because {kind}"),
                )
                engine.send_headers(stream, status, end=True)
            case "http":
                engine.send_headers(
                    stream, header_blocks.encode_block((":status", "503")), end=True
                )
            case "partial":
                engine.send_headers(stream, RESPONSE_HEADERS)
                engine.send_data(stream, (body[0], message[:3]))
                return
            case "oversize":
                length = self.limits.body + 2**20
                engine.send_headers(stream, RESPONSE_HEADERS)
                engine.send_data(stream, (b"\0" + length.to_bytes(4, "big"),))
            case "reset":
                engine.reset(stream, Code.INTERNAL_ERROR)
            case "refused":
                engine.reset(stream, Code.REFUSED_STREAM)
            case "lost":
                end.lose()
                return
            case "goaway":
                engine.last_stream = max(0, stream.id - 2)
                engine._announced_last_stream = None
                engine.announce_last_stream()
                self.drop(end)
                return
        self.drop(end, stream.id)

    # ---- progress

    async def settle(self) -> None:
        """Run everything that can run without moving the clock."""
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            await asyncio.sleep(0)
            moved = [end.receive() for end in self.servers] + [self._read()]
            for part in self.client.take_output():
                self.unsent += part
            if not self.has_cut and self.unsent:
                self.write()
                moved.append(True)
            quiet = 0 if any(moved) else quiet + 1

    has_cut = False
    """Whether the rest of a call is held back."""

    def observed(self) -> dict[str, Any]:
        """Return everything that can be seen from outside."""
        endpoints = self.backend.endpoint_stats()
        concurrency = self.backend.concurrency_stats
        budget = self.backend._sender.retry_budget
        statistics: dict[str, Any] = {
            model: self.gateway.own_statistics.statistics_of(model, "1")
            for model in ("m", "renamed", "quick", "trusted", "once", "again")
        }
        return {
            "streams": self.received,
            "connection": self.connection_events,
            "is lost": self.transport.is_lost,
            "requests": sorted(self.requests),
            "server resets": sorted(self.server_resets),
            "connects": self.connects,
            "pending": sorted(self.pending),
            "records": sorted(self.records),
            "metrics": sorted(
                (flow.labels, sorted(flow.outcomes.items()), flow.bytes_in, flow.bytes_out)
                for flow in self.metrics.flows()[0]
            ),
            "statistics": statistics,
            "requests in progress": self.admission.requests,
            "bytes in progress": self.admission.bytes,
            "transfers": len(self.admission.transfers),
            "budget": budget.active_requests,
            "retries": sorted(self.counters.retries.items()),
            "queue": (
                self.counters.queued,
                self.counters.queue_rejected,
                self.counters.queue_expired,
                self.counters.budget_exhausted,
            ),
            "endpoints": [tuple(each) for each in endpoints],
            "concurrency": concurrency and tuple(concurrency),
            "active": sum(1 for each in self.listener.active_requests() if not each.done()),
        }


def request_message(model: str, size: int = 4, kind: str = "raw") -> bytes:
    """Return a ModelInferRequest with ``raw`` or ``typed`` contents, or of another ``kind``: a
    ``sequence``, requested ``classes``, a ``wrong`` data size, or ``garbage`` (no protobuf)."""
    if kind == "garbage":
        return b"\xff" * size
    message = pb.ModelInferRequest(model_name=model, id="7")
    message.inputs.add(name="x", datatype="UINT8", shape=[size])
    if kind == "typed":
        message.inputs[0].contents.uint_contents.extend([1] * size)
    else:
        message.raw_input_contents.append(bytes(size - (kind == "wrong")))
    if kind == "sequence":
        message.parameters["sequence_id"].int64_param = 5
    if kind == "classes":
        message.outputs.add(name="y").parameters["classification"].int64_param = 1
    return bytes(message.SerializeToString())


def legacy_request(model: str, size: int = 4, kind: str = "raw") -> bytes:
    """Return an InferRequest of the legacy API; ``kind`` is as for ``request_message``."""
    if kind == "garbage":
        return b"\xff" * size
    header = legacy.InferRequestHeader(batch_size=1)
    header.input.add(name="x", dims=[size])
    header.output.add(name="y")
    if kind == "sequence":
        header.correlation_id = 5
    message = legacy.InferRequest(model_name=model, model_version=-1, meta_data=header)
    message.raw_input.append(bytes(size - (kind == "wrong")))
    return bytes(message.SerializeToString())


def legacy_response(key: str) -> bytes:
    """Return an InferResponse of the legacy API."""
    header = legacy.InferResponseHeader(model_name="m", model_version=1, batch_size=1)
    header.output.add(name="y", raw={"dims": [len(key)], "batch_byte_size": len(key)})
    message = legacy.InferResponse(request_status={"code": 1}, meta_data=header)
    message.raw_output.append(key.encode())
    return bytes(message.SerializeToString())


def response_message(key: str, kind: str = "ok") -> bytes:
    """Return a ModelInferResponse with the data ``key``. A ``long`` response repeats ``key``; a
    helper reads a response with ``many`` elements; a ``wrong`` response has one byte too many."""
    message = pb.ModelInferResponse(model_name="m", model_version="1")
    data = key.encode() * (70_000 // len(key) if kind == "long" else 1)
    if kind == "many":
        message.outputs.add(name="y", datatype="BYTES", shape=[40_000])
        data = bytes(160_000)
    else:
        message.outputs.add(name="y", datatype="UINT8", shape=[len(data)])
    message.raw_output_contents.append(data + b"!" * (kind == "wrong"))
    return bytes(message.SerializeToString())


class HttpServerEnd:
    """A scripted HTTP server's end of a connection from the gateway."""

    def __init__(self, stack: Stack, protocol: Any) -> None:
        self.stack = stack
        self.protocol = protocol
        self.transport = MemoryTransport(stack.loop, protocol)
        self.unread = b""
        self.output = b""

    def receive(self) -> bool:
        """Exchange pending bytes; return whether there were any."""
        data = self.transport.take()
        self.unread += data
        head, separator, body = self.unread.partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        length = int(lines.get("content-length", 0))
        if separator and len(body) >= length:
            self.unread = body[length:]
            self.stack.requests.append((tuple(sorted(lines.items())), body[:length]))
            self.stack.pending.setdefault(lines["x-request-id"], []).append((self, None))
        if self.transport.is_lost:
            self.stack.drop(self)
        output, self.output = self.output, b""
        if output and not self.transport.is_lost:
            feed(self.protocol, output)
        return bool(data or output)


class HttpStack(Stack):
    """A gateway between clients and servers of V2 REST."""

    end_type = HttpServerEnd
    access = HTTP_MESSAGES

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        super().__init__(loop, **options)
        self.client.take_output()

    def new_codec(self) -> Any:
        return plugins()["v2-rest"].create({})

    def new_upstream(self) -> Any:
        return HttpOrFrameUpstream(self.limits)

    def new_listener(self) -> Any:
        return H1Server(Address(), self.make_app(), self.limits, self.admission)

    def wrap_frontend(self, frontend: Any) -> Any:
        return HttpDispatch({"v2": frontend}, self._record, self._assign_id, relays=self.relays)

    def call(
        self, key: str, message: bytes, headers: Sequence[tuple[str, str]] = (), cut: int = -1
    ) -> None:
        """Send a request. ``message`` is the model's name, a newline and the body."""
        model, _, body = message.partition(b"\n")
        lines = [
            f"POST /v2/models/{model.decode()}/infer HTTP/1.1",
            "host: gateway",
            f"x-request-id: {key}",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        self.unsent += "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self.write(cut)

    def _read(self) -> bool:
        data = _DATE.sub(b"", self.transport.take())
        if data:
            self.received[0] = [(b"".join(part for (part,) in self.received.get(0, [])) + data,)]
        return bool(data)

    def answer(self, key: str, kind: str) -> None:
        end, _ = self.pending[key][-1]
        body = rest_response(key)
        status, extra = "200 OK", ""
        match kind:
            case "garbage":
                body = b"{"
            case "invalid":
                status, body = "400 Bad Request", b'{"error":"because"}'
            case "unavailable":
                status, body = "503 Service Unavailable", b'{"error":"because"}'
            case "compressed":
                body, extra = gzip.compress(body, mtime=0), "content-encoding: gzip\r\n"
            case "no HTTP":
                end.output = b"nonsense\r\n\r\n"
            case "oversize":
                end.output = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n"
            case "lost":
                end.transport.close()
            case "partial":
                end.output = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"
                return
        if kind == "ok, then closed":
            extra = "connection: close\r\n"
        if not end.output:
            length = f"content-length: {len(body)}\r\nx-load: 0.5\r\n"
            end.output = f"HTTP/1.1 {status}\r\n{extra}{length}\r\n".encode() + body
        self.drop(end)


class TranslatedStack(HttpStack):
    """A gateway between clients of V2 REST and servers of V2 gRPC."""

    end_type = ServerEnd
    access = RPC_MESSAGES
    answer = Stack.answer
    new_codec = Stack.new_codec
    new_upstream = Stack.new_upstream

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        options.setdefault("limits", Limits(in_flight=4, body=400_000))
        super().__init__(loop, **options)

    def make_app(self) -> Any:
        self.declares = True
        return super().make_app()

    def new_client_codec(self) -> Any:
        return HttpStack.new_codec(self)


class RestServersStack(Stack):
    """A gateway between clients of V2 gRPC and servers of V2 REST."""

    end_type = HttpServerEnd
    access = HTTP_MESSAGES
    answer = HttpStack.answer
    new_codec = HttpStack.new_codec
    new_upstream = HttpStack.new_upstream

    def new_client_codec(self) -> Any:
        return V2Grpc()


def rest_request(model: str, size: int = 4, kind: str = "raw") -> bytes:
    """Return the model's name, a newline and the JSON of an inference."""
    if kind == "garbage":
        return f"{model}\n{{".encode()
    tensor = {"name": "x", "datatype": "UINT8", "shape": [size], "data": [1] * size}
    if kind == "wrong":
        tensor["shape"] = [size + 1]
    body: dict[str, Any] = {"id": "7", "inputs": [tensor]}
    if kind == "sequence":
        body["parameters"] = {"sequence_id": 5}
    if kind == "many":  # so many tensors that a helper parses them
        body["inputs"] = [tensor | {"name": f"x{number}"} for number in range(300)]
    if kind == "classes":
        body["outputs"] = [{"name": "y", "parameters": {"classification": 1}}]
    if kind == "binary":
        body["parameters"] = {"binary_data_output": True}
    return f"{model}\n{json.dumps(body)}".encode()


def rest_response(key: str) -> bytes:
    """Return a response whose data is ``key``."""
    tensor = {"name": "y", "datatype": "UINT8", "shape": [len(key)], "data": list(key.encode())}
    return json.dumps({"model_name": "m", "model_version": "1", "outputs": [tensor]}).encode()


class Pair:
    """Two stacks that take the same steps, one with relays and one without."""

    def __init__(self, stack_type: type[Stack] = Stack, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.monotonic = 0
        self.stacks = [stack_type(self.loop, relays=relays, **options) for relays in (True, False)]

    def run(self, step: Callable[[Stack], object] = lambda _: None) -> None:
        """Take ``step`` on both stacks, and compare the stacks."""
        for stack in self.stacks:
            stack.context.run(step, stack)
            task = self.loop.create_task(stack.settle(), context=stack.context)
            self.loop.run_until_complete(task)
        self.compare()

    def compare(self) -> None:
        """Check that the observable state of both stacks is the same."""
        relayed, in_tasks = (stack.observed() for stack in self.stacks)
        for name, value in relayed.items():
            assert value == in_tasks[name], name

    def advance(self, seconds: float) -> None:
        """Move the clock, from one timer to the next."""
        end = self.loop.now + seconds
        while self.loop.now < end:
            next_time = min((timer.when() for timer in self.loop.timers), default=end)
            self.loop.now = min(end, max(next_time, self.loop.now + _RESOLUTION))
            self.run()

    def close(self) -> None:
        """Disconnect the clients, close the backends, and check that no request is left."""
        try:
            self._close()
        finally:
            self.loop.close()

    def _close(self) -> None:
        self.run(lambda stack: stack.transport.close())
        self.advance(60.0)
        for stack in self.stacks:
            task = self.loop.create_task(stack.backend.close(), context=stack.context)
            self.loop.run_until_complete(task)
        self.run()
        zero_fields = (
            "requests in progress", "bytes in progress", "transfers", "budget", "active"
        )  # fmt: skip
        for stack in self.stacks:
            observations = stack.observed()
            assert not any(observations[name] for name in zero_fields), observations
            assert all(each.active == 0 for each in stack.backend.endpoint_stats())


def patches(clock: Callable[[], float]) -> Iterator[tuple[Any, str, Any]]:
    """Yield the attributes to patch, with replacements for the network, the clock and delays."""
    import time  # noqa: PLC0415

    from infergate.backends import attempts  # noqa: PLC0415

    yield client_module, "open_connection", _open_connection
    yield pool, "open_connection", _open_connection
    yield time, "monotonic", clock
    yield attempts, "backoff", lambda _: 0.05

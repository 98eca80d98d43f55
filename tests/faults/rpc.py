"""gRPC calls with serialized messages, which tritonclient's protobufs build and grpcio sends, and a
backend that records its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from faults.watch import SECONDS

INFER = "/inference.GRPCInferenceService/ModelInfer"


def infer_message(model: str, *, count: int = 1, **more: Any) -> bytes:
    """Return a valid, serialized inference request with ``count`` INT32 elements in INPUT0."""
    message = pb.ModelInferRequest(model_name=model, **more)
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[count])
    message.raw_input_contents.append(b"\x07\0\0\0" * count)
    return bytes(message.SerializeToString())


def ok_response() -> bytes:
    """Return a valid, serialized response: OUTPUT0, an INT32 of 7."""
    message = pb.ModelInferResponse(model_name="m", model_version="1")
    message.outputs.add(name="OUTPUT0", datatype="INT32", shape=[1])
    message.raw_output_contents.append(b"\x07\0\0\0")
    return bytes(message.SerializeToString())


@dataclass(frozen=True)
class Status:
    """The end of a call. ``message`` is the response if ``code`` is OK."""

    code: grpc.StatusCode
    details: str
    message: bytes = b""
    trailers: Mapping[str, str | bytes] = field(default_factory=dict)


def call(channel: grpc.Channel, message: bytes, method: str = INFER, **more: Any) -> Status:
    method_callable = channel.unary_unary(method)
    try:
        response = method_callable(message, **{"timeout": SECONDS, **more})
    except grpc.RpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        return Status(error.code(), error.details() or "", trailers=trailers)
    return Status(grpc.StatusCode.OK, "", response)


@contextmanager
def channel(address: str, **options: Any) -> Iterator[grpc.Channel]:
    settings = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    with grpc.insecure_channel(address, settings, **options) as rpc_channel:
        yield rpc_channel


@dataclass
class RpcBackend:
    """A gRPC server that responds to every call with ``respond``, and records all calls."""

    address: str = ""
    respond: Callable[[bytes, grpc.ServicerContext], bytes] = lambda message, context: ok_response()
    requests: list[bytes] = field(default_factory=list)
    remaining: list[float | None] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def wait(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Wait for ``release`` and respond. Set ``cancelled`` when the RPC terminates."""
        context.add_callback(self.cancelled.set)
        self.entered.set()
        self.release.wait(5 * SECONDS)
        return ok_response()

    def late_call(self, rpc_channel: grpc.Channel, message: bytes) -> tuple[Status, float]:
        """Call with increasing timeouts until the request reaches this backend before it expires.
        Return the status and the timeout of the last call."""
        self.respond = self.wait
        self.entered.clear()
        timeout = 0.25
        while not self.entered.is_set():  # a busy machine needs more time
            timeout *= 2
            status = call(rpc_channel, message, timeout=timeout)
            assert status.code is grpc.StatusCode.DEADLINE_EXCEEDED
        return status, timeout


class _CatchAllHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, backend: RpcBackend) -> None:
        self._backend = backend

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._serve)

    def _serve(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        self._backend.requests.append(message)
        self._backend.remaining.append(context.time_remaining())
        return self._backend.respond(message, context)


@contextmanager
def rpc_backend(port: int = 0) -> Iterator[RpcBackend]:
    """Run a gRPC server that records calls, on ``port`` or on a free port. It is stopped without a
    grace period."""
    backend = RpcBackend()
    with ThreadPoolExecutor(16) as threads:
        # By default, grpc-core rejects calls at random if 1000 calls wait, which happens on a busy
        # machine.
        pending_limits = [
            (f"grpc.server.max_pending_requests{kind}", 10_000) for kind in ("", "_hard_limit")
        ]
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0), *pending_limits])
        server.add_generic_rpc_handlers((_CatchAllHandler(backend),))
        backend.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        try:
            yield backend
        finally:
            backend.release.set()
            server.stop(0).wait()

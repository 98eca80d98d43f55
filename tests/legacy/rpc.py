"""The gRPC service. A call with a valid message has status OK: errors are in ``request_status``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from legacy.messages import SERVICE
from legacy.models import LegacyError
from legacy.server_state import ServerState
from legacy.web import WriteLog


class Service(grpc.GenericRpcHandler):
    """Handles raw bytes, so that a malformed message gets the real server's error text."""

    def __init__(self, state: ServerState, write_log: WriteLog) -> None:
        self._state = state
        self._messages = state.messages
        self._write_log = write_log
        self._unary: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "Health": ("HealthRequest", self._health),
            "Status": ("StatusRequest", self._status),
            "ModelControl": ("ModelControlRequest", self._model_control),
            "Repository": ("RepositoryRequest", self._repository),
            "SharedMemoryControl": ("SharedMemoryControlRequest", self._shared_memory),
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        service, _, method = details.method.strip("/").partition("/")
        self._write_log(rpc=details.method)
        if service == SERVICE and method == "Infer":
            return grpc.unary_unary_rpc_method_handler(self._infer)
        if service == SERVICE and method == "StreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if service == SERVICE and method in self._unary:
            return grpc.unary_unary_rpc_method_handler(self._unary_handler(*self._unary[method]))
        return grpc.unary_unary_rpc_method_handler(_unimplemented)

    def _unary_handler(self, kind: str, respond: Callable[[Any], Any]) -> Any:
        async def call(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            message = await _parsed(getattr(self._messages, kind), data, context)
            result = getattr(self._messages, kind.replace("Request", "Response"))()
            try:
                response = respond(message)
            except LegacyError as error:
                result.request_status.CopyFrom(self._state.status(error))
            else:
                result.request_status.CopyFrom(self._state.status())
                result.MergeFrom(response)
            return _bytes(result)

        return call

    def _health(self, message: Any) -> Any:
        if message.mode not in {"live", "ready"}:
            raise LegacyError("UNKNOWN", f"unknown health mode '{message.mode}'")
        return self._messages.HealthResponse(health=self._state.ready(message.mode))

    def _status(self, message: Any) -> Any:
        status = self._state.server_status(message.model_name)
        return self._messages.StatusResponse(server_status=status)

    def _model_control(self, message: Any) -> Any:
        repository = self._state.repository
        (repository.load if message.type else repository.unload)(message.model_name)
        return self._messages.ModelControlResponse()

    def _repository(self, message: Any) -> Any:
        if message.WhichOneof("request_type") is None:
            raise LegacyError("UNKNOWN", "request type is not specified")
        return self._messages.RepositoryResponse(index=self._state.index())

    def _shared_memory(self, message: Any) -> Any:
        result = self._messages.SharedMemoryControlResponse()
        match message.WhichOneof("shared_memory_control"):
            case None:
                raise LegacyError("UNKNOWN", "unknown sharedmemorycontrol request type")
            case "status":
                result.shared_memory_status.SetInParent()
            case "register":
                self._register(message.register)
        return result

    def _register(self, message: Any) -> None:
        match message.WhichOneof("shared_memory_types"):
            case "system_shared_memory":
                self._state.register(message.name, message.system_shared_memory.shared_memory_key)
            case "cuda_shared_memory":
                self._state.register_cuda(message.name)
        reason = (
            f"failed to register shared memory region: '{message.name}', improperly formed request."
        )
        raise LegacyError("INVALID_ARG", reason)

    async def _infer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await self._infer_message(await _parsed(self._messages.InferRequest, data, context))

    async def _infer_message(self, message: Any) -> bytes:
        inference = self._state.inference
        result = self._messages.InferResponse()
        try:
            checked = inference.check(message.model_name, message.model_version, message.meta_data)
            inputs = inference.join(checked, message.raw_input)
            header, raw = await inference.infer(checked, inputs)
        except LegacyError as error:
            result.request_status.CopyFrom(self._state.status(error))
            result.meta_data.id = message.meta_data.id
            result.meta_data.SetInParent()
        else:
            result.request_status.CopyFrom(self._state.status())
            result.meta_data.CopyFrom(header)
            result.raw_output.extend(raw)
        return _bytes(result)

    async def _stream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Run requests concurrently, and send the responses in the order of the requests."""
        running: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()

        async def read() -> None:
            async for data in requests:
                running.put_nowait(asyncio.ensure_future(self._infer(data, context)))
            running.put_nowait(None)

        reading = asyncio.ensure_future(read())
        while task := await running.get():
            yield await task
        await reading


async def _parsed(kind: Any, data: bytes, context: grpc.aio.ServicerContext) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INTERNAL, "Unable to parse request")


async def _unimplemented(_data: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
    return b""


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data

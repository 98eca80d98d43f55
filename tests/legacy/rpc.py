"""The gRPC service. Every call has status OK: errors are in ``request_status``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from legacy.answers import Answers
from legacy.messages import SERVICE
from legacy.models import Refused
from legacy.web import Note


class Service(grpc.GenericRpcHandler):
    """Handles raw bytes, so that a malformed message gets the real server's error text."""

    def __init__(self, answers: Answers, note: Note) -> None:
        self._answers = answers
        self._messages = answers.messages
        self._note = note
        self._unary: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "Health": ("HealthRequest", self._health),
            "Status": ("StatusRequest", self._status),
            "ModelControl": ("ModelControlRequest", self._model_control),
            "Repository": ("RepositoryRequest", self._repository),
            "SharedMemoryControl": ("SharedMemoryControlRequest", self._shared_memory),
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        service, _, method = details.method.strip("/").partition("/")
        self._note(rpc=details.method)
        if service == SERVICE and method == "Infer":
            return grpc.unary_unary_rpc_method_handler(self._infer)
        if service == SERVICE and method == "StreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if service == SERVICE and method in self._unary:
            return grpc.unary_unary_rpc_method_handler(self._one(*self._unary[method]))
        return grpc.unary_unary_rpc_method_handler(_unimplemented)

    def _one(self, kind: str, answer: Callable[[Any], Any]) -> Any:
        async def call(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            message = await _parsed(getattr(self._messages, kind), data, context)
            result = getattr(self._messages, kind.replace("Request", "Response"))()
            try:
                filled = answer(message)
            except Refused as refused:
                result.request_status.CopyFrom(self._answers.status(refused))
            else:
                result.request_status.CopyFrom(self._answers.status())
                result.MergeFrom(filled)
            return _bytes(result)

        return call

    def _health(self, message: Any) -> Any:
        if message.mode not in {"live", "ready"}:
            raise Refused("UNKNOWN", f"unknown health mode '{message.mode}'")
        return self._messages.HealthResponse(health=self._answers.ready(message.mode))

    def _status(self, message: Any) -> Any:
        status = self._answers.server_status(message.model_name)
        return self._messages.StatusResponse(server_status=status)

    def _model_control(self, message: Any) -> Any:
        repository = self._answers.repository
        (repository.load if message.type else repository.unload)(message.model_name)
        return self._messages.ModelControlResponse()

    def _repository(self, message: Any) -> Any:
        if message.WhichOneof("request_type") is None:
            raise Refused("UNKNOWN", "request type is not specified")
        return self._messages.RepositoryResponse(index=self._answers.index())

    def _shared_memory(self, message: Any) -> Any:
        result = self._messages.SharedMemoryControlResponse()
        match message.WhichOneof("shared_memory_control"):
            case None:
                raise Refused("UNKNOWN", "unknown sharedmemorycontrol request type")
            case "status":
                result.shared_memory_status.SetInParent()
            case "register":
                self._register(message.register)
        return result

    def _register(self, message: Any) -> None:
        match message.WhichOneof("shared_memory_types"):
            case "system_shared_memory":
                self._answers.register(message.name, message.system_shared_memory.shared_memory_key)
            case "cuda_shared_memory":
                self._answers.register_cuda(message.name)
        response = (
            f"failed to register shared memory region: '{message.name}', improperly formed request."
        )
        raise Refused("INVALID_ARG", response)

    async def _infer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await self._inferred(await _parsed(self._messages.InferRequest, data, context))

    async def _inferred(self, message: Any) -> bytes:
        inference = self._answers.inference
        result = self._messages.InferResponse()
        try:
            checked = inference.checked(
                message.model_name, message.model_version, message.meta_data
            )
            inputs = inference.joined(checked, message.raw_input)
            header, raw = await inference.answered(checked, inputs)
        except Refused as refused:
            result.request_status.CopyFrom(self._answers.status(refused))
            result.meta_data.id = message.meta_data.id
            result.meta_data.SetInParent()
        else:
            result.request_status.CopyFrom(self._answers.status())
            result.meta_data.CopyFrom(header)
            result.raw_output.extend(raw)
        return _bytes(result)

    async def _stream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Requests run concurrently; responses are sent in the order of the requests."""
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
    data = message.SerializeToString(deterministic=True)
    assert isinstance(data, bytes)
    return data

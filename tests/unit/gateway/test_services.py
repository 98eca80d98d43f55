"""The gateway's own services: grpc.health.v1 and server reflection."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from infergate.codecs.protos import SCHEMA
from infergate.core.request_context import RequestContext
from infergate.core.wire import RpcRequest, RpcResponse, join_parts
from infergate.gateway.readiness import Readiness
from infergate.gateway.services import (
    HEALTH_SERVICE,
    REFLECTION_SERVICES,
    GatewayServices,
    gateway_services,
)

V2 = "inference.GRPCInferenceService"
CONTEXT = RequestContext("test")
CheckRequest = SCHEMA.message_class("grpc.health.v1.HealthCheckRequest")
CheckResponse = SCHEMA.message_class("grpc.health.v1.HealthCheckResponse")
ListResponse = SCHEMA.message_class("grpc.health.v1.HealthListResponse")
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class Switch(Readiness):
    """Readiness whose ``wait_for_change`` returns after each ``set_ready``."""

    def __init__(self) -> None:
        super().__init__(self.report)
        self.serves = True
        self._releases: asyncio.Queue[None] = asyncio.Queue()

    async def report(self, context: RequestContext) -> bool:
        raise NotImplementedError

    async def is_ready(self) -> bool:
        return self.serves

    async def wait_for_change(self) -> None:
        await self._releases.get()

    def set_ready(self, is_ready: bool) -> None:
        self.serves = is_ready
        self._releases.put_nowait(None)


def build_services(readiness: Readiness) -> GatewayServices:
    return gateway_services(SCHEMA, (V2,), readiness)


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A handler that runs the services on a plain grpc.aio server."""

    def __init__(self, services: GatewayServices) -> None:
        self.services = services

    def service(self, details: Any) -> Any:
        if details.method in self.services.unary:
            return grpc.unary_unary_rpc_method_handler(self.unary(details.method))
        return grpc.stream_stream_rpc_method_handler(self.stream(details.method))

    def unary(self, method: str) -> Any:
        async def handle(message: bytes, context: Any) -> bytes:
            return await body_of(
                await self.services.unary[method](RpcRequest(method, (message,)), CONTEXT), context
            )

        return handle

    def stream(self, method: str) -> Any:
        async def handle(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for response in self.services.streams[method](messages, CONTEXT):
                yield await body_of(response, context)

        return handle


async def body_of(response: RpcResponse, context: Any) -> bytes:
    if response.code:
        codes = {code.value[0]: code for code in grpc.StatusCode}
        await context.abort(codes[response.code], response.details)
    return bytes(join_parts(response.message))


@asynccontextmanager
async def serve(services: GatewayServices) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(services),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


async def check(channel: grpc.aio.Channel, service: str) -> int:
    call = channel.unary_unary(f"/{HEALTH_SERVICE}/Check")
    message = await call(CheckRequest(service=service).SerializeToString(), timeout=30)
    return int(CheckResponse.FromString(message).status)


async def test_check_returns_the_readiness_of_the_server_and_its_services() -> None:
    readiness = Switch()
    async with serve(build_services(readiness)) as channel:
        for service in ("", V2, HEALTH_SERVICE, *REFLECTION_SERVICES):
            assert await check(channel, service) == SERVING
        readiness.serves = False
        assert await check(channel, "") == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(channel, "nosuch.Service")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "nosuch.Service" in (caught.value.details() or "")


async def test_list_returns_every_service() -> None:
    async with serve(build_services(Switch())) as channel:
        message = await channel.unary_unary(f"/{HEALTH_SERVICE}/List")(b"", timeout=30)
    statuses = ListResponse.FromString(message).statuses
    assert {name: entry.status for name, entry in statuses.items()} == dict.fromkeys(
        ("", V2, HEALTH_SERVICE, *REFLECTION_SERVICES), SERVING
    )


async def test_watch_sends_the_status_and_each_change_once() -> None:
    readiness = Switch()
    async with serve(build_services(readiness)) as channel:
        call = channel.unary_stream(f"/{HEALTH_SERVICE}/Watch")(b"", timeout=30)
        statuses = (CheckResponse.FromString(message).status async for message in call)
        assert await anext(statuses) == SERVING
        readiness.set_ready(is_ready=True)  # an unchanged status is not sent
        readiness.set_ready(is_ready=False)
        assert await anext(statuses) == NOT_SERVING
        readiness.set_ready(is_ready=True)
        assert await anext(statuses) == SERVING
        call.cancel()


async def test_watch_of_an_unknown_service_stays_open() -> None:
    readiness = Switch()
    async with serve(build_services(readiness)) as channel:
        request = CheckRequest(service="nosuch").SerializeToString()
        call = channel.unary_stream(f"/{HEALTH_SERVICE}/Watch")(request, timeout=30)
        assert CheckResponse.FromString(await call.read()).status == SERVICE_UNKNOWN
        readiness.set_ready(is_ready=False)
        assert not call.done()
        call.cancel()


async def test_draining_is_sent_to_every_watcher_and_ends_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infergate.gateway.readiness.POLL_SECONDS", 3600.0)
    checks = []

    async def check_backends(context: RequestContext) -> bool:
        checks.append(context)
        return True

    readiness = Readiness(check_backends, lambda: 0.0)
    async with serve(build_services(readiness)) as channel, asyncio.timeout(20):
        requests = [CheckRequest(service=name).SerializeToString() for name in ["", V2] * 20]
        watch = channel.unary_stream(f"/{HEALTH_SERVICE}/Watch")
        calls = [watch(message) for message in requests]
        for call in calls:
            assert CheckResponse.FromString(await call.read()).status == SERVING
        unknown = watch(CheckRequest(service="nosuch").SerializeToString())
        assert CheckResponse.FromString(await unknown.read()).status == SERVICE_UNKNOWN
        readiness.start_draining()
        for call in calls:
            assert CheckResponse.FromString(await call.read()).status == NOT_SERVING
        for call in (*calls, unknown):
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        watch_after_drain = watch(b"")
        assert CheckResponse.FromString(await watch_after_drain.read()).status == NOT_SERVING
        assert await watch_after_drain.read() is grpc.aio.EOF
    assert len(checks) == 1


async def test_draining_during_a_status_is_sent_after_it() -> None:
    async def check_backends(context: RequestContext) -> bool:
        return True

    readiness = Readiness(check_backends)
    watch = build_services(readiness).streams[f"/{HEALTH_SERVICE}/Watch"](feed([b""]), CONTEXT)
    statuses = []
    async with asyncio.timeout(20):
        async for response in watch:
            statuses.append(CheckResponse.FromString(bytes(join_parts(response.message))).status)
            readiness.start_draining()
    assert statuses == [SERVING, NOT_SERVING]


@pytest.mark.parametrize(
    "message",
    [b"\x0a\x7f", b"\x7a\x00" * 40_000],  # unknown fields are valid
    ids=["malformed", "too long for a name"],
)
async def test_malformed_and_long_messages_are_invalid_arguments(message: bytes) -> None:
    services = build_services(Switch())
    response = await services.unary[f"/{HEALTH_SERVICE}/Check"](RpcRequest("", (message,)), CONTEXT)
    assert response.code == 3
    for method, handler in services.streams.items():
        responses = [item async for item in handler(feed([message, b""]), CONTEXT)]
        assert [item.code for item in responses] == [3], method


async def test_a_stream_without_a_message_gets_no_response() -> None:
    for handler in build_services(Switch()).streams.values():
        assert [item async for item in handler(feed([]), CONTEXT)] == []


async def feed(items: Iterable[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


# ---- reflection


async def reflect(channel: grpc.aio.Channel, service: str, *queries: dict[str, Any]) -> list[Any]:
    package = service.rpartition(".")[0]
    request = SCHEMA.message_class(f"{package}.ServerReflectionRequest")
    response = SCHEMA.message_class(f"{package}.ServerReflectionResponse")
    call = channel.stream_stream(f"/{service}/ServerReflectionInfo")
    messages = [request(**fields).SerializeToString() for fields in queries]
    responses = [response.FromString(item) async for item in call(iter(messages), timeout=30)]
    assert [answer.original_request for answer in responses] == [
        request.FromString(message) for message in messages
    ]
    return responses


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_a_client_can_build_every_service_from_reflection_alone(service: str) -> None:
    async with serve(build_services(Switch())) as channel:
        (listed,) = await reflect(channel, service, {"list_services": "*", "host": "h"})
        assert listed.valid_host == "h"
        names = [each.name for each in listed.list_services_response.service]
        assert names == sorted((V2, HEALTH_SERVICE, *REFLECTION_SERVICES))
        responses = await reflect(channel, service, *({"file_containing_symbol": n} for n in names))
    for name, response in zip(names, responses, strict=True):
        pool = DescriptorPool()
        for file in response.file_descriptor_response.file_descriptor_proto:
            pool.AddSerializedFile(file)
        assert pool.FindServiceByName(name).methods


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_files_are_found_by_name_and_by_symbol(service: str) -> None:
    queries: list[dict[str, Any]] = [{"file_by_filename": "open_inference.proto"}]
    queries += [
        {"file_containing_symbol": symbol}
        for symbol in (
            "inference.ModelInferRequest.InferInputTensor",
            f"{V2}.ModelInfer",
            "inference.ModelInferRequest.model_name",
        )
    ]
    async with serve(build_services(Switch())) as channel:
        responses = await reflect(channel, service, *queries)
    for response in responses:
        (file,) = response.file_descriptor_response.file_descriptor_proto
        assert descriptor_pb2.FileDescriptorProto.FromString(file).name == "open_inference.proto"


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_a_request_that_fails_leaves_the_stream_open(service: str) -> None:
    async with serve(build_services(Switch())) as channel:
        responses = await reflect(
            channel,
            service,
            {"file_by_filename": "nosuch.proto"},
            {"file_containing_symbol": "no.Such"},
            {"file_containing_extension": {"containing_type": "x.Y", "extension_number": 1}},
            {"all_extension_numbers_of_type": "x.Y"},
            {},
            {"list_services": ""},
        )
    errors = [(a.error_response.error_code, a.error_response.error_message) for a in responses]
    assert [code for code, _ in errors] == [5, 5, 12, 12, 12, 0]
    assert "nosuch.proto" in errors[0][1]
    assert "no.Such" in errors[1][1]
    assert responses[-1].list_services_response.service

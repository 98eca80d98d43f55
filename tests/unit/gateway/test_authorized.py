"""The gateway, its frontends and its services serve only authorized operations."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes import LineCodec, Memory, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.access.rules import RULE_OPERATIONS, AccessRule, AccessRules
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.base import RequestSummary
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    LogSettingsRequest,
    ModelIndex,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelStatistics,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RequestedOutput,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatus,
    ServerStatusRequest,
    SharedMemoryStatusRequest,
    TraceSettingsRequest,
)
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Buffer, Tensor
from infergate.core.wire import RpcRequest, RpcResponse
from infergate.gateway.authorized import AuthorizedGateway, authorized_services
from infergate.gateway.dispatch import RpcDispatch
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.server_control import ControlPermissions
from infergate.gateway.services import GatewayServices
from infergate.routing.table import Route, RouteTable

ALL_OPERATIONS = frozenset(RULE_OPERATIONS.values())


def gateway(backend: Any, *patterns: str) -> AuthorizedGateway:
    routes = [Route(pattern, "b") for pattern in patterns or ("*",)]
    allowed = ControlPermissions(repository=True, settings=True)
    return AuthorizedGateway(
        RoutingGateway(RouteTable(routes), {"b": backend}, {}, GatewayOptions(permissions=allowed))
    )


def context_with(*rules: AccessRule) -> RequestContext:
    return new_context(permit=AccessRules(rules).permit_for("key:a"))


def rule(models: str, *operations: str) -> AccessRule:
    return AccessRule(("*",), (models,), frozenset(operations) or ALL_OPERATIONS)


@pytest.mark.parametrize(
    "operation",
    [
        InferRequest("m"),
        ModelMetadataRequest("m"),
        ModelIndexRequest(),
        ServerMetadataRequest(),
        ModelLoadRequest("m"),
        TraceSettingsRequest(),
        LogSettingsRequest(),
        SharedMemoryStatusRequest(),
        ModelStatisticsRequest("m"),
        ServerStatusRequest(),
    ],
)
async def test_unauthorized_operations_reach_no_backend(operation: Any) -> None:
    memory = Memory("b")
    created = gateway(memory)
    for context in (
        new_context(),
        context_with(rule("other")) if getattr(operation, "model", "") else context_with(),
    ):
        with raises_kind(Kind.FORBIDDEN):
            await created.perform(operation, context)
    assert memory.requests == []


async def test_health_needs_no_permit() -> None:
    created = gateway(Memory("b"))
    for operation in (ServerLiveRequest(), ServerReadyRequest()):
        assert await created.perform(operation, new_context())


async def test_permitted_operations_are_performed() -> None:
    memory = Memory("b")
    assert await gateway(memory).perform(InferRequest("m"), context_with(rule("m", "infer")))
    assert memory.requests == [InferRequest("m")]


async def test_an_inference_is_authorized_after_parsing() -> None:
    """The model name in the summary may differ from that in the message."""
    memory = Memory("b")
    created, context = gateway(memory), context_with(rule("m", "infer"))
    binding = created.bind("secret", "", context)
    with pytest.raises(GatewayError, match="infer is not permitted"):
        await created.infer(InferRequest("secret"), binding, context)
    with pytest.raises(GatewayError, match="infer is not permitted"):
        await anext(created.stream(InferRequest("secret"), binding, context))
    assert memory.requests == []


async def test_lists_leave_out_models_without_permission() -> None:
    created = gateway(BuiltinBackend("b"), "*")
    client = context_with(rule("ident*", "metadata"), rule("simple", "statistics"))
    index = await perform(created, ModelIndexRequest(), ModelIndex, client)
    assert [each.name for each in index.models] == ["identity"]
    status = await perform(created, ServerStatusRequest(), ServerStatus, client)
    assert [each.metadata.name for each in status.models] == ["identity"]
    assert status.models[0].statistics == ()
    statistics = await perform(created, ModelStatisticsRequest(), ModelStatistics, client)
    assert {each["name"] for each in statistics.models} <= {"simple"}
    unrestricted = context_with(rule("*"))
    status = await perform(created, ServerStatusRequest(), ServerStatus, unrestricted)
    assert len(status.models) > 1
    assert any(each.statistics for each in status.models)


async def test_the_status_of_a_model_without_permission_is_rejected() -> None:
    created = gateway(BuiltinBackend("b"))
    with raises_kind(Kind.FORBIDDEN):
        await created.perform(ServerStatusRequest("simple"), context_with(rule("ident*")))


async def test_dependents_are_unloaded_only_with_permission_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "infergate.audit")
    memory = Memory("b")
    created = gateway(memory)
    for_one, for_all = context_with(rule("m", "repository")), context_with(rule("*", "repository"))
    dependents = {"unload_dependents": True}
    with raises_kind(Kind.FORBIDDEN):
        await created.perform(ModelUnloadRequest("m", parameters=dependents), for_one)
    assert "outcome=forbidden" in caplog.text
    assert memory.requests == []
    await created.perform(ModelUnloadRequest("m", parameters={"unload_dependents": False}), for_one)
    await created.perform(ModelUnloadRequest("m", parameters=dependents), for_all)
    assert len(memory.requests) == 2


@pytest.mark.parametrize(
    "request_",
    [
        InferRequest(
            "m", inputs=(Tensor("x", Datatype.INT8, (1,), b"", shared_memory=RegionRef("r", 0, 1)),)
        ),
        InferRequest("m", outputs=(RequestedOutput("y", shared_memory=RegionRef("r", 0, 1)),)),
    ],
)
async def test_tensors_in_shared_memory_need_permission(request_: InferRequest) -> None:
    """Without the check, a client with ``infer`` could read and write another client's region."""
    memory = Memory("b")
    created, context = gateway(memory), context_with(rule("*", "infer"))
    binding = created.bind("m", "", context)
    with pytest.raises(GatewayError, match="shared memory is not permitted"):
        await created.infer(request_, binding, context)
    with pytest.raises(GatewayError, match="shared memory is not permitted"):
        await anext(created.stream(request_, binding, context))
    with pytest.raises(GatewayError) as caught:  # permitted, but the region does not exist
        await created.infer(request_, binding, context_with(rule("*", "infer", "shared_memory")))
    assert caught.value.kind is not Kind.FORBIDDEN


def test_the_label_is_that_of_the_matching_route() -> None:
    table = RouteTable([Route("bert-*", "b"), Route("m", "b")])
    created = RoutingGateway(table, {"b": Memory("b")}, {})
    assert [created.route_label(each, "", {}) for each in ("bert-1", "m", "x")] == [
        "bert-*",
        "m",
        "",
    ]


def test_a_route_with_headers_matches_requests_that_have_them() -> None:
    """If ``route_label`` ignored headers, requests would be counted under another route."""
    canary = Route("m", "b", version="2", headers={"x-team": "a*"})
    created = RoutingGateway(RouteTable([canary, Route("m", "b")]), {"b": Memory("b")}, {})
    assert created.route_label("m", "2", {"x-team": "ab"}) == canary.label
    assert created.route_label("m", "2", {}) == "m"


# ---- frontends and gateway services with an authorizer


class FakeAuthorizer:
    def __init__(self, error: GatewayError | None = None, *, forwards: bool = True) -> None:
        self.error = error
        self.forwards = forwards
        self.requests: list[RequestSummary] = []

    async def authenticate(self, context: RequestContext) -> None:
        raise AssertionError

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        self.requests.append(summary)
        if self.error is not None:
            raise self.error
        context.permit = AccessRules([rule("*")]).permit_for("key:a")
        return RequestSummary(
            summary.operation,
            summary.model,
            summary.version,
            self.forwards and summary.can_pass_through,
        )


FORBIDDEN = GatewayError(Kind.FORBIDDEN, "no")


async def test_a_frontend_authorizes_before_parsing() -> None:
    memory, codec, gate = Memory("b"), LineCodec(), FakeAuthorizer(FORBIDDEN)
    frontend = Frontend(codec, gateway(memory), DEFAULT_LIMITS, authorizer=gate)
    for line in ("infer m 1 x", "ready m", "infer m 1 bad"):
        response = await frontend.respond(RpcRequest(line), request_context := new_context())
        assert response.details == "forbidden: no"
        assert request_context.record.outcome == "forbidden"
    with pytest.raises(GatewayError, match="no"):
        await frontend.parse_stream_request(RpcRequest("infer m 1 x"), new_context())
    assert codec.decoded == 0
    assert memory.requests == []
    assert [each.model for each in gate.requests] == ["m"] * 4


async def test_a_frontend_serves_permitted_requests() -> None:
    for forwards in (True, False):
        codec = LineCodec()
        frontend = Frontend(
            codec,
            gateway(Memory("b")),
            DEFAULT_LIMITS,
            authorizer=FakeAuthorizer(forwards=forwards),
        )
        response = await frontend.respond(RpcRequest("infer m 1 x"), new_context())
        assert not response.code


async def _serve(wire: RpcRequest, request_context: RequestContext) -> RpcResponse:
    return RpcResponse((b"served",))


async def _stream(messages: Any, request_context: RequestContext) -> Any:
    yield RpcResponse((b"streamed",))


HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def services(gate: FakeAuthorizer) -> GatewayServices:
    own = GatewayServices(
        {f"{HEALTH}Check": _serve}, {f"{HEALTH}Watch": _stream, REFLECTION: _stream}
    )
    return authorized_services(own, gate, lambda error: RpcResponse(code=7, details=error.public))


async def test_own_services_are_authorized_as_health_and_metadata() -> None:
    gate = FakeAuthorizer()
    authorized = services(gate)
    response = await authorized.unary[f"{HEALTH}Check"](RpcRequest(f"{HEALTH}Check"), new_context())
    assert response.message == (b"served",)
    for method in authorized.streams:
        received: list[RpcResponse] = [
            each async for each in authorized.streams[method](None, new_context())
        ]  # type: ignore[arg-type]
        assert [each.message for each in received] == [(b"streamed",)]
    operations = [each.operation for each in gate.requests]
    assert operations == [ServerReadyRequest, ServerReadyRequest, ServerMetadataRequest]


async def test_own_services_reject_with_grpc_codes() -> None:
    authorized = services(FakeAuthorizer(FORBIDDEN))
    outcomes: list[str] = []
    frontends = {"": Frontend(LineCodec(), gateway(Memory("b")), DEFAULT_LIMITS)}
    dispatch = RpcDispatch(
        frontends,
        authorized.unary,
        authorized.streams,
        lambda context: outcomes.append(context.record.outcome),
    )
    response = await dispatch.respond(RpcRequest(f"{HEALTH}Check"), new_context())
    assert (response.code, response.details) == (7, "no")
    assert outcomes == ["forbidden"]
    with pytest.raises(GatewayError):
        [each async for each in authorized.streams[REFLECTION](None, new_context())]  # type: ignore[arg-type]


async def test_each_message_to_reflection_is_authorized() -> None:
    """A token may expire, or a key be revoked, after the stream was opened."""

    async def echo(
        messages: AsyncIterator[Buffer], context: RequestContext
    ) -> AsyncIterator[RpcResponse]:
        async for message in messages:
            yield RpcResponse((message,))

    async def messages() -> AsyncIterator[Buffer]:
        yield b"1"
        yield b"2"
        gate.error = FORBIDDEN
        yield b"3"

    gate = FakeAuthorizer()
    authorized = authorized_services(
        GatewayServices({}, {REFLECTION: echo}), gate, LineCodec().build_error
    )
    responses = aiter(authorized.streams[REFLECTION](messages(), new_context()))
    assert [(await anext(responses)).message for _ in range(2)] == [(b"1",), (b"2",)]
    with pytest.raises(GatewayError) as caught:
        await anext(responses)
    assert caught.value is FORBIDDEN
    assert [each.operation for each in gate.requests] == [ServerMetadataRequest] * 3

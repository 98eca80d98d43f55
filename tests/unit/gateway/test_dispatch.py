"""The choice of a frontend or gateway service for a request, and the record of the request."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from contexts import new_context
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.gateway.dispatch import HttpDispatch, RpcDispatch


class NamedFrontend:
    """A frontend whose response is its name."""

    codec = SimpleNamespace(
        streaming_methods=frozenset({"/a.S/Stream"}), build_response=None, build_error=None
    )

    def __init__(self, name: str, response: Any) -> None:
        self.name = name
        self.response = response
        self.raises: BaseException | None = None

    async def respond(self, wire: Any, context: RequestContext, deferred: object = None) -> Any:
        if self.raises:
            raise self.raises
        context.record.protocol = self.name
        context.response_headers = {"x-load": "1"}
        return self.response()

    def refuse(self, error: GatewayError, wire: Any, context: RequestContext) -> Any:
        context.record.protocol = self.name
        context.record.record_error(error)
        return self.response()


def http() -> tuple[HttpDispatch, list[RequestContext], dict[str, Any]]:
    contexts: list[RequestContext] = []
    frontends: dict[str, Any] = {
        name: NamedFrontend(name, lambda: HttpResponse(200, {"a": "b"}, [b"12", b"345"]))
        for name in ("v2", "api")
    }
    return HttpDispatch(frontends, contexts.append), contexts, frontends


@pytest.mark.parametrize(
    ("path", "protocol"),
    [("/v2", "v2"), ("/v2/models", "v2"), ("/api/status", "api"), ("/", "v2"), ("/v22", "v2")],
)
async def test_the_first_path_segment_selects_the_frontend(path: str, protocol: str) -> None:
    dispatch, contexts, _ = http()
    response = await dispatch.respond(HttpRequest("GET", path), new_context())
    assert contexts[0].record.protocol == protocol
    assert contexts[0].record.bytes_out == 5
    assert response.headers == {"a": "b", "x-load": "1"}


async def test_a_whole_path_selects_the_frontend_before_its_first_segment() -> None:
    contexts: list[RequestContext] = []
    frontends: dict[str, Any] = {
        name: NamedFrontend(name, lambda: HttpResponse(200)) for name in ("v2", "/ping", "/v2/x")
    }
    dispatch = HttpDispatch(frontends, contexts.append)
    for path in ("/ping", "/v2/x", "/v2/y", "/ping/", "ping"):
        await dispatch.respond(HttpRequest("GET", path), new_context())
    protocols = [context.record.protocol for context in contexts]
    assert protocols == ["/ping", "/v2/x", "v2", "v2", "v2"]


async def test_a_request_id_is_accepted_or_generated_and_forwarded() -> None:
    dispatch, contexts, _ = http()
    for client_id in ("mine", None, "a\nb", "x" * 500):
        headers = {} if client_id is None else {"x-request-id": client_id}
        await dispatch.respond(HttpRequest("GET", "/v2"), new_context(headers=headers))
    ids = [context.request_id for context in contexts]
    assert ids[0] == "mine"
    assert len(set(ids)) == 4
    assert all(each.headers["x-request-id"] == each.request_id for each in contexts)
    assert "\n" not in "".join(ids)
    assert max(map(len, ids)) <= 128


async def test_a_disconnected_client_is_recorded() -> None:
    dispatch, contexts, frontends = http()
    frontends["v2"].raises = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await dispatch.respond(HttpRequest("GET", "/v2"), new_context())
    assert contexts[0].record.outcome == "cancelled"


def test_a_refusal_is_recorded() -> None:
    dispatch, contexts, _ = http()
    dispatch.refuse(
        GatewayError(Kind.TOO_LARGE, "too large"), HttpRequest("POST", "/api"), new_context()
    )
    assert (contexts[0].record.protocol, contexts[0].record.outcome) == ("api", "too_large")


def rpc(result: RpcResponse | BaseException) -> tuple[RpcDispatch, list[RequestContext]]:
    """Return a dispatcher whose health check returns or raises ``result``, and its records."""
    contexts: list[RequestContext] = []

    async def check(wire: RpcRequest, context: RequestContext) -> RpcResponse:
        if isinstance(result, BaseException):
            raise result
        return result

    frontends: dict[str, Any] = {"a.S": NamedFrontend("a", lambda: RpcResponse([b"123"]))}
    return RpcDispatch(frontends, {"/h.Health/Check": check}, {}, contexts.append), contexts


@pytest.mark.parametrize(("code", "outcome"), [(5, "not_found"), (3, "bad_request")])
async def test_rejections_by_own_services_are_recorded(code: int, outcome: str) -> None:
    dispatch, contexts = rpc(RpcResponse(code=code, details="no"))
    assert list(dispatch.request_streams) == ["/a.S/Stream"]
    await dispatch.respond(RpcRequest("/h.Health/Check"), new_context())
    assert [context.record.outcome for context in contexts] == [outcome]


async def test_a_cancelled_health_check_is_recorded() -> None:
    dispatch, contexts = rpc(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await dispatch.respond(RpcRequest("/h.Health/Check"), new_context())
    assert [context.record.outcome for context in contexts] == ["cancelled"]


async def test_an_rpc_method_selects_a_gateway_service_or_a_frontend() -> None:
    dispatch, contexts = rpc(RpcResponse([b"healthy"]))
    response = await dispatch.respond(RpcRequest("/h.Health/Check"), new_context())
    assert response.message == [b"healthy"]
    record = contexts.pop().record
    assert (record.protocol, record.operation, record.outcome) == ("grpc", "h.Health/Check", "ok")
    response = await dispatch.respond(RpcRequest("/a.S/M"), new_context())
    assert response.metadata == {"x-load": "1"}
    assert (contexts[0].record.protocol, contexts[0].record.bytes_out) == ("a", 3)
    dispatch.refuse(GatewayError(Kind.OVERLOADED, "full"), RpcRequest("/other/M"), new_context())
    assert contexts[1].record.outcome == "overloaded"


def test_without_relays_no_request_is_relayed_or_gets_an_id() -> None:
    """The task that serves the request assigns the id."""
    contexts: list[RequestContext] = []
    frontends: dict[str, Any] = {"a.S": NamedFrontend("a", lambda: RpcResponse([b""]))}
    rpc_dispatch = RpcDispatch(frontends, {}, {}, contexts.append, contexts.append, relays=False)
    http_frontends: dict[str, Any] = {"v2": NamedFrontend("v2", lambda: HttpResponse(200))}
    http_dispatch = HttpDispatch(http_frontends, contexts.append, contexts.append, relays=False)
    callbacks: Any = None
    assert rpc_dispatch.relay(RpcRequest("/a.S/M"), new_context(), callbacks) is None
    assert http_dispatch.relay(HttpRequest("POST", "/v2"), new_context(), callbacks) is None
    assert contexts == []

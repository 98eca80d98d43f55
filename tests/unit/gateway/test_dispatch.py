from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import call

from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.gateway.dispatch import HttpDispatch, RpcDispatch


class Named:
    """A frontend that answers its name."""

    codec = SimpleNamespace(streaming_methods=frozenset({"/a.S/Turns"}))

    def __init__(self, name: str, answer: Any) -> None:
        self.name = name
        self.answer = answer
        self.raises: BaseException | None = None

    async def respond(self, wire: Any, context: RequestContext, deferred: object = None) -> Any:
        if self.raises:
            raise self.raises
        context.protocol = self.name
        context.response_headers = {"x-load": "1"}
        return self.answer()

    def refuse(self, error: GatewayError, wire: Any, context: RequestContext) -> Any:
        context.protocol = self.name
        context.record_error(error)
        return self.answer()


def http() -> tuple[HttpDispatch, list[RequestContext], dict[str, Any]]:
    records: list[RequestContext] = []
    frontends: dict[str, Any] = {
        name: Named(name, lambda: HttpResponse(200, {"a": "b"}, [b"12", b"345"]))
        for name in ("v2", "api")
    }
    return HttpDispatch(frontends, records.append), records, frontends


@pytest.mark.parametrize(
    ("path", "protocol"),
    [("/v2", "v2"), ("/v2/models", "v2"), ("/api/status", "api"), ("/", "v2"), ("/v22", "v2")],
)
async def test_the_first_segment_decides(path: str, protocol: str) -> None:
    dispatch, records, _ = http()
    answer = await dispatch.respond(HttpRequest("GET", path), call())
    assert records[0].protocol == protocol
    assert records[0].bytes_out == 5
    assert answer.headers == {"a": "b", "x-load": "1"}


async def test_a_request_id_is_taken_or_given_and_travels() -> None:
    dispatch, records, _ = http()
    await dispatch.respond(HttpRequest("GET", "/v2"), call(headers={"x-request-id": "mine"}))
    await dispatch.respond(HttpRequest("GET", "/v2"), call())
    await dispatch.respond(HttpRequest("GET", "/v2"), call(headers={"x-request-id": "a\nb"}))
    await dispatch.respond(HttpRequest("GET", "/v2"), call(headers={"x-request-id": "x" * 500}))
    ids = [record.request_id for record in records]
    assert ids[0] == "mine"
    assert len(set(ids)) == 4
    assert all(record.headers["x-request-id"] == record.request_id for record in records)
    assert "\n" not in "".join(ids)
    assert max(map(len, ids)) <= 128


async def test_a_client_that_left_is_recorded() -> None:
    dispatch, records, frontends = http()
    frontends["v2"].raises = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await dispatch.respond(HttpRequest("GET", "/v2"), call())
    assert records[0].outcome == "cancelled"


def test_a_refusal_is_recorded() -> None:
    dispatch, records, _ = http()
    dispatch.refuse(GatewayError(Kind.TOO_LARGE, "too large"), HttpRequest("POST", "/api"), call())
    assert (records[0].protocol, records[0].outcome) == ("api", "too_large")


@pytest.mark.parametrize(("code", "outcome"), [(5, "not_found"), (3, "bad_request")])
async def test_refusals_of_own_services_are_recorded(code: int, outcome: str) -> None:
    records: list[RequestContext] = []

    async def check(wire: RpcRequest, context: RequestContext) -> RpcResponse:
        return RpcResponse(code=code, details="no")

    frontends: dict[str, Any] = {"a.S": Named("a", lambda: RpcResponse([b""]))}
    dispatch = RpcDispatch(frontends, {"/h.Health/Check": check}, {}, records.append)
    assert list(dispatch.request_streams) == ["/a.S/Turns"]
    await dispatch.respond(RpcRequest("/h.Health/Check"), call())
    assert [record.outcome for record in records] == [outcome]


async def test_a_check_that_is_cancelled_is_recorded() -> None:
    records: list[RequestContext] = []

    async def check(wire: RpcRequest, context: RequestContext) -> RpcResponse:
        raise asyncio.CancelledError

    frontends: dict[str, Any] = {"a.S": Named("a", lambda: RpcResponse([b""]))}
    dispatch = RpcDispatch(frontends, {"/h.Health/Check": check}, {}, records.append)
    with pytest.raises(asyncio.CancelledError):
        await dispatch.respond(RpcRequest("/h.Health/Check"), call())
    assert [record.outcome for record in records] == ["cancelled"]


async def test_rpc_services_of_the_gateway_come_first() -> None:
    records: list[RequestContext] = []

    async def check(wire: RpcRequest, context: RequestContext) -> RpcResponse:
        return RpcResponse([b"healthy"])

    frontends: dict[str, Any] = {"a.S": Named("a", lambda: RpcResponse([b"123"]))}
    dispatch = RpcDispatch(frontends, {"/h.Health/Check": check}, {}, records.append)
    assert (await dispatch.respond(RpcRequest("/h.Health/Check"), call())).message == [b"healthy"]
    record = records.pop()
    assert (record.protocol, record.operation, record.outcome) == ("grpc", "h.Health/Check", "ok")
    answer = await dispatch.respond(RpcRequest("/a.S/M"), call())
    assert answer.metadata == {"x-load": "1"}
    assert (records[0].protocol, records[0].bytes_out) == ("a", 3)
    dispatch.refuse(GatewayError(Kind.OVERLOADED, "full"), RpcRequest("/other/M"), call())
    assert records[1].outcome == "overloaded"

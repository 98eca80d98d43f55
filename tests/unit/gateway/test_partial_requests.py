"""Partial requests, completed with the model's metadata: raw binary requests of V2 REST."""

import json

from fakes import Memory

from contexts import new_context
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest, HttpResponse, join_parts
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route, RouteTable


class Replaced(Memory):
    """A backend whose model was replaced, so that the cached metadata is old."""

    newer: ModelMetadata | GatewayError

    async def describe(self, *arguments: object, refresh: bool = False) -> ModelMetadata:  # type: ignore[override]
        old = self.description
        self.description = self.newer if refresh else old
        try:
            return await super().describe(*arguments, refresh=refresh)  # type: ignore[arg-type]
        finally:
            self.description = old


def model(*shape: int) -> ModelMetadata:
    return ModelMetadata("real", inputs=(TensorMetadata("data", "INT8", shape),))


async def send_request(backend: Memory, data: bytes = b"\x01\x02") -> HttpResponse:
    route = Route("m", "b", rewrite=Rewrite("real", inputs={"X": "data"}))
    gateway = RoutingGateway(RouteTable([route]), {"b": backend}, {})
    frontend = Frontend(plugins()["v2-rest"].create({}), gateway, DEFAULT_LIMITS)
    headers = {"inference-header-content-length": "0"}
    wire = HttpRequest("POST", "/v2/models/m/infer", "", headers, [data])
    response: HttpResponse = await frontend.respond(wire, new_context())
    return response


def replaced(old: ModelMetadata, new: ModelMetadata | GatewayError) -> Replaced:
    backend = Replaced("b")
    backend.description, backend.newer = old, new
    return backend


def rejection_of(response: HttpResponse) -> tuple[int, str]:
    return response.status, json.loads(join_parts(response.body))["error"]


async def test_metadata_completes_the_request() -> None:
    backend = Memory("b")
    backend.description = model(-1)
    response = await send_request(backend)
    assert response.status == 200
    tensor = Tensor("data", Datatype.INT8, (2,), b"\x01\x02")
    assert backend.requests == [InferRequest("real", inputs=(tensor,))]
    assert backend.described == [("real", "", False)]


async def test_a_request_that_contradicts_old_metadata_may_fit_newer_metadata() -> None:
    backend = replaced(model(3), model(2))
    assert (await send_request(backend)).status == 200
    assert [newer for *_, newer in backend.described] == [False, True]


async def test_a_request_that_contradicts_old_and_newer_metadata_gets_the_newer_error() -> None:
    status, error = rejection_of(await send_request(replaced(model(3), model(4))))
    assert status == 400
    assert "'X': the 2 bytes" in error
    assert "[4]" in error
    backend = replaced(model(3), model(3))
    status, error = rejection_of(await send_request(backend))
    assert status == 400
    assert "[3]" in error
    assert not backend.requests


async def test_unavailable_metadata_is_reported() -> None:
    backend = Memory("b")
    backend.description = GatewayError(Kind.NOT_FOUND, "no metadata")
    assert rejection_of(await send_request(backend)) == (404, "no metadata")
    status, error = rejection_of(
        await send_request(replaced(model(3), GatewayError(Kind.CONNECT, "down")))
    )
    assert (status, error) == (502, "down")

"""A route's plan has the steps that the route needs and no others, and is made on first use."""

from dataclasses import replace
from typing import Any

import pytest
from fakes import LineCodec, Memory, WireBackend

from contexts import new_context
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import RPC_MESSAGES, RemoteBackend
from infergate.codecs.trtis import GRPC
from infergate.codecs.v2_grpc.codec import V2Grpc
from infergate.core.datatypes import Datatype
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import ModelMetadata
from infergate.core.wire import RpcRequest
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.route_binding import RouteBinding
from infergate.gateway.route_plan import RoutePlan
from infergate.gateway.shared_memory import SharedMemory
from infergate.routing.table import Rewrite, Route, RouteTable
from infergate.transport.base import Endpoint
from infergate.transport.grpc.client import H2Upstream

PLAIN = Route("m", "b")


class LimitedBackend(Memory):
    """A backend whose protocol supports neither sequences nor BF16."""

    supports_sequences = False
    datatypes = frozenset(Datatype) - {Datatype.BF16}


def remote(codec: Any) -> RemoteBackend[Any, Any]:
    settings = BackendSettings("b", [Endpoint("server", 8000)])
    upstream = H2Upstream(DEFAULT_LIMITS)
    return RemoteBackend(settings, codec, upstream, RPC_MESSAGES, DEFAULT_LIMITS)


def steps(route: Route, backend: Any, declared: str = "") -> list[str]:
    async def describe(*_: Any) -> ModelMetadata:
        raise AssertionError

    plan = RoutePlan(
        RouteBinding(route, backend),
        {declared: ModelMetadata(declared)} if declared else {},
        SharedMemory(DEFAULT_LIMITS, enabled=False),
        describe,
    )
    return [step.__name__ for step in plan._request_steps]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("route", "backend", "declared", "expected"),
    [
        (PLAIN, Memory("b"), "", []),
        (PLAIN, Memory("b"), "other", []),
        (PLAIN, Memory("b"), "m", ["_declare"]),
        (replace(PLAIN, pattern="*"), Memory("b"), "other", ["_declare"]),
        (PLAIN, remote(V2Grpc()), "m", []),
        (PLAIN, remote(GRPC.create({})), "m", ["_declare", "_cast"]),
        (PLAIN, LimitedBackend("b"), "", ["_refuse_sequence", "_cast"]),
        (replace(PLAIN, cast={Datatype.BF16: Datatype.FP32}), Memory("b"), "", ["_cast_back"]),
        (replace(PLAIN, rewrite=Rewrite(version="2")), Memory("b"), "", ["_rename"]),
    ],
)
def test_a_plan_has_only_the_required_steps(
    route: Route, backend: Any, declared: str, expected: list[str]
) -> None:
    assert steps(route, backend, declared) == expected


async def test_pipelines_and_plans_are_made_on_first_use_and_kept() -> None:
    codec = LineCodec()
    backends = {"b": WireBackend("b", codec), "other": Memory("other")}
    gateway = RoutingGateway(
        RouteTable([PLAIN, Route("n", "other"), Route("o", "b")]), backends, {}
    )
    frontend: Frontend[Any, Any] = Frontend(codec, gateway, DEFAULT_LIMITS)
    assert not frontend.pipelines
    assert not gateway._plans
    for _ in range(2):
        for model in ("m", "n"):
            await frontend.respond(RpcRequest(f"infer {model} 1 id"), new_context())
    assert [binding.route.pattern for binding in frontend.pipelines] == ["m", "n"]
    assert [binding.route.pattern for binding in gateway._plans] == ["n"]

"""The gateway's own statistics, and the combined statistics of several servers."""

from typing import Any

import pytest
from fakes import Memory, build_gateway, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.profiles import TRITON
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import (
    ModelIndex,
    ModelIndexEntry,
    ModelIndexRequest,
    ModelMetadata,
    ModelStatistics,
    ModelStatisticsRequest,
    Operation,
)
from infergate.core.request_record import RequestRecord
from infergate.gateway.statistics import MAX_MODELS, GatewayStatistics, merge_statistics
from infergate.routing.table import Rewrite, Route
from request_records import make_record


def counts(statistics: GatewayStatistics, model: str) -> dict[str, Any]:
    (model_statistics,) = statistics.statistics_of(model, "").models
    return dict(model_statistics)


def record(statistics: GatewayStatistics, model: str, outcome: str = "ok", **fields: Any) -> None:
    record = make_record(model=model, route="*", operation="infer", outcome=outcome, **fields)
    statistics.record(record, 0.25, 1_000.5)


def test_successes_and_failures_are_counted_apart() -> None:
    gateway_statistics = GatewayStatistics(["m"])
    assert counts(gateway_statistics, "m")["inference_stats"]["success"] == {"count": 0, "ns": 0}
    record(gateway_statistics, "m", backend_seconds=0.125)
    record(gateway_statistics, "m", backend_seconds=0.125)
    record(gateway_statistics, "m", "timeout")
    statistics = counts(gateway_statistics, "m")
    assert statistics == {
        "name": "m",
        "version": "",
        "last_inference": 1_000_500,
        "inference_count": 2,
        "execution_count": 2,
        "inference_stats": {
            "success": {"count": 2, "ns": 500_000_000},
            "fail": {"count": 1, "ns": 250_000_000},
            "queue": {"count": 2, "ns": 0},
            "compute_input": {"count": 2, "ns": 0},
            "compute_infer": {"count": 2, "ns": 250_000_000},
            "compute_output": {"count": 2, "ns": 0},
        },
    }


def test_only_inferences_on_routes_are_counted() -> None:
    statistics = GatewayStatistics(["m"])
    statistics.record(RequestRecord(model="m", route="*", operation="model_ready"), 1, 1)
    statistics.record(RequestRecord(model="m", operation="infer"), 1, 1)
    assert counts(statistics, "m")["inference_count"] == 0


def test_an_unlisted_name_is_counted_from_its_first_success() -> None:
    statistics = GatewayStatistics(["named"])
    for model in ("named", "invented"):
        record(statistics, model, "not_found")
    assert counts(statistics, "named")["inference_stats"]["fail"]["count"] == 1
    assert counts(statistics, "invented")["inference_stats"]["fail"]["count"] == 0
    record(statistics, "invented")
    record(statistics, "invented", "backend_error")
    assert counts(statistics, "invented")["inference_stats"]["fail"]["count"] == 1


def test_the_least_recently_used_model_is_evicted_first() -> None:
    statistics = GatewayStatistics([])
    for number in range(MAX_MODELS):
        record(statistics, str(number))
    record(statistics, "0")
    record(statistics, "one more")
    assert [counts(statistics, name)["inference_count"] for name in ("0", "1", "2")] == [2, 0, 1]


def test_statistics_of_several_servers_are_added_up() -> None:
    def stats_with(count: int, last: int, batches: list[Any], **fields: Any) -> ModelStatistics:
        stats = {"success": {"count": count, "ns": 10 * count}}
        return ModelStatistics(
            (
                {
                    "name": "m",
                    "version": "1",
                    "last_inference": last,
                    "inference_count": count,
                    "inference_stats": stats,
                    "batch_stats": batches,
                    "memory_usage": [{"type": "CPU"}],
                    **fields,
                },
                {"name": f"only-{count}", "version": "1"},
            )
        )

    one = stats_with(1, 50, [{"batch_size": 1, "compute_infer": {"count": 1, "ns": 5}}, "odd"])
    two = stats_with(
        2,
        40,
        [
            {"batch_size": 1, "compute_infer": {"count": 3, "ns": 6}},
            {"batch_size": 8, "compute_infer": {"count": 1, "ns": 9}},
        ],
        response_stats={"0": {}},
    )
    merged, *others = merge_statistics([one, two]).models
    assert merged == {
        "name": "m",
        "version": "1",
        "last_inference": 50,
        "inference_count": 3,
        "inference_stats": {"success": {"count": 3, "ns": 30}},
        "batch_stats": [
            {"batch_size": 1, "compute_infer": {"count": 4, "ns": 11}},
            {"batch_size": 8, "compute_infer": {"count": 1, "ns": 9}},
        ],
        "memory_usage": [{"type": "CPU"}, {"type": "CPU"}],
        "response_stats": {"0": {}},
    }
    assert others == [{"name": "only-1", "version": "1"}, {"name": "only-2", "version": "1"}]


async def test_a_servers_statistics_have_the_clients_names() -> None:
    memory = Memory("b", ModelStatistics(({"name": "real", "version": "1", "inference_count": 2},)))
    memory.profile_of_all = TRITON
    memory.servers = 2
    route = Route("m", "b", version="7", rewrite=Rewrite("real", "1"))
    gateway = build_gateway(route, backends=[memory])
    statistics = await gateway.perform(ModelStatisticsRequest("m", "7"), new_context())
    assert statistics == ModelStatistics(({"name": "m", "version": "7", "inference_count": 4},))
    assert memory.requests == [ModelStatisticsRequest("real", "1")] * 2
    with pytest.raises(GatewayError):
        await gateway.perform(ModelStatisticsRequest("n"), new_context())


async def test_models_of_other_servers_have_the_gateways_statistics() -> None:
    memory = Memory("b")
    gateway = build_gateway(Route("m", "b"), backends=[memory])
    record(gateway.own_statistics, "m")
    statistics = await perform(gateway, ModelStatisticsRequest("m", "3"), ModelStatistics)
    assert [(each["version"], each["inference_count"]) for each in statistics.models] == [("3", 1)]
    assert not memory.requests


@pytest.mark.parametrize(
    ("versions", "expected"),
    [(("7",), "7"), ((), "1"), (("9", "10", "b"), "10"), (("v2",), "1")],
)
async def test_the_gateways_statistics_have_a_numeric_version(
    versions: tuple[str, ...], expected: str
) -> None:
    memory = Memory("b")
    memory.description = ModelMetadata("m", versions)
    gateway = build_gateway(Route("m", "b"), backends=[memory])
    statistics = await perform(gateway, ModelStatisticsRequest("m"), ModelStatistics)
    assert [each["version"] for each in statistics.models] == [expected]


@pytest.mark.parametrize("requested", [("nope", ""), ("simple", "abc"), ("simple", "2")])
async def test_unknown_models_have_no_statistics(requested: tuple[str, str]) -> None:
    gateway = build_gateway(Route("*", "b"), backends=[BuiltinBackend("b")])
    with raises_kind(Kind.NOT_FOUND):
        await gateway.perform(ModelStatisticsRequest(*requested), new_context())


async def test_models_of_an_unreachable_server_have_the_gateways_statistics() -> None:
    memory = Memory("b")
    memory.description = GatewayError(Kind.CONNECT, "down")
    gateway = build_gateway(Route("m", "b"), backends=[memory])
    record(gateway.own_statistics, "m")
    statistics = await perform(gateway, ModelStatisticsRequest("m"), ModelStatistics)
    assert [(each["version"], each["inference_count"]) for each in statistics.models] == [("1", 1)]


async def test_statistics_of_all_models_cover_the_reachable_index() -> None:
    class Counting(Memory):
        async def perform(self, operation: Operation, context: Any) -> Any:
            if isinstance(operation, ModelIndexRequest):
                return ModelIndex((ModelIndexEntry("x", "1"), ModelIndexEntry("broken", "1")))
            assert isinstance(operation, ModelStatisticsRequest)
            if operation.model == "broken":
                raise GatewayError(Kind.BACKEND_ERROR, "broken")
            return ModelStatistics(({"name": operation.model, "version": operation.version},))

    server, other = Counting("b"), Memory("c")
    server.profile_of_all = TRITON
    gateway = build_gateway(
        Route("m", "c"), Route("n", "b", version="2"), Route("*", "b"), backends=[server, other]
    )
    statistics = await perform(gateway, ModelStatisticsRequest(), ModelStatistics)
    assert [(each["name"], each["version"]) for each in statistics.models] == [
        ("m", "1"),
        ("n", ""),
        ("x", ""),
    ]
    pinned = build_gateway(Route("n", "b", version="2"), backends=[server])
    statistics = await perform(pinned, ModelStatisticsRequest(), ModelStatistics)
    assert statistics == ModelStatistics(({"name": "n", "version": "2"},))

"""Server statuses, versions of models and the index, with slow and broken backends."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from fakes import Memory, build_gateway, perform

import infergate
from contexts import new_context
from gateway_errors import raises_kind
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.messages import ModelIndexEntry, ModelIndexRequest, ModelMetadata, Operation
from infergate.core.request_context import RequestContext
from infergate.core.request_record import RequestRecord
from infergate.gateway import model_catalogue
from infergate.gateway.gateway import RoutingGateway
from infergate.routing.table import Rewrite, Route


class Repository(Memory):
    """A backend with the models of ``listed``; versions in ``unready`` are not ready."""

    def __init__(self, name: str = "b", *listed: str, unready: Any = ()) -> None:
        super().__init__(name)
        self.listed = listed
        self.unready = set(unready)
        self.versions: dict[str, tuple[str, ...]] = {}
        self.concurrent = self.max_concurrent = 0

    async def perform(self, operation: Operation, context: RequestContext) -> messages.Response:
        self.requests.append(operation)
        match operation:
            case ModelIndexRequest():
                return messages.ModelIndex(
                    tuple(ModelIndexEntry(name, "1") for name in self.listed)
                )
            case messages.ModelReadyRequest(model, version):
                return messages.HealthStatus(ok=(model, version) not in self.unready)
            case _:
                return messages.HealthStatus(ok=True)

    async def describe(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        self.described.append((model, version, refresh))
        self.concurrent += 1
        self.max_concurrent = max(self.concurrent, self.max_concurrent)
        await asyncio.sleep(0)
        self.concurrent -= 1
        return ModelMetadata(model, self.versions.get(model, ("1",)))


async def status(
    tested_gateway: RoutingGateway, model: str = "", **fields: Any
) -> messages.ServerStatus:
    query = messages.ServerStatusRequest(model)
    return await perform(tested_gateway, query, messages.ServerStatus, new_context(**fields))


def states(result: messages.ModelStatus) -> dict[str, str]:
    return {entry.version: entry.state for entry in result.versions}


async def test_the_status_of_a_model_lists_its_versions() -> None:
    repository = Repository(unready={("m", "3")})
    repository.versions["m"] = ("1", "3")
    result = await status(build_gateway(Route("*", "b"), backends=[repository]), "m")
    assert (result.name, result.version) == ("infergate", infergate.__version__)
    assert result.ready
    (model,) = result.models
    assert model.metadata == ModelMetadata("m", ("1", "3"))
    assert model.versions == (
        ModelIndexEntry("m", "1", "READY"),
        ModelIndexEntry("m", "3", "UNAVAILABLE"),
    )


async def versions(
    gateway: RoutingGateway, model: str, version: str = "", **fields: Any
) -> list[Any]:
    operation = ModelIndexRequest(model=model, version=version)
    index = await perform(gateway, operation, messages.ModelIndex, new_context(**fields))
    assert {entry.name for entry in index.models} <= {model}
    return [(entry.version, entry.state, entry.reason) for entry in index.models]


class ListingBackend(Repository):
    """A backend that lists ``entries``. Operations whose type is in ``errors`` fail."""

    def __init__(self, name: str = "b", *entries: ModelIndexEntry) -> None:
        super().__init__(name)
        self.entries = entries
        self.errors: dict[type, GatewayError] = {}

    async def perform(self, operation: Operation, context: RequestContext) -> messages.Response:
        if error := self.errors.get(type(operation)):
            self.requests.append(operation)
            raise error
        if isinstance(operation, ModelIndexRequest):
            self.requests.append(operation)
            return messages.ModelIndex(self.entries)
        return await super().perform(operation, context)

    async def describe(
        self, model: str, version: str, context: RequestContext, *, refresh: bool = False
    ) -> ModelMetadata:
        if error := self.errors.get(messages.ModelMetadataRequest):
            raise error
        return await super().describe(model, version, context, refresh=refresh)


LOADING = ModelIndexEntry("real", "5", "LOADING", "soon")
LISTED = (ModelIndexEntry("real", "4", "READY"), LOADING, ModelIndexEntry("other", "6", "READY"))


async def test_versions_have_the_states_that_the_server_lists() -> None:
    server = ListingBackend("b", *LISTED)
    gateway = build_gateway(Route("m", "b", "", Rewrite("real")), backends=[server])
    assert await versions(gateway, "m") == [("4", "READY", ""), ("5", "LOADING", "soon")]
    assert await versions(gateway, "m", "5") == [("5", "LOADING", "soon")]
    assert server.requests == [
        ModelIndexRequest(model="real"),
        ModelIndexRequest(model="real", version="5"),
    ]
    assert server.described == []


async def test_an_index_combines_the_versions_of_several_routes() -> None:
    first = ListingBackend("a", *LISTED)
    second = ListingBackend("b", ModelIndexEntry("real", "9", "READY"))
    first.unready = {("real", "7")}
    gateway = build_gateway(
        Route("m", "b", "4", Rewrite("real", "9")),
        Route("m", "a", "7", Rewrite("real")),
        Route("m", "a", "8", Rewrite("real"), headers={"x-key": "y"}),
        Route("m", "a", "", Rewrite("real")),
        backends=[first, second],
    )
    assert sorted(await versions(gateway, "m")) == [
        ("4", "READY", ""), ("5", "LOADING", "soon"), ("7", "UNAVAILABLE", ""),
    ]  # fmt: skip
    assert second.requests == [ModelIndexRequest(model="real", version="9")]


async def test_versions_that_no_server_lists_are_those_of_the_metadata() -> None:
    for kind in (Kind.UNSUPPORTED, Kind.NOT_FOUND):
        server = ListingBackend()
        server.errors[ModelIndexRequest] = GatewayError(kind, "no index")
        server.versions["m"], server.unready = ("1", "3"), {("m", "3")}
        gateway = build_gateway(Route("*", "b"), backends=[server])
        assert await versions(gateway, "m") == [("1", "READY", ""), ("3", "UNAVAILABLE", "")]
        assert await versions(gateway, "m", "3") == [("3", "UNAVAILABLE", "")]


async def test_an_unknown_model_has_no_versions() -> None:
    server = ListingBackend("b", *LISTED)
    unknown = GatewayError(Kind.NOT_FOUND, "unknown")
    server.errors = {messages.ModelMetadataRequest: unknown, messages.ModelReadyRequest: unknown}
    gateway = build_gateway(Route("m", "b"), backends=[server])
    for model, version in (("m", ""), ("m", "4"), ("n", ""), ("n", "4")):
        with raises_kind(Kind.NOT_FOUND):
            await versions(gateway, model, version)


async def test_the_readiness_of_the_server_replaces_that_of_its_models() -> None:
    """A model with metadata, from the server or the configuration, is ready if its server is."""
    server = ListingBackend()
    missing = GatewayError(Kind.UNSUPPORTED, "unknown method", origin=Origin.BACKEND)
    server.errors = {
        ModelIndexRequest: missing,
        messages.ModelReadyRequest: missing,
        messages.ModelMetadataRequest: GatewayError(Kind.UNSUPPORTED, "declare it"),
    }
    gateway = build_gateway(Route("*", "b"), backends=[server], declared={"m": ModelMetadata("m")})
    ready = messages.ModelReadyRequest("m")
    assert await gateway.perform(ready, new_context()) == messages.HealthStatus(ok=True)
    assert await versions(gateway, "m") == [("", "READY", "")]
    assert await versions(gateway, "m", "2") == [("2", "READY", "")]
    server.errors[messages.ServerReadyRequest] = GatewayError(Kind.CONNECT, "down")
    assert await gateway.perform(ready, new_context()) == messages.HealthStatus(ok=False)
    for operation in (messages.ModelReadyRequest("n"), ModelIndexRequest(model="n")):
        with raises_kind(Kind.UNSUPPORTED, "declare it"):
            await gateway.perform(operation, new_context())
    server.errors[messages.ModelReadyRequest] = GatewayError(Kind.UNSUPPORTED, "no versions here")
    with raises_kind(Kind.UNSUPPORTED, "no versions here"):
        await gateway.perform(ready, new_context())


async def test_a_status_has_the_clients_model_name() -> None:
    memory = Repository()
    memory.versions["real"] = ("4", "5")
    rewrite = Rewrite("real", "4", {"image": "data"})
    gateway = build_gateway(Route("m", "b", "1", rewrite), backends=[memory])
    (model,) = (await status(gateway, "m")).models
    assert model.metadata == ModelMetadata("m", ("1",))
    assert states(model) == {"1": "READY"}
    assert set(memory.described) == {("real", "4", False)}
    assert messages.ModelReadyRequest("real", "4") in memory.requests


async def test_a_status_combines_the_versions_of_several_routes() -> None:
    one, other = Repository("one"), Repository("other", unready={("m", "2")})
    one.versions["m"] = ("5", "2")
    gateway = build_gateway(
        Route("m", "other", "1"), Route("m", "other", "2"), Route("m", "one"), backends=[one, other]
    )
    (result,) = (await status(gateway, "m")).models
    assert states(result) == {"1": "READY", "2": "UNAVAILABLE", "5": "READY"}
    assert set(one.described) == {("m", "", False)}
    pinned = build_gateway(Route("m", "other", "1"), Route("m", "other", "2"), backends=[other])
    (result,) = (await status(pinned, "m")).models
    assert states(result) == {"1": "READY", "2": "UNAVAILABLE"}


class CountingBackend(Repository):
    """A backend whose servers report statistics or, if ``broken``, fail."""

    def __init__(self, name: str = "b", broken: bool = False) -> None:
        super().__init__(name)
        self.profile_of_all = replace(TRITON, reports_config=False)
        self.broken = broken
        self.statistics_requests: list[Operation] = []

    async def perform_on_all(
        self, operation: Operation, context: RequestContext
    ) -> list[messages.Response]:
        assert isinstance(operation, messages.ModelStatisticsRequest)
        self.statistics_requests.append(operation)
        if self.broken:
            raise GatewayError(Kind.TIMEOUT, "no statistics")
        versions = [operation.version] if operation.version else ["1", "2"]
        return [
            messages.ModelStatistics(
                tuple(
                    {"name": operation.model, "version": version, "by": self.name}
                    for version in versions
                )
            )
        ]


async def test_a_servers_statistics_have_the_clients_names() -> None:
    backend = CountingBackend()
    (result,) = (
        await status(build_gateway(Route("m", "b", "", Rewrite("real")), backends=[backend]), "m")
    ).models
    assert backend.statistics_requests == [messages.ModelStatisticsRequest("real", "")]
    assert [each["name"] for each in result.statistics] == ["m", "m"]
    assert [each["version"] for each in result.statistics] == ["1", "2"]


async def test_statistics_behind_a_versions_route_belong_to_that_version() -> None:
    one, other = CountingBackend("one"), CountingBackend("other")
    gateway = build_gateway(Route("m", "other", "2"), Route("m", "one"), backends=[one, other])
    (result,) = (await status(gateway, "m")).models
    assert {each["version"]: each["by"] for each in result.statistics} == {
        "1": "one",
        "2": "other",
    }


async def test_a_status_leaves_out_unavailable_statistics() -> None:
    gateway = build_gateway(Route("m", "b"), backends=[CountingBackend(broken=True)])
    (result,) = (await status(gateway, "m")).models
    assert result.statistics == ()
    assert states(result) == {"1": "READY"}


async def test_an_unreachable_server_is_not_reported_as_empty() -> None:
    server = ListingBackend()
    server.errors[ModelIndexRequest] = GatewayError(Kind.CONNECT, "backend 'b' cannot be reached")
    gateway = build_gateway(Route("*", "b"), backends=[server])
    with raises_kind(Kind.NO_BACKEND, match="cannot be reached"):
        await status(gateway)


async def test_the_only_server_reports_its_version_and_configuration() -> None:
    class Reporting(Repository):
        async def perform(self, operation: Operation, context: RequestContext) -> messages.Response:
            match operation:
                case messages.ServerStatusRequest(name):
                    assert name in ("", "m")
                    return messages.ServerStatus("s", "1.9.0", ready=True, uptime_ns=7)
                case messages.ModelConfigRequest(name):
                    return messages.ModelConfig(name, {"instance_group": [{"count": 2}]})
            return await super().perform(operation, context)

    one, other = Reporting("one"), Reporting("other")
    one.profile_of_all = other.profile_of_all = replace(GENERIC, reports_config=True)
    result = await status(build_gateway(Route("m", "one"), backends=[one]), "m")
    assert (result.version, result.uptime_ns) == ("1.9.0", 7)
    assert result.models[0].config["instance_group"] == [{"count": 2}]
    result = await status(
        build_gateway(Route("m", "one"), Route("n", "other"), backends=[one, other]), "m"
    )
    assert result.version == infergate.__version__
    assert result.uptime_ns > 7


async def test_a_status_has_the_gateways_statistics_if_the_server_has_none() -> None:
    gateway = build_gateway(Route("m", "b"), backends=[Repository()])
    gateway.own_statistics.record(RequestRecord(model="m", route="m", operation="infer"), 0.25, 1)
    (result,) = (await status(gateway, "m")).models
    (statistics,) = result.statistics
    assert statistics["inference_stats"]["success"] == {"count": 1, "ns": 250_000_000}


async def test_a_model_without_versions_has_an_empty_version() -> None:
    repository = Repository()
    repository.versions["m"] = ()
    (result,) = (await status(build_gateway(Route("*", "b"), backends=[repository]), "m")).models
    assert result.versions == (ModelIndexEntry("m", "", "READY"),)


async def test_an_unknown_model_is_not_found() -> None:
    gateway = build_gateway(Route("m", "b"), backends=[BuiltinBackend("b")])
    for model, words in {"n": "no route for model 'n'", "m": "unknown model 'm'"}.items():
        with raises_kind(Kind.NOT_FOUND, match=words):
            await status(gateway, model)


async def test_errors_of_one_models_metadata_are_reported() -> None:
    memory = Memory("b")
    memory.description = GatewayError(Kind.CONNECT, "down")
    with pytest.raises(GatewayError, match="down"):
        await status(build_gateway(Route("m", "b"), backends=[memory]), "m")


async def test_a_status_lists_the_models_of_all_routes() -> None:
    gateway = build_gateway(
        Route("simple", "demo"),
        Route("x-*", "b"),
        backends=[BuiltinBackend("demo"), Repository("b", "x-1", "x-2", "y")],
    )
    context = new_context()
    result = await perform(gateway, messages.ServerStatusRequest(), messages.ServerStatus, context)
    assert [model.metadata.name for model in result.models] == ["simple", "x-1", "x-2"]
    assert result.models[0].metadata.max_batch_size == 8
    assert [states(model) for model in result.models] == [{"1": "READY"}] * 3
    assert context.record.route == ""  # several routes have no common name


async def test_a_status_reports_that_the_gateway_is_not_ready() -> None:
    class Starting(Repository):
        async def perform(self, operation: Operation, context: RequestContext) -> messages.Response:
            if isinstance(operation, messages.ServerReadyRequest):
                return messages.HealthStatus(ok=False)
            return await super().perform(operation, context)

    assert not (await status(build_gateway(Route("m", "b"), backends=[Starting()]))).ready


async def test_a_model_without_a_reachable_backend_is_unavailable() -> None:
    down = Memory("down")
    down.description = GatewayError(Kind.CONNECT, "backend 'down': cannot connect")
    gateway = build_gateway(
        Route("a", "down", "1"),
        Route("a", "down", "2"),
        Route("b", "b"),
        backends=[down, Repository()],
    )
    unavailable, ready = (await status(gateway)).models
    assert unavailable.metadata == ModelMetadata("a")
    assert unavailable.versions == tuple(
        ModelIndexEntry("a", version, "UNAVAILABLE", "backend 'down': cannot connect")
        for version in ("1", "2")
    )
    assert states(ready) == {"1": "READY"}


async def test_models_are_described_with_bounded_concurrency() -> None:
    names = [f"m{number}" for number in range(100)]
    repository = Repository("b", *names)
    result = await status(build_gateway(Route("*", "b"), backends=[repository]))
    assert [model.metadata.name for model in result.models] == names
    assert repository.max_concurrent == 16


async def test_a_silent_backend_hardly_delays_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends at its own timeout or at the timeout of all queries, whichever is earlier."""

    class Silent(Repository):
        async def describe(self, model: str, version: str, context: Any, **_: bool) -> Any:
            timeouts.append(context.deadline - time.monotonic())
            await asyncio.sleep(max(0.0, timeouts[-1]))
            raise GatewayError(Kind.TIMEOUT, "late")

    monkeypatch.setattr(model_catalogue, "QUERY_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(model_catalogue, "_TOTAL_TIMEOUT_SECONDS", 0.3)
    timeouts: list[float] = []
    silent = Silent("b", *(f"m{number}" for number in range(40)))
    began = time.monotonic()
    result = await status(build_gateway(Route("*", "b"), backends=[silent]))
    assert {entry.reason for model in result.models for entry in model.versions} == {"late"}
    assert len(timeouts) == 40
    assert max(timeouts) <= 0.2
    assert max(timeouts[16:]) <= 0.15  # the first 16 models take 0.2 s each
    assert time.monotonic() - began < 5


async def test_a_clients_shorter_deadline_applies() -> None:
    class Recording(Repository):
        async def describe(self, model: str, version: str, context: Any, **_: bool) -> Any:
            deadlines.append(context.deadline)
            return ModelMetadata(model, inputs=(messages.TensorMetadata("X", "INT8", (1,)),))

    deadlines: list[float | None] = []
    soon = time.monotonic() + 0.5
    await status(build_gateway(Route("m", "b"), backends=[Recording()]), deadline=soon)
    assert set(deadlines) == {soon}


# ---- the index


class IndexedBackend(Memory):
    """A backend that returns or raises ``index``; models in ``ready`` are ready."""

    def __init__(self, index: Any, name: str = "b", ready: Any = ()) -> None:
        super().__init__(name)
        self.index = index
        self.is_ready = ready

    async def perform(self, operation: Operation, context: RequestContext) -> messages.Response:
        self.requests.append(operation)
        match operation:
            case messages.ModelReadyRequest(model, version):
                if isinstance(self.is_ready, GatewayError):
                    raise self.is_ready
                return messages.HealthStatus(ok=(model, version) in self.is_ready)
            case ModelIndexRequest() if isinstance(self.index, GatewayError):
                raise self.index
            case _:
                return messages.ModelIndex(tuple(self.index))


async def index(
    tested_gateway: RoutingGateway, *, ready_only: bool = False
) -> list[ModelIndexEntry]:
    query = ModelIndexRequest(ready_only)
    return list((await perform(tested_gateway, query, messages.ModelIndex)).models)


async def test_a_route_to_one_model_is_described_by_its_server() -> None:
    server = IndexedBackend(
        [
            ModelIndexEntry("real", "1", "READY"),
            ModelIndexEntry("real", "4", "UNAVAILABLE", "unloaded"),
            ModelIndexEntry("other", "1", "READY"),
        ]
    )
    gateway = build_gateway(
        Route("mine", "b", rewrite=Rewrite("real")),
        Route("pinned", "b", "9", Rewrite("real", "4")),
        Route("other", "b"),
        backends=[server],
    )
    assert await index(gateway) == [
        ModelIndexEntry("mine", "1", "READY"),
        ModelIndexEntry("mine", "4", "UNAVAILABLE", "unloaded"),
        ModelIndexEntry("pinned", "9", "UNAVAILABLE", "unloaded"),
        ModelIndexEntry("other", "1", "READY"),
    ]
    assert server.requests == [ModelIndexRequest()]
    assert [(e.name, e.version) for e in await index(gateway, ready_only=True)] == [
        ("mine", "1"),
        ("other", "1"),
    ]


async def test_the_state_of_a_version_comes_from_its_own_route() -> None:
    first = IndexedBackend([ModelIndexEntry("m", v, "READY") for v in "123"], "one")
    second = IndexedBackend([ModelIndexEntry("m", "2", "UNAVAILABLE")], "other")
    gateway = build_gateway(Route("m", "other", "2"), Route("m", "one"), backends=[first, second])
    assert [(e.version, e.state) for e in await index(gateway)] == [
        ("2", "UNAVAILABLE"),
        ("1", "READY"),
        ("3", "READY"),
    ]


async def test_a_model_that_its_server_does_not_have_is_reported() -> None:
    empty = IndexedBackend([])
    gateway = build_gateway(Route("gone", "b"), Route("lost", "b", "2"), backends=[empty])
    missing = "not in the repository of backend 'b'"
    assert await index(gateway) == [
        ModelIndexEntry("gone", "", "UNAVAILABLE", missing),
        ModelIndexEntry("lost", "2", "UNAVAILABLE", missing),
    ]
    assert await index(gateway, ready_only=True) == []


async def test_a_served_model_that_is_not_listed_is_ready() -> None:
    """A server that is itself a gateway cannot list the models that match its patterns."""
    gateway = build_gateway(Route("m", "b", "2"), backends=[IndexedBackend([], ready={("m", "2")})])
    for ready_only in (False, True):
        assert await index(gateway, ready_only=ready_only) == [ModelIndexEntry("m", "2", "READY")]


async def test_readiness_is_requested_if_the_index_has_only_names() -> None:
    """For a route with a pattern, readiness is requested only if the result depends on it."""
    server = IndexedBackend(
        [ModelIndexEntry(name) for name in ("m", "x", "y")], ready={("m", ""), ("x", "")}
    )
    gateway = build_gateway(Route("m", "b"), Route("*", "b"), backends=[server])
    expected = [("m", "READY"), ("x", ""), ("y", "")]
    assert [(e.name, e.state) for e in await index(gateway)] == expected
    assert server.requests == [ModelIndexRequest(), messages.ModelReadyRequest("m")]
    ready = await index(gateway, ready_only=True)
    assert [(e.name, e.state) for e in ready] == [("m", "READY"), ("x", "READY")]


async def test_readiness_is_requested_if_there_is_no_index() -> None:
    unsupported = GatewayError(Kind.UNSUPPORTED, "no index")
    gateway = build_gateway(
        Route("up", "b"),
        Route("down", "b"),
        Route("*", "b"),
        backends=[IndexedBackend(unsupported, ready={("up", "")})],
    )
    assert [(e.name, e.state) for e in await index(gateway)] == [
        ("up", "READY"),
        ("down", "UNAVAILABLE"),
    ]
    broken = IndexedBackend(unsupported, ready=GatewayError(Kind.BACKEND_ERROR, "boom"))
    (entry,) = await index(build_gateway(Route("m", "b"), backends=[broken]))
    assert entry == ModelIndexEntry("m", "", "UNAVAILABLE", "boom")


async def test_an_unreachable_backend_gets_one_request() -> None:
    unreachable = IndexedBackend(GatewayError(Kind.CONNECT, "backend 'b': cannot connect"))
    gateway = build_gateway(Route("m", "b"), backends=[unreachable])
    unavailable = ModelIndexEntry("m", "", "UNAVAILABLE", "backend 'b': cannot connect")
    assert await index(gateway) == [unavailable]
    assert unreachable.requests == [ModelIndexRequest()]


async def test_names_behind_a_rewriting_pattern_are_listed_if_invertible() -> None:
    server = IndexedBackend([ModelIndexEntry(name, "1", "READY") for name in ("v2-a", "v2-B", "b")])
    gateway = build_gateway(
        Route("taken-a", "other"),
        Route(r"/prod\.([a-z]+)/", "b", rewrite=Rewrite(r"v2-\1")),
        Route(r"/(taken)-(.+)/", "b", rewrite=Rewrite(r"v2-\2")),
        Route(r"/taken-(.+)/", "b", rewrite=Rewrite(r"v2-\1")),
        Route("glob-*", "b", rewrite=Rewrite("b")),
        backends=[server, IndexedBackend([], "other")],
    )
    assert [(e.name, e.state) for e in await index(gateway)] == [
        ("taken-a", "UNAVAILABLE"),  # the backend of its route does not list the model
        ("prod.a", "READY"),
    ]

"""Tests the repository index, model configurations, statistics, loading and unloading, and trace
and log settings, with tritonclient and with real servers.

The prefix of a model name selects the backend: ``rest.simple`` is Triton's model over REST."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

from e2e.clients import FORMS, Client, client
from e2e.running import Infergate, started_infergate
from faults.peer import get
from faults.rpc import call, channel
from faults.watch import until
from infergate.codecs.v2_grpc import messages as pb
from legacy.messages import SERVICE, Messages
from legacy.running import LegacyServer, started_legacy
from peers.support.kserve import KServe
from peers.support.mlserver import MLServer
from peers.support.triton import Triton

LEGACY = Messages("1.9")
CONTROL_ENABLED = "control: {repository: true, settings: true}\n"
ROUTE = "  - {{model: '/{0}\\.(.+)/', backend: {0}, rewrite: {{model: '\\1'}}}}\n"
UNIMPLEMENTED = {"501", "StatusCode.UNIMPLEMENTED"}
UNAVAILABLE = {"503", "StatusCode.UNAVAILABLE"}
NOT_FOUND = {"404", "StatusCode.NOT_FOUND"}


def config(backends: dict[str, str], extra: str = CONTROL_ENABLED) -> str:
    entries = "".join(f"  {name}: {{{each}}}\n" for name, each in backends.items())
    routes = "".join(ROUTE.format(name) for name in backends)
    return f"backends:\n{entries}routes:\n{routes}readiness: lenient\n{extra}"


@contextmanager
def clients_of(gateway: Infergate) -> Iterator[dict[str, Client]]:
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(client(form, gateway.http, gateway.grpc)) for form in FORMS
        }


def plain(triton_client: Client, response: Any) -> Any:
    """Return ``response`` as JSON. Protobuf's JSON form writes 64-bit integers as strings."""
    if triton_client.http:
        return response
    return MessageToDict(response, preserving_proto_field_name=True)


def configuration(triton_client: Client, model: str) -> Any:
    response = plain(triton_client, triton_client.get_model_config(model))
    return response if triton_client.http else response["config"]


def fails(statuses: set[str], text: str, action: Callable[[], Any]) -> None:
    with pytest.raises(InferenceServerException, match=text) as caught:
        action()
    assert caught.value.status() in statuses


# ---- Triton


@pytest.fixture(scope="module")
def gateway(triton: Triton) -> Iterator[Infergate]:
    backends = {
        "rest": f'protocol: v2-rest, endpoints: ["http://{triton.http}"]',
        "grpc": f'protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]',
        "plain": f'protocol: v2-rest, endpoints: ["http://{triton.http}"], profile: generic',
        "inside": "protocol: builtin",
    }
    with started_infergate(config(backends)) as running:
        yield running


@pytest.fixture(scope="module")
def client_map(gateway: Infergate) -> Iterator[dict[str, Client]]:
    with clients_of(gateway) as clients:
        yield clients


@pytest.fixture(params=FORMS)
def triton_client(request: pytest.FixtureRequest, client_map: dict[str, Client]) -> Client:
    return client_map[request.param]


both_protocols = pytest.mark.parametrize("backend", ["rest", "grpc"])
LOADING = [("http", "rest"), ("http.aio", "grpc"), ("grpc", "grpc"), ("grpc.aio", "rest")]
"""Each client once, and each pair of client and backend protocols once, because Triton loads models
slowly."""


@both_protocols
def test_tritons_configuration(triton_client: Client, backend: str) -> None:
    response = configuration(triton_client, f"{backend}.simple")
    assert (response["name"], response["max_batch_size"]) == (f"{backend}.simple", 8)
    assert response["input"][0]["data_type"] == "TYPE_INT32"
    assert [int(each) for each in response["input"][0]["dims"]] == [16]
    assert response["backend"] == "python"
    assert response["instance_group"][0]["kind"] == "KIND_CPU"


def test_a_configuration_built_from_metadata(triton_client: Client) -> None:
    for model in ("plain.simple", "inside.simple"):
        response = configuration(triton_client, model)
        assert response["name"] == model
        assert response["input"][0]["data_type"] == "TYPE_INT32"
        dims = [int(each) for each in response["input"][0]["dims"]]
        # If the batching is unknown, the batch dimension is part of the shape.
        assert dims == ([16] if model == "inside.simple" else [-1, 16])


@pytest.mark.parametrize("backend", ["rest", "grpc", "inside"])
def test_configuration_fields_that_clients_read(triton_client: Client, backend: str) -> None:
    repeat_model = "repeat" if backend == "inside" else "repeat_int32"
    decoupled, stateful, stateless = (
        configuration(triton_client, f"{backend}.{model}")
        for model in (repeat_model, "accumulate", "simple")
    )
    assert decoupled["model_transaction_policy"]["decoupled"] is True
    assert "sequence_batching" in stateful
    assert "sequence_batching" not in stateless


def infer(triton_client: Client, model: str, value: int = 1, **extra: Any) -> Any:
    array = np.array([[value] * 16], np.int32)
    tensors = [triton_client.input(f"INPUT{number}", array, "INT32") for number in range(2)]
    return triton_client.infer(model, tensors, **extra)


def infer_until_counted(triton_client: Client, model: str) -> None:
    """Infer, and wait for the statistics, because Triton counts a request after its response."""

    def is_counted() -> bool:
        response = plain(triton_client, triton_client.get_inference_statistics(model))
        (statistics,) = response["model_stats"]
        return int(statistics.get("last_inference", 0)) >= started_ms

    started_ms = time.time_ns() // 1_000_000
    infer(triton_client, model)
    until(is_counted, f"the request is in the statistics of {model}")


def inference_counts(triton_client: Client, *model: str) -> dict[str, int]:
    response = plain(triton_client, triton_client.get_inference_statistics(*model))
    return {
        each["name"]: int(each.get("inference_stats", {}).get("success", {}).get("count", 0))
        for each in response.get("model_stats", [])
    }


@pytest.mark.parametrize("backend", ["rest", "grpc", "plain", "inside"])
def test_statistics_grow_by_the_requests_sent(triton_client: Client, backend: str) -> None:
    model = f"{backend}.simple"
    infer_until_counted(triton_client, model)
    before = inference_counts(triton_client, model)
    assert set(before) == {model}
    infer_until_counted(triton_client, model)
    assert inference_counts(triton_client, model)[model] == before[model] + 1


def legacy_status(gateway: Infergate, transport: str, model: str) -> Any:
    if transport == "http":
        response = get(gateway.http, f"/api/status/{model}?format=binary")
        status = LEGACY.ServerStatus.FromString(response.body)
    else:
        message = LEGACY.StatusRequest(model_name=model).SerializeToString()
        with channel(gateway.grpc) as rpc_channel:
            result = call(rpc_channel, message, f"/{SERVICE}/Status")
        status = LEGACY.StatusResponse.FromString(result.message).server_status
    return status.model_status[model].version_status[1]


@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("backend", ["rest", "grpc", "plain", "inside"])
def test_a_legacy_status_has_the_statistics(
    client_map: dict[str, Client], gateway: Infergate, backend: str, transport: str
) -> None:
    model = f"{backend}.simple"
    infer_until_counted(client_map["http"], model)
    before = legacy_status(gateway, transport, model)
    for _ in range(3):
        infer_until_counted(client_map["http"], model)
    single_input = client_map["http"].input("INPUT0", np.ones((1, 16), np.int32), "INT32")
    with pytest.raises(InferenceServerException):
        client_map["http"].infer(model, [single_input])
    after = legacy_status(gateway, transport, model)
    assert after.ready_state == 1
    assert after.model_inference_count == before.model_inference_count + 3
    assert after.model_execution_count == before.model_execution_count + 3
    assert after.last_inference_timestamp_milliseconds > time.time() * 1000 - 60_000
    (stats_before,), (stats_after,) = before.infer_stats.values(), after.infer_stats.values()
    for name in ("success", "compute"):
        assert getattr(stats_after, name).count == getattr(stats_before, name).count + 3
        if (backend, name) != ("inside", "compute"):  # embedded models have no backend time
            assert (
                getattr(stats_after, name).total_time_ns > getattr(stats_before, name).total_time_ns
            )
    assert stats_after.compute.total_time_ns <= stats_after.success.total_time_ns
    if backend in ("rest", "grpc"):  # only Triton can measure the time in its queue
        assert stats_after.queue.count == stats_before.queue.count + 3
    else:
        assert stats_after.failed.count == stats_before.failed.count + 1


def test_statistics_of_all_models(triton_client: Client) -> None:
    """The statistics have the names that clients use, although routes rewrite them."""
    models = [f"{backend}.simple" for backend in ("rest", "grpc", "plain", "inside")]
    for model in models:
        infer(triton_client, model)
    counts = inference_counts(triton_client)
    assert all(counts[model] >= 1 for model in models)


@pytest.fixture(scope="module")
def renaming_clients(triton: Triton) -> Iterator[dict[str, Client]]:
    """Run a gateway with routes that rename a model and its input."""
    text = f"""
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{triton.http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]}}
routes:
  - {{model: mine-rest, backend: rest, rewrite: {{model: simple_int8, inputs: {{A: INPUT0}}}}}}
  - {{model: mine-grpc, backend: grpc, rewrite: {{model: simple_int8, inputs: {{A: INPUT0}}}}}}
  - {{model: missing, backend: grpc}}
{CONTROL_ENABLED}"""
    with started_infergate(text) as running, clients_of(running) as clients:
        yield clients


def repository_index(triton_client: Client) -> dict[str, tuple[str, str, str]]:
    """Return version, state and reason of each model in the index."""
    response = plain(triton_client, triton_client.get_model_repository_index())
    entries = response if triton_client.http else response["models"]
    return {
        each["name"]: tuple(each.get(key, "") for key in ("version", "state", "reason"))
        for each in entries
    }


def test_the_index_lists_routed_models(renaming_clients: dict[str, Client]) -> None:
    """Two routes lead to the same model."""
    missing = ("", "UNAVAILABLE", "not in the repository of backend 'grpc'")
    loaded = {"mine-rest": ("1", "READY", ""), "mine-grpc": ("1", "READY", ""), "missing": missing}
    assert [repository_index(each) for each in renaming_clients.values()] == [loaded] * len(FORMS)
    try:
        renaming_clients["http"].unload_model("mine-rest")
        state = ("1", "UNAVAILABLE", "unloaded")  # after the state UNLOADING
        unloaded = {**loaded, "mine-rest": state, "mine-grpc": state}
        until(
            lambda: repository_index(renaming_clients["http"]) == unloaded,
            f"the index is {unloaded}",
        )
        assert [repository_index(each) for each in renaming_clients.values()] == [unloaded] * len(
            FORMS
        )
    finally:
        renaming_clients["grpc"].load_model("mine-grpc")
    assert [repository_index(each) for each in renaming_clients.values()] == [loaded] * len(FORMS)


def test_a_given_configuration_is_loaded_unchanged(renaming_clients: dict[str, Client]) -> None:
    try:
        for size, (form, backend) in enumerate(LOADING, 4):
            triton_client, model = renaming_clients[form], f"mine-{backend}"
            settings = configuration(triton_client, model)
            assert (settings["name"], settings["input"][0]["name"]) == (model, "A")
            triton_client.load_model(model, config=json.dumps({**settings, "max_batch_size": size}))
            loaded = configuration(triton_client, model)
            assert (loaded["name"], loaded["max_batch_size"]) == (model, size)
            assert loaded["input"][0]["name"] == "A"
    finally:
        # Triton keeps the given configuration until the model is unloaded.
        renaming_clients["http"].unload_model("mine-rest")
        renaming_clients["http"].load_model("mine-rest")


def test_a_model_is_unloaded_and_loaded_with_another_configuration(
    client_map: dict[str, Client],
) -> None:
    try:
        for size, (form, backend) in enumerate(LOADING, 4):
            triton_client, model = client_map[form], f"{backend}.simple_int8"
            settings = {**configuration(triton_client, model), "max_batch_size": size}
            triton_client.unload_model(model)
            assert not ready(triton_client, model)
            triton_client.load_model(model, config=json.dumps(settings))
            assert ready(triton_client, model)
            assert configuration(triton_client, model)["max_batch_size"] == size
    finally:
        # Triton keeps the given configuration until the model is unloaded.
        client_map["http"].unload_model("rest.simple_int8")
        client_map["http"].load_model("rest.simple_int8")
    assert configuration(client_map["grpc"], "grpc.simple_int8")["max_batch_size"] == 8


def ready(triton_client: Client, model: str) -> bool:
    return bool(triton_client.is_model_ready(model))


@pytest.mark.parametrize(("triton_client", "backend"), LOADING, indirect=["triton_client"])
def test_files_are_loaded_with_a_model(triton_client: Client, backend: str, triton: Triton) -> None:
    code = b"""
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.array([7], np.int32))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
    name = f"sent_{backend}_{triton_client.form.replace('.', '_')}"
    settings = {
        "name": name,
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
        "instance_group": [{"kind": "KIND_CPU"}],
    }
    model = f"{backend}.{name}"
    try:
        triton_client.load_model(
            model, config=json.dumps(settings), files={"file:1/model.py": code}
        )
        tensor = triton_client.input("IN", np.array([0], np.int32), "INT32")
        assert triton_client.infer(model, [tensor]).as_numpy("OUT").tolist() == [7]
    finally:
        triton_client.unload_model(model)


@both_protocols
def test_loading_a_model_that_triton_does_not_have(triton_client: Client, backend: str) -> None:
    fails(
        {"404", "StatusCode.NOT_FOUND"},
        "failed to load 'nosuch', failed to poll",
        lambda: triton_client.load_model(f"{backend}.nosuch"),
    )


INVALID = {"400", "StatusCode.INVALID_ARGUMENT"}
HARMFUL_NAMES = ("simple\0-mine", "x\\..", "x%2f..%2fsimple", "simple?x", "s" * 2000)


@both_protocols
def test_unusual_names_and_headers_affect_no_other_model(
    triton_client: Client, backend: str
) -> None:
    """A server may cut names at NUL, and may close connections because of long names and
    headers."""
    for name in HARMFUL_NAMES:
        fails(
            INVALID, "the model name ", lambda n=name: triton_client.unload_model(f"{backend}.{n}")
        )  # type: ignore[misc]
        fails(INVALID, "the model name ", lambda n=name: infer(triton_client, f"{backend}.{n}"))  # type: ignore[misc]
    for header in ("baggage", "tracestate", "traceparent", "x-request-id"):
        response = infer(triton_client, f"{backend}.simple", headers={header: "k=" + "v" * 9000})
        assert response.as_numpy("OUTPUT0")[0, 0] == 2
    assert ready(triton_client, f"{backend}.simple")


def test_embedded_models_are_neither_loaded_nor_unloaded(triton_client: Client) -> None:
    fails(UNIMPLEMENTED, "built into infergate", lambda: triton_client.load_model("inside.simple"))
    fails(
        UNIMPLEMENTED, "built into infergate", lambda: triton_client.unload_model("inside.simple")
    )


def test_log_settings(triton_client: Client, triton: Triton) -> None:
    def value(response: Any, name: str) -> Any:
        if triton_client.http:
            return response[name]
        setting = response.settings[name]
        return getattr(setting, setting.WhichOneof("parameter_choice"))

    before = triton_client.get_log_settings()
    level = value(before, "log_verbose_level")
    try:
        response = triton_client.update_log_settings({"log_verbose_level": level + 1})
        assert value(response, "log_verbose_level") == level + 1
        assert value(triton_client.get_log_settings(), "log_verbose_level") == level + 1
    finally:
        triton_client.update_log_settings({"log_verbose_level": level})
    assert value(triton_client.get_log_settings(), "log_error") is True


@pytest.mark.parametrize("model", ["", "rest.simple", "grpc.simple"])
def test_trace_settings(triton_client: Client, model: str) -> None:
    def values(response: Any, name: str) -> Any:
        response = response[name] if triton_client.http else list(response.settings[name].value)
        return [response] if isinstance(response, str) else response

    rate = values(triton_client.get_trace_settings(model), "trace_rate")
    try:
        settings = {"trace_rate": "77"}
        assert values(triton_client.update_trace_settings(model, settings), "trace_rate") == ["77"]
        assert values(triton_client.get_trace_settings(model), "trace_rate") == ["77"]
        assert values(triton_client.get_trace_settings(model), "trace_level") == ["OFF"]
    finally:
        triton_client.update_trace_settings(model, {"trace_rate": None if model else rate[0]})
    assert values(triton_client.get_trace_settings(model), "trace_rate") == rate


def test_embedded_models_have_no_trace_settings(triton_client: Client) -> None:
    fails(
        UNIMPLEMENTED,
        "no trace settings",
        lambda: triton_client.get_trace_settings("inside.simple"),
    )


def test_unknown_models_are_not_found(triton_client: Client) -> None:
    for action in (
        lambda: triton_client.load_model("nosuch"),
        lambda: triton_client.get_model_config("nosuch"),
        lambda: triton_client.get_inference_statistics("nosuch"),
        lambda: triton_client.get_trace_settings("nosuch"),
    ):
        fails(NOT_FOUND, "no route for model 'nosuch'", action)


# ---- legacy servers


@pytest.fixture(scope="module")
def two_servers() -> Iterator[tuple[LegacyServer, LegacyServer]]:
    with (
        started_legacy("--hazard", "explicit") as first,
        started_legacy("--hazard", "explicit") as second,
    ):
        yield first, second


@pytest.fixture(scope="module")
def legacy_clients(two_servers: tuple[LegacyServer, LegacyServer]) -> Iterator[dict[str, Client]]:
    http_endpoints = ", ".join(f'"http://{each.http}"' for each in two_servers)
    grpc_endpoints = ", ".join(f'"grpc://{each.grpc}"' for each in two_servers)
    backends = {
        "web": f"protocol: trtis-http, endpoints: [{http_endpoints}]",
        "rpc": f"protocol: trtis-grpc, endpoints: [{grpc_endpoints}]",
    }
    with started_infergate(config(backends)) as gateway, clients_of(gateway) as clients:
        yield clients


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["web", "rpc"])
def test_a_legacy_model_is_loaded_on_every_endpoint(
    legacy_clients: dict[str, Client],
    two_servers: tuple[LegacyServer, LegacyServer],
    form: str,
    backend: str,
) -> None:
    triton_client = legacy_clients[form]
    model = f"{backend}.simple"

    def changes() -> list[int]:
        targets = [
            [str(each.get("target") or each.get("rpc")) for each in s.requests()]
            for s in two_servers
        ]
        return [sum("odel" in t and "ontrol" in t for t in each) for each in targets]

    before = changes()
    for name in HARMFUL_NAMES:
        fails(
            INVALID, "the model name ", lambda n=name: triton_client.unload_model(f"{backend}.{n}")
        )  # type: ignore[misc]
    assert changes() == before
    triton_client.load_model(model)
    assert changes() == [count + 1 for count in before]
    settings = configuration(triton_client, model)
    assert (settings["max_batch_size"], settings["input"][0]["name"]) == (8, "INPUT0")
    assert settings["instance_group"]  # the status contains more than metadata
    assert infer(triton_client, model).as_numpy("OUTPUT0")[0, 0] == 2
    triton_client.unload_model(model)
    assert changes() == [count + 2 for count in before]
    fails(
        {"500", "StatusCode.INTERNAL"},
        "2 of 2 endpoints of backend .* failed: failed to load 'nosuch'",
        lambda: triton_client.load_model(f"{backend}.nosuch"),
    )
    fails(
        UNIMPLEMENTED, "accepts no parameters", lambda: triton_client.load_model(model, config="{}")
    )


# ---- disabled control operations


@pytest.fixture(scope="module")
def clients_without_control() -> Iterator[dict[str, Client]]:
    backends = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"
    with started_infergate(backends) as gateway, clients_of(gateway) as clients:
        yield clients


@pytest.mark.parametrize("form", FORMS)
def test_disabled_control_operations(clients_without_control: dict[str, Client], form: str) -> None:
    triton_client = clients_without_control[form]
    fails(UNAVAILABLE, "not allowed if polling", lambda: triton_client.load_model("simple"))
    fails(UNAVAILABLE, "not allowed if polling", lambda: triton_client.unload_model("simple"))
    fails(UNIMPLEMENTED, "settings: true", triton_client.get_log_settings)
    fails(
        UNIMPLEMENTED,
        "settings: true",
        lambda: triton_client.update_trace_settings("", {"trace_rate": "1"}),
    )
    response = triton_client.get_model_repository_index()
    entries = response if triton_client.http else plain(triton_client, response)["models"]
    assert {"simple", "digits"} <= {each["name"] for each in entries}
    metadata = triton_client.get_server_metadata()
    extensions = set(metadata["extensions"] if triton_client.http else metadata.extensions)
    assert {"model_configuration", "statistics"} <= extensions
    assert not {"model_repository", "trace", "logging"} & extensions
    infer(triton_client, "simple")
    assert inference_counts(triton_client)["simple"] >= 1
    assert inference_counts(triton_client)["identity"] >= 0


# ---- MLServer and KServe


@pytest.fixture(scope="module")
def other_servers(mlserver: MLServer, kserve: KServe) -> Iterator[Infergate]:
    backends = {
        "ml-rest": f'protocol: v2-rest, endpoints: ["http://{mlserver.http}"]',
        "ml-grpc": f'protocol: v2-grpc, endpoints: ["grpc://{mlserver.grpc}"]',
        "k-rest": f'protocol: v2-rest, endpoints: ["http://{kserve.http}"]',
        "k-grpc": f'protocol: v2-grpc, endpoints: ["grpc://{kserve.grpc}"]',
    }
    with started_infergate(config(backends)) as gateway:
        yield gateway


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("backend", ["ml-rest", "ml-grpc"])
def test_mlserver_loads_and_unloads_models(
    other_servers: Infergate, form: str, backend: str
) -> None:
    with client(form, other_servers.http, other_servers.grpc) as triton_client:
        model = f"{backend}.simple"
        triton_client.unload_model(model)
        with pytest.raises(InferenceServerException):
            infer(triton_client, model)
        triton_client.load_model(model)
        assert infer(triton_client, model).as_numpy("OUTPUT0")[0, 0] == 2
        assert inference_counts(triton_client, model)[model] >= 1
        assert configuration(triton_client, model)["name"] == model
        fails(
            UNIMPLEMENTED,
            "accepts no parameters",
            lambda: triton_client.load_model(model, config="{}"),
        )


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("backend", ["k-rest", "k-grpc"])
def test_kserve_gets_its_own_request_message(
    other_servers: Infergate, form: str, backend: str
) -> None:
    """KServe's message has the model's name in field 1, where Triton's message has the repository.
    KServe 0.21 fails over gRPC after loading a model, because it reads from a result that is
    None."""
    with client(form, other_servers.http, other_servers.grpc) as triton_client:
        if backend == "k-rest":
            triton_client.load_model(f"{backend}.simple")
        else:
            with pytest.raises(InferenceServerException, match="Internal server error"):
                triton_client.load_model(f"{backend}.simple")
        with pytest.raises(InferenceServerException, match=r"ModelNotReady|not ready"):
            triton_client.load_model(f"{backend}.nosuch")


def test_a_kserve_client_gets_kserves_messages(other_servers: Infergate) -> None:
    method = "/inference.GRPCInferenceService/RepositoryModelLoad"
    with grpc.insecure_channel(other_servers.grpc) as channel:
        load = channel.unary_unary(
            method,
            request_serializer=pb.KServeModelRequest.SerializeToString,
            response_deserializer=pb.KServeModelResponse.FromString,
        )
        response = load(pb.KServeModelRequest(model_name="ml-rest.simple"), timeout=30)
    assert (response.model_name, response.is_done) == ("ml-rest.simple", True)

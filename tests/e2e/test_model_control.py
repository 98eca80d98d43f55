"""Real tritonclient → infergate, asking for what is not an inference: which models there are, how
they are set up, what was counted, to load and unload them, and to trace and log.

Each backend serves its models under its name and a dot: ``rest.simple`` is Triton's, over REST.
"""

from __future__ import annotations

import json
import time
import urllib.request
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
from faults.rpc import call, channel
from faults.watch import until
from infergate.codecs.v2_grpc import messages as pb
from legacy.messages import SERVICE, Messages
from legacy.running import LegacyServer, started_legacy
from peers.support.kserve import KServe
from peers.support.mlserver import MLServer
from peers.support.triton import Triton

LEGACY = Messages("1.9")
ON = "control: {repository: true, settings: true}\n"
ROUTE = "  - {{model: '/{0}\\.(.+)/', backend: {0}, rewrite: {{model: '\\1'}}}}\n"
REFUSED = {"501", "StatusCode.UNIMPLEMENTED"}
POLLING = {"503", "StatusCode.UNAVAILABLE"}
UNKNOWN = {"404", "StatusCode.NOT_FOUND"}


def config(backends: dict[str, str], more: str = ON) -> str:
    listed = "".join(f"  {name}: {{{each}}}\n" for name, each in backends.items())
    routes = "".join(ROUTE.format(name) for name in backends)
    return f"backends:\n{listed}routes:\n{routes}readiness: lenient\n{more}"


@contextmanager
def clients_of(gateway: Infergate) -> Iterator[dict[str, Client]]:
    with ExitStack() as stack:
        yield {
            form: stack.enter_context(client(form, gateway.http, gateway.grpc)) for form in FORMS
        }


def plain(asked: Client, answer: Any) -> Any:
    """``answer`` as JSON would have it; over gRPC numbers of 64 bits are text there."""
    if asked.http:
        return answer
    return MessageToDict(answer, preserving_proto_field_name=True)


def fails(statuses: set[str], words: str, act: Callable[[], Any]) -> None:
    with pytest.raises(InferenceServerException, match=words) as caught:
        act()
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
def served(gateway: Infergate) -> Iterator[dict[str, Client]]:
    with clients_of(gateway) as clients:
        yield clients


@pytest.fixture(params=FORMS)
def asked(request: pytest.FixtureRequest, served: dict[str, Client]) -> Client:
    return served[request.param]


both = pytest.mark.parametrize("backend", ["rest", "grpc"])


@both
def test_tritons_configuration(asked: Client, backend: str) -> None:
    answer = plain(asked, asked.get_model_config(f"{backend}.simple"))
    told = answer if asked.http else answer["config"]
    assert (told["name"], told["max_batch_size"]) == (f"{backend}.simple", 8)
    assert told["input"][0]["data_type"] == "TYPE_INT32"
    assert [int(each) for each in told["input"][0]["dims"]] == [16]
    assert told["backend"] == "python"
    assert told["instance_group"][0]["kind"] == "KIND_CPU"


def test_a_configuration_made_of_metadata(asked: Client) -> None:
    for model in ("plain.simple", "inside.simple"):
        answer = plain(asked, asked.get_model_config(model))
        told = answer if asked.http else answer["config"]
        assert told["name"] == model
        assert told["input"][0]["data_type"] == "TYPE_INT32"
        dims = [int(each) for each in told["input"][0]["dims"]]
        # a server that is not known to tell a batch has it in its shapes
        assert dims == ([16] if model == "inside.simple" else [-1, 16])


@pytest.mark.parametrize("backend", ["rest", "grpc", "inside"])
def test_what_clients_branch_on(asked: Client, backend: str) -> None:
    def settings(model: str) -> Any:
        answer = plain(asked, asked.get_model_config(f"{backend}.{model}"))
        return answer if asked.http else answer["config"]

    several = "repeat" if backend == "inside" else "repeat_int32"
    assert settings(several)["model_transaction_policy"]["decoupled"] is True
    assert "sequence_batching" in settings("accumulate")
    assert "sequence_batching" not in settings("simple")


def infer(asked: Client, model: str, value: int = 1, **more: Any) -> Any:
    array = np.array([[value] * 16], np.int32)
    tensors = [asked.input(f"INPUT{number}", array, "INT32") for number in range(2)]
    return asked.infer(model, tensors, **more)


def counted(asked: Client, *model: str) -> dict[str, int]:
    answer = plain(asked, asked.get_inference_statistics(*model))
    return {
        each["name"]: int(each.get("inference_stats", {}).get("success", {}).get("count", 0))
        for each in answer.get("model_stats", [])
    }


@pytest.mark.parametrize("backend", ["rest", "grpc", "plain", "inside"])
def test_statistics_grow_by_what_was_asked(asked: Client, backend: str) -> None:
    model = f"{backend}.simple"
    infer(asked, model)
    before = counted(asked, model)
    assert set(before) == {model}
    infer(asked, model)
    assert counted(asked, model)[model] == before[model] + 1


def legacy_status(gateway: Infergate, carrier: str, model: str) -> Any:
    """The status of version 1 of ``model``, as a legacy client reads it."""
    if carrier == "http":
        url = f"http://{gateway.http}/api/status/{model}?format=binary"
        with urllib.request.urlopen(url) as answer:
            status = LEGACY.ServerStatus.FromString(answer.read())
    else:
        message = LEGACY.StatusRequest(model_name=model).SerializeToString()
        with channel(gateway.grpc) as made:
            answered = call(made, message, f"/{SERVICE}/Status")
        status = LEGACY.StatusResponse.FromString(answered.message).server_status
    return status.model_status[model].version_status[1]


@pytest.mark.parametrize("carrier", ["http", "grpc"])
@pytest.mark.parametrize("backend", ["rest", "grpc", "plain", "inside"])
def test_a_legacy_status_tells_what_was_counted(
    served: dict[str, Client], gateway: Infergate, backend: str, carrier: str
) -> None:
    model = f"{backend}.simple"
    infer(served["http"], model)
    before = legacy_status(gateway, carrier, model)
    for _ in range(3):
        infer(served["http"], model)
    lonely = served["http"].input("INPUT0", np.ones((1, 16), np.int32), "INT32")
    with pytest.raises(InferenceServerException):
        served["http"].infer(model, [lonely])
    after = legacy_status(gateway, carrier, model)
    assert after.ready_state == 1
    assert after.model_inference_count == before.model_inference_count + 3
    assert after.model_execution_count == before.model_execution_count + 3
    assert after.last_inference_timestamp_milliseconds > time.time() * 1000 - 60_000
    (was,), (told,) = before.infer_stats.values(), after.infer_stats.values()
    for name in ("success", "compute"):
        assert getattr(told, name).count == getattr(was, name).count + 3
        if (backend, name) != ("inside", "compute"):  # there is no backend to wait for
            assert getattr(told, name).total_time_ns > getattr(was, name).total_time_ns
    assert told.compute.total_time_ns <= told.success.total_time_ns
    if backend in ("rest", "grpc"):  # what the gateway does not know
        assert told.queue.count == was.queue.count + 3
    else:
        assert told.failed.count == was.failed.count + 1


def test_statistics_of_all_models(asked: Client) -> None:
    """Under the names that clients have for them, behind routes that rewrite."""
    models = [f"{backend}.simple" for backend in ("rest", "grpc", "plain", "inside")]
    for model in models:
        infer(asked, model)
    told = counted(asked)
    assert all(told[model] >= 1 for model in models)


@pytest.fixture(scope="module")
def named(triton: Triton) -> Iterator[dict[str, Client]]:
    """Routes to one model each, and a tensor that the client calls otherwise."""
    text = f"""
backends:
  rest: {{protocol: v2-rest, endpoints: ["http://{triton.http}"]}}
  grpc: {{protocol: v2-grpc, endpoints: ["grpc://{triton.grpc}"]}}
routes:
  - {{model: mine-rest, backend: rest, rewrite: {{model: simple_int8, inputs: {{A: INPUT0}}}}}}
  - {{model: mine-grpc, backend: grpc, rewrite: {{model: simple_int8, inputs: {{A: INPUT0}}}}}}
  - {{model: gone, backend: grpc}}
{ON}"""
    with started_infergate(text) as running, clients_of(running) as clients:
        yield clients


def listed(asked: Client) -> dict[str, tuple[str, str, str]]:
    """Version, state and reason of each model of the index."""
    answer = plain(asked, asked.get_model_repository_index())
    entries = answer if asked.http else answer["models"]
    return {
        each["name"]: tuple(each.get(key, "") for key in ("version", "state", "reason"))
        for each in entries
    }


@pytest.mark.parametrize("form", FORMS)
@both
def test_the_index_tells_of_routed_models(
    named: dict[str, Client], form: str, backend: str
) -> None:
    asked, model = named[form], f"mine-{backend}"
    gone = ("", "UNAVAILABLE", "not in the repository of backend 'grpc'")
    asked.load_model(model)
    before = listed(asked)
    assert set(before) == {"mine-rest", "mine-grpc", "gone"}
    assert (before[model], before["gone"]) == (("1", "READY", ""), gone)
    try:
        asked.unload_model(model)
        unloaded = ("1", "UNAVAILABLE", "unloaded")  # UNLOADING comes before it
        until(lambda: listed(asked)[model] == unloaded, f"{model} to be {unloaded}")
    finally:
        asked.load_model(model)
    assert listed(asked)[model] == ("1", "READY", "")


@pytest.mark.parametrize("form", FORMS)
@both
def test_a_configuration_is_loaded_as_it_was_told(
    named: dict[str, Client], form: str, backend: str
) -> None:
    asked, model = named[form], f"mine-{backend}"
    answer = plain(asked, asked.get_model_config(model))
    settings = answer if asked.http else answer["config"]
    assert (settings["name"], settings["input"][0]["name"]) == (model, "A")
    try:
        asked.load_model(model, config=json.dumps({**settings, "max_batch_size": 4}))
        changed = plain(asked, asked.get_model_config(model))
        told = changed if asked.http else changed["config"]
        assert (told["name"], told["max_batch_size"]) == (model, 4)
        assert told["input"][0]["name"] == "A"
    finally:
        asked.unload_model(model)  # Triton holds on to what it was given for as long
        asked.load_model(model)


@both
def test_a_model_is_unloaded_and_loaded_with_another_configuration(
    asked: Client, backend: str
) -> None:
    model = f"{backend}.simple_int8"
    answer = plain(asked, asked.get_model_config(model))
    settings = answer if asked.http else answer["config"]
    try:
        asked.unload_model(model)
        assert not ready(asked, model)
        settings = {**settings, "max_batch_size": 4}
        asked.load_model(model, config=json.dumps(settings))
        assert ready(asked, model)
        changed = plain(asked, asked.get_model_config(model))
        assert (changed if asked.http else changed["config"])["max_batch_size"] == 4
    finally:
        asked.unload_model(model)  # Triton holds on to what it was given for as long
        asked.load_model(model)
    again = plain(asked, asked.get_model_config(model))
    assert (again if asked.http else again["config"])["max_batch_size"] == 8


def ready(asked: Client, model: str) -> bool:
    return bool(asked.is_model_ready(model))


@both
def test_files_travel_with_a_model(asked: Client, backend: str, triton: Triton) -> None:
    code = b"""
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("OUT", np.array([7], np.int32))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
    name = f"sent_{backend}_{asked.form.replace('.', '_')}"
    settings = {
        "name": name,
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
        "instance_group": [{"kind": "KIND_CPU"}],
    }
    model = f"{backend}.{name}"
    try:
        asked.load_model(model, config=json.dumps(settings), files={"file:1/model.py": code})
        tensor = asked.input("IN", np.array([0], np.int32), "INT32")
        assert asked.infer(model, [tensor]).as_numpy("OUT").tolist() == [7]
    finally:
        asked.unload_model(model)


@both
def test_a_model_that_triton_does_not_have(asked: Client, backend: str) -> None:
    fails(
        {"404", "StatusCode.NOT_FOUND"},
        "failed to load 'nosuch', failed to poll",
        lambda: asked.load_model(f"{backend}.nosuch"),
    )


WRONG = {"400", "StatusCode.INVALID_ARGUMENT"}
HARMFUL = ("simple\0-mine", "x\\..", "x%2f..%2fsimple", "simple?x", "s" * 2000)


@both
def test_a_name_or_a_header_harms_no_model_and_no_connection(asked: Client, backend: str) -> None:
    """A server may cut names at NUL, and closes connections over long names and headers."""
    for name in HARMFUL:
        fails(WRONG, "the model name ", lambda n=name: asked.unload_model(f"{backend}.{n}"))  # type: ignore[misc]
        fails(WRONG, "the model name ", lambda n=name: infer(asked, f"{backend}.{n}"))  # type: ignore[misc]
    for header in ("baggage", "tracestate", "traceparent", "x-request-id"):
        answer = infer(asked, f"{backend}.simple", headers={header: "k=" + "v" * 9000})
        assert answer.as_numpy("OUTPUT0")[0, 0] == 2
    assert ready(asked, f"{backend}.simple")


def test_models_inside_are_neither_loaded_nor_unloaded(asked: Client) -> None:
    fails(REFUSED, "inside infergate", lambda: asked.load_model("inside.simple"))
    fails(REFUSED, "inside infergate", lambda: asked.unload_model("inside.simple"))


def test_log_settings(asked: Client, triton: Triton) -> None:
    def value(answer: Any, name: str) -> Any:
        if asked.http:
            return answer[name]
        setting = answer.settings[name]
        return getattr(setting, setting.WhichOneof("parameter_choice"))

    before = asked.get_log_settings()
    level = value(before, "log_verbose_level")
    try:
        answer = asked.update_log_settings({"log_verbose_level": level + 1})
        assert value(answer, "log_verbose_level") == level + 1
        assert value(asked.get_log_settings(), "log_verbose_level") == level + 1
    finally:
        asked.update_log_settings({"log_verbose_level": level})
    assert value(asked.get_log_settings(), "log_error") is True


@pytest.mark.parametrize("model", ["", "rest.simple", "grpc.simple"])
def test_trace_settings(asked: Client, model: str) -> None:
    def values(answer: Any, name: str) -> Any:
        told = answer[name] if asked.http else list(answer.settings[name].value)
        return [told] if isinstance(told, str) else told

    rate = values(asked.get_trace_settings(model), "trace_rate")
    try:
        settings = {"trace_rate": "77"}
        assert values(asked.update_trace_settings(model, settings), "trace_rate") == ["77"]
        assert values(asked.get_trace_settings(model), "trace_rate") == ["77"]
        assert values(asked.get_trace_settings(model), "trace_level") == ["OFF"]
    finally:
        asked.update_trace_settings(model, {"trace_rate": None if model else rate[0]})
    assert values(asked.get_trace_settings(model), "trace_rate") == rate


def test_trace_settings_of_models_elsewhere(asked: Client) -> None:
    fails(REFUSED, "no trace settings", lambda: asked.get_trace_settings("inside.simple"))


def test_unknown_models(asked: Client) -> None:
    for act in (
        lambda: asked.load_model("nosuch"),
        lambda: asked.get_model_config("nosuch"),
        lambda: asked.get_inference_statistics("nosuch"),
        lambda: asked.get_trace_settings("nosuch"),
    ):
        fails(UNKNOWN, "no route for model 'nosuch'", act)


# ---- the legacy server, and none


@pytest.fixture(scope="module")
def two_servers() -> Iterator[tuple[LegacyServer, LegacyServer]]:
    with (
        started_legacy("--hazard", "explicit") as one,
        started_legacy("--hazard", "explicit") as other,
    ):
        yield one, other


@pytest.fixture(scope="module")
def old(two_servers: tuple[LegacyServer, LegacyServer]) -> Iterator[dict[str, Client]]:
    https = ", ".join(f'"http://{each.http}"' for each in two_servers)
    grpcs = ", ".join(f'"grpc://{each.grpc}"' for each in two_servers)
    backends = {
        "web": f"protocol: trtis-http, endpoints: [{https}]",
        "rpc": f"protocol: trtis-grpc, endpoints: [{grpcs}]",
    }
    with started_infergate(config(backends)) as gateway, clients_of(gateway) as clients:
        yield clients


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["web", "rpc"])
def test_a_legacy_model_is_loaded_on_every_endpoint(
    old: dict[str, Client], two_servers: tuple[LegacyServer, LegacyServer], form: str, backend: str
) -> None:
    asked = old[form]
    model = f"{backend}.simple"

    def changes() -> list[int]:
        told = [
            [str(each.get("target") or each.get("rpc")) for each in s.asked()] for s in two_servers
        ]
        return [sum("odel" in t and "ontrol" in t for t in each) for each in told]

    before = changes()
    for name in HARMFUL:
        fails(WRONG, "the model name ", lambda n=name: asked.unload_model(f"{backend}.{n}"))  # type: ignore[misc]
    assert changes() == before
    asked.load_model(model)
    assert changes() == [count + 1 for count in before]
    answer = plain(asked, asked.get_model_config(model))
    settings = answer if asked.http else answer["config"]
    assert (settings["max_batch_size"], settings["input"][0]["name"]) == (8, "INPUT0")
    assert settings["instance_group"]  # the status tells more than metadata would
    assert infer(asked, model).as_numpy("OUTPUT0")[0, 0] == 2
    asked.unload_model(model)
    assert changes() == [count + 2 for count in before]
    fails(
        {"500", "StatusCode.INTERNAL"},
        "2 of 2 endpoints of backend .* failed: failed to load 'nosuch'",
        lambda: asked.load_model(f"{backend}.nosuch"),
    )
    fails(REFUSED, "accepts no parameters", lambda: asked.load_model(model, config="{}"))


# ---- off


@pytest.fixture(scope="module")
def off() -> Iterator[dict[str, Client]]:
    backends = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"
    with started_infergate(backends) as gateway, clients_of(gateway) as clients:
        yield clients


@pytest.mark.parametrize("form", FORMS)
def test_what_is_off(off: dict[str, Client], form: str) -> None:
    asked = off[form]
    fails(POLLING, "not allowed if polling", lambda: asked.load_model("simple"))
    fails(POLLING, "not allowed if polling", lambda: asked.unload_model("simple"))
    fails(REFUSED, "settings: true", asked.get_log_settings)
    fails(REFUSED, "settings: true", lambda: asked.update_trace_settings("", {"trace_rate": "1"}))
    answer = asked.get_model_repository_index()
    listed = answer if asked.http else plain(asked, answer)["models"]
    assert {"simple", "digits"} <= {each["name"] for each in listed}
    told = asked.get_server_metadata()
    extensions = set(told["extensions"] if asked.http else told.extensions)
    assert {"model_configuration", "statistics"} <= extensions
    assert not {"model_repository", "trace", "logging"} & extensions
    infer(asked, "simple")
    assert counted(asked)["simple"] >= 1
    assert counted(asked)["identity"] >= 0


# ---- MLServer and KServe


@pytest.fixture(scope="module")
def others(mlserver: MLServer, kserve: KServe) -> Iterator[Infergate]:
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
def test_mlserver(others: Infergate, form: str, backend: str) -> None:
    with client(form, others.http, others.grpc) as asked:
        model = f"{backend}.simple"
        asked.unload_model(model)
        with pytest.raises(InferenceServerException):
            infer(asked, model)
        asked.load_model(model)
        assert infer(asked, model).as_numpy("OUTPUT0")[0, 0] == 2
        assert counted(asked, model)[model] >= 1
        answer = plain(asked, asked.get_model_config(model))
        assert (answer if asked.http else answer["config"])["name"] == model
        fails(REFUSED, "accepts no parameters", lambda: asked.load_model(model, config="{}"))


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize("backend", ["k-rest", "k-grpc"])
def test_kserve_is_asked_in_its_own_words(others: Infergate, form: str, backend: str) -> None:
    """Asked by Triton's message it would look for a model without a name. KServe 0.21 fails to
    answer over gRPC when it has loaded a model (it looks into a result that is None)."""
    with client(form, others.http, others.grpc) as asked:
        if backend == "k-rest":
            asked.load_model(f"{backend}.simple")
        else:
            with pytest.raises(InferenceServerException, match="Internal server error"):
                asked.load_model(f"{backend}.simple")
        with pytest.raises(InferenceServerException, match=r"ModelNotReady|not ready"):
            asked.load_model(f"{backend}.nosuch")


def test_a_client_of_kserve_is_answered_in_its_words(others: Infergate) -> None:
    method = "/inference.GRPCInferenceService/RepositoryModelLoad"
    with grpc.insecure_channel(others.grpc) as channel:
        load = channel.unary_unary(
            method,
            request_serializer=pb.KServeModelRequest.SerializeToString,
            response_deserializer=pb.KServeModelResponse.FromString,
        )
        answer = load(pb.KServeModelRequest(model_name="ml-rest.simple"), timeout=30)
    assert (answer.model_name, answer.is_done) == ("ml-rest.simple", True)

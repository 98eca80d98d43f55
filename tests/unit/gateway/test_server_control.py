"""Operations that change the state of servers: enabled, routed and audited."""

import json
import logging
from typing import Any

import pytest
from fakes import Memory, build_gateway, perform

from contexts import new_context
from gateway_errors import raises_kind
from infergate.access.rules import AccessRules
from infergate.backends.builtin import BuiltinBackend
from infergate.codecs.profiles import MLSERVER, TRITON
from infergate.core import messages
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import Acknowledgement, ModelLoadRequest, ModelUnloadRequest, Settings
from infergate.gateway.audit import log_denied
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.server_control import ControlPermissions
from infergate.routing.table import Rewrite, Route

ROUTES = (Route("*", "b"),)
CHANGES = (ModelLoadRequest("m"), ModelUnloadRequest("m"))
SETTINGS = (
    messages.TraceSettingsRequest(),
    messages.TraceSettingsRequest("m"),
    messages.LogSettingsRequest({"log_info": True}),
)


def gateway(*backends: Any, routes: Any = ROUTES, **allowed: bool) -> RoutingGateway:
    return build_gateway(
        *routes,
        backends=backends or (Memory("b", Acknowledgement()),),
        permissions=ControlPermissions(**allowed),
    )


async def assert_refused(
    tested_gateway: RoutingGateway,
    operation: messages.Operation,
    kind: Kind,
    match: str | None = None,
) -> None:
    with raises_kind(kind, match):
        await tested_gateway.perform(operation, new_context())


@pytest.mark.parametrize("operation", CHANGES)
async def test_loading_models_must_be_enabled(operation: messages.Operation) -> None:
    memory = Memory("b", Acknowledgement())
    text = "^explicit model load / unload is not allowed if polling is enabled$"
    await assert_refused(gateway(memory, settings=True), operation, Kind.NO_BACKEND, text)
    assert not memory.requests


@pytest.mark.parametrize("operation", SETTINGS)
async def test_settings_must_be_enabled(operation: messages.Operation) -> None:
    memory = Memory("b", Settings())
    memory.profile_of_all = TRITON
    text = "control: {settings: true}"
    await assert_refused(gateway(memory, repository=True), operation, Kind.UNSUPPORTED, text)
    assert not memory.requests


async def test_a_change_is_sent_to_every_server_of_the_models_route() -> None:
    owner, bystander = Memory("b", Acknowledgement()), Memory("c")
    owner.servers = 3
    routes = (
        Route("m", "b", version="2", rewrite=Rewrite("real", "1")),
        Route("/x-(.*)/", "b", rewrite=Rewrite(r"\1")),
        Route("*", "c"),
    )
    created = gateway(owner, bystander, routes=routes, repository=True)
    context = new_context()
    load = ModelLoadRequest("m", "repo", {"config": "{}"})
    assert await created.perform(load, context) == Acknowledgement()
    assert owner.requests == [ModelLoadRequest("real", "repo", {"config": "{}"})] * 3
    assert (context.record.route, context.record.backend) == ("m@2", "b")
    assert await created.perform(ModelUnloadRequest("x-y"), new_context()) == Acknowledgement()
    assert owner.requests[3:] == [ModelUnloadRequest("y")] * 3
    assert not bystander.requests


CONFIG = {
    "name": "m",
    "input": [{"name": "A", "dims": [1]}, {"name": "B"}, {"name": ["A"]}, "A"],
    "output": [{"name": "A"}, {"name": "OUT"}],
    "cc": {"é": 0.1, "name": "m"},
}
BACKEND_CONFIG = {
    "name": "real",
    "input": [{"name": "INPUT0", "dims": [1]}, {"name": "B"}, {"name": ["A"]}, "A"],
    "output": [{"name": "A"}, {"name": "OUTPUT0"}],
    "cc": {"é": 0.1, "name": "m"},
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (json.dumps(CONFIG), BACKEND_CONFIG),
        ('{"input": [{"name": "A"}]}', {"input": [{"name": "INPUT0"}]}),
        ('{"name": "m", "input": "A"}', {"name": "real", "input": "A"}),
        # These values are sent unchanged.
        ('{ "name": "real" , "input":[{"name":"INPUT0"}]}', None),
        ('{ "name": "another" }', None),
        ('{ "name": ["m"] }', None),
        ('["m"]', None),
        ('{"name": "m"', None),
        ("[" * 100_000, None),
        ("\udc80", None),
        (7, None),
        (True, None),
        (b"\xff", None),
    ],
)
async def test_a_configuration_to_load_has_the_backends_names(config: Any, expected: Any) -> None:
    memory = Memory("b", Acknowledgement())
    rewrite = Rewrite("real", inputs={"A": "INPUT0"}, outputs={"OUT": "OUTPUT0"})
    created = gateway(memory, routes=(Route("m", "b", rewrite=rewrite),), repository=True)
    files = {"file:1/model.py": b"x"}
    await created.perform(ModelLoadRequest("m", "", {"config": config, **files}), new_context())
    (load,) = memory.requests
    assert isinstance(load, ModelLoadRequest)
    sent = load.parameters["config"]
    assert (sent == config) if expected is None else (json.loads(sent) == expected)
    assert {key: load.parameters[key] for key in files} == files


async def test_a_model_without_route_is_not_changed() -> None:
    created = gateway(routes=(Route("m", "b"),), repository=True)
    await assert_refused(created, ModelLoadRequest("n"), Kind.NOT_FOUND)


@pytest.mark.parametrize("operation", [ModelLoadRequest("simple"), ModelUnloadRequest("simple")])
async def test_embedded_models_cannot_be_loaded_or_unloaded(operation: messages.Operation) -> None:
    created = gateway(BuiltinBackend("b"), repository=True)
    await assert_refused(created, operation, Kind.UNSUPPORTED, "'simple' is built into infergate")


async def test_the_trace_settings_of_a_model_are_sent_to_its_backend() -> None:
    owner, bystander = Memory("b", Settings({"trace_rate": ["1"]})), Memory("c", Settings())
    owner.profile_of_all = bystander.profile_of_all = TRITON
    routes = (Route("m", "b", rewrite=Rewrite("real")), Route("*", "c"))
    created = gateway(owner, bystander, routes=routes, settings=True)
    settings = await created.perform(
        messages.TraceSettingsRequest("m", {"trace_rate": ["1"]}), new_context()
    )
    assert settings == Settings({"trace_rate": ["1"]})
    assert owner.requests == [messages.TraceSettingsRequest("real", {"trace_rate": ["1"]})]
    assert not bystander.requests
    owner.profile_of_all = MLSERVER
    operation = messages.TraceSettingsRequest("m")
    await assert_refused(created, operation, Kind.UNSUPPORTED, "'b' has no trace settings")


@pytest.mark.parametrize(
    "operation", [messages.TraceSettingsRequest(), messages.LogSettingsRequest()]
)
async def test_server_settings_are_sent_to_every_backend_with_settings(
    operation: messages.Operation,
) -> None:
    one, other, third = (Memory(name, Settings({"x": name})) for name in "abc")
    one.profile_of_all = third.profile_of_all = TRITON
    other.profile_of_all = MLSERVER
    created = gateway(one, other, third, routes=(Route("*", "a"),), settings=True)
    context = new_context()
    assert await created.perform(operation, context) == Settings({"x": "a"})
    assert (one.requests, other.requests, third.requests) == ([operation], [], [operation])
    assert context.record.backend == "a,c"
    third.answer = GatewayError(Kind.BAD_REQUEST, "no such setting")
    await assert_refused(created, operation, Kind.BAD_REQUEST, "^no such setting$")
    one.profile_of_all = third.profile_of_all = MLSERVER
    await assert_refused(created, operation, Kind.UNSUPPORTED)


async def test_each_operation_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "infergate.audit")
    memory = Memory("b", Acknowledgement())
    created = gateway(memory, repository=True)
    await created.perform(
        ModelLoadRequest("m\nforged line" + "x" * 1000), new_context(request_id="r1")
    )
    memory.answer = GatewayError(Kind.NOT_FOUND, "no such model")
    await assert_refused(created, ModelUnloadRequest("m"), Kind.NOT_FOUND)
    memory.answer = RuntimeError("a bug")  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        await created.perform(ModelUnloadRequest("m"), new_context())
    succeeded, failed, broken = caplog.messages
    assert succeeded.startswith("model_load model='m\\nforged linexxx")
    assert "route='*' backend='b' peer=test request_id='r1' outcome=ok" in succeeded
    assert len(succeeded) < 400
    assert failed.endswith("outcome=not_found")
    assert broken.endswith("outcome=internal")


async def test_only_enabled_extensions_are_reported() -> None:
    for allowed, expected in (
        ({}, set()),
        ({"repository": True}, {"model_repository"}),
        ({"settings": True}, {"trace", "logging"}),
    ):
        query = messages.ServerMetadataRequest()
        metadata = await perform(gateway(**allowed), query, messages.ServerMetadata)
        assert {"model_repository", "trace", "logging"} & set(metadata.extensions) == expected
        assert {"model_configuration", "statistics"} <= set(metadata.extensions)


async def test_shared_memory_must_be_enabled() -> None:
    created = gateway()
    for name in ("", "r"):
        status = await created.perform(messages.SharedMemoryStatusRequest(name), new_context())
        assert status == messages.SharedMemoryStatus(())
        unregister = messages.SharedMemoryUnregisterRequest(name)
        assert await created.perform(unregister, new_context()) == Acknowledgement()
    register = messages.SharedMemoryRegisterRequest("r", "/k", 0, 64)
    text = "region 'r': shared memory is not supp"
    await assert_refused(created, register, Kind.UNSUPPORTED, text)


async def test_the_audit_log_has_identities_and_rejections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "infergate.audit")
    context = new_context(request_id="r1", permit=AccessRules(()).permit_for("jwt:idp:al'ice"))
    await gateway(Memory("b", Acknowledgement()), repository=True).perform(
        ModelLoadRequest("m"), context
    )
    denied = new_context()
    denied.record.model = "m\nforged" + "x" * 1000
    log_denied(ModelLoadRequest, denied, GatewayError(Kind.UNAUTHENTICATED, "credentials"))
    succeeded, rejected = caplog.messages
    assert succeeded.endswith("""outcome=ok identity="jwt:idp:al'ice\"""")
    assert rejected.startswith("model_load model='m\\nforgedxxx")
    assert rejected.endswith("outcome=unauthenticated")
    assert len(rejected) < 400

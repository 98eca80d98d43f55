"""The recorder of a running gateway: reloads, and its control through the admin listener."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infergate.config.schema import Config
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpRequest
from infergate.recording.encoding import RecordedExchange
from infergate.recording.reader import read_recording
from infergate.recording.recorder import Recorder
from infergate.recording.sampling import is_sampled
from infergate.runtime.assemble import assemble
from infergate.runtime.recording import RecordingAdmin
from infergate.runtime.recording_actions import RecordingAction, control_recorder
from infergate.runtime.running import RunningGateway
from infergate.runtime.worker_group import WorkerGroup
from running_gateways import quiet_config, serving

REQUEST = InferRequest("identity", inputs=(Tensor("INPUT0", Datatype.UINT8, (3,), b"abc"),))


def config_with(path: Path, record: Any = None, **recording: Any) -> Config:
    route = {"model": "identity", "backend": "demo"}
    return quiet_config(
        routes=(route if record is None else {**route, "record": record},),
        recording={"path": str(path), **recording},
    )


async def infer(gateway: RunningGateway, request_id: str = "id", **headers: str) -> None:
    context = RequestContext("peer", headers=headers, request_id=request_id)
    await gateway.gateway.perform(REQUEST, context)


def files_in(path: Path) -> list[Path]:
    return sorted(path.glob("*"))


def read_exchanges(path: Path) -> list[RecordedExchange]:
    parts = [part for file in files_in(path) for part in read_recording(file)]
    assert all(isinstance(part, RecordedExchange) for part in parts)
    return parts  # type: ignore[return-value]


def recorder_of(gateway: RunningGateway) -> Recorder:
    assert gateway.recorder is not None
    return gateway.recorder


async def test_a_route_with_record_is_recorded_with_the_settings_of_the_section(
    tmp_path: Path,
) -> None:
    group = WorkerGroup()
    config = config_with(tmp_path, {}, headers=("x-tenant",), redact={"zero": ("OUTPUT0",)})
    async with serving(config, group=group) as gateway:
        await infer(gateway, **{"x-tenant": "t", "authorization": "Bearer secret"})
    (record,) = read_exchanges(tmp_path)
    assert record.exchange.request == REQUEST
    assert record.exchange.headers == {"x-tenant": "t"}
    assert record.exchange.outcome.responses[0].outputs[0].data == bytes(3)
    assert record.redacted == ("OUTPUT0",)
    metrics = group.metrics.text().decode()
    assert 'infergate_recorded_exchanges_total{result="recorded"} 1.0' in metrics


async def test_a_route_without_record_is_not_recorded(tmp_path: Path) -> None:
    group = WorkerGroup()
    async with serving(config_with(tmp_path), group=group) as gateway:
        assert gateway.recorder is None
        await infer(gateway)
        assert "\ninfergate_recording_active " not in group.metrics.text().decode()
    assert read_exchanges(tmp_path) == []


async def test_only_the_route_with_record_is_recorded_if_labels_are_equal(tmp_path: Path) -> None:
    route = {"model": "identity", "backend": "demo"}
    tagged = {**route, "headers": {"x-tag": "a"}, "record": {}}
    config = quiet_config(
        routes=(tagged, {**route, "payload_log": {}}),
        recording={"path": str(tmp_path / "records")},
        payload_log={"file": {"path": str(tmp_path / "events")}},
    )
    async with serving(config) as gateway:
        for number, tag in enumerate("ab"):
            context = RequestContext("peer", headers={"x-tag": tag}, request_id=str(number))
            binding = gateway.gateway.bind("identity", "", context)
            await gateway.gateway.infer(REQUEST, binding, context)
    assert [record.exchange.request_id for record in read_exchanges(tmp_path / "records")] == ["0"]


async def test_inactive_recording_starts_on_request(tmp_path: Path) -> None:
    group = WorkerGroup()
    async with serving(config_with(tmp_path, {}, active=False), group=group) as gateway:
        await infer(gateway, "before")
        assert "\ninfergate_recording_active 0.0" in group.metrics.text().decode()
        await control_recorder(gateway.recorder, RecordingAction.START, 0)
        await infer(gateway, "between")
        assert "\ninfergate_recording_active 1.0" in group.metrics.text().decode()
        (status,) = await control_recorder(gateway.recorder, RecordingAction.STOP, 3)
        assert (status["worker"], status["active"]) == (3, False)
        assert status["exchanges"]["recorded"] == 1
        await infer(gateway, "after")
    assert [record.exchange.request_id for record in read_exchanges(tmp_path)] == ["between"]


async def test_without_a_recorder_an_action_does_nothing() -> None:
    for action in RecordingAction:
        assert await control_recorder(None, action, 0) == []


async def test_a_reload_keeps_the_recorder_while_its_section_is_unchanged(tmp_path: Path) -> None:
    async with serving(config_with(tmp_path, {})) as gateway:
        recorder = recorder_of(gateway)
        await recorder.stop()
        await gateway.reload(config_with(tmp_path, {"percent": 50}))
        assert gateway.recorder is recorder
        assert not recorder.is_active
        recorder.start()
        await infer(gateway)
        await recorder.stop()
    assert len(read_exchanges(tmp_path)) == is_sampled(50, "identity", REQUEST, "id")


async def test_a_reload_with_another_section_completes_the_old_files(tmp_path: Path) -> None:
    async with serving(config_with(tmp_path / "a", {})) as gateway:
        old = recorder_of(gateway)
        await infer(gateway, "old")
        retired = asyncio.Event()
        gateway.on_retired = retired.set
        await gateway.reload(config_with(tmp_path / "b", {}))
        await infer(gateway, "new")
        await retired.wait()
        assert not old.is_active
        assert not old._writer._thread.is_alive()
    assert [record.exchange.request_id for record in read_exchanges(tmp_path / "a")] == ["old"]
    assert [record.exchange.request_id for record in read_exchanges(tmp_path / "b")] == ["new"]


async def test_a_reload_without_record_ends_recording(tmp_path: Path) -> None:
    async with serving(config_with(tmp_path, {})) as gateway:
        old = recorder_of(gateway)
        retired = asyncio.Event()
        gateway.on_retired = retired.set
        await gateway.reload(config_with(tmp_path))
        await retired.wait()
        assert gateway.recorder is None
        assert not old._writer._thread.is_alive()


async def test_a_configuration_that_is_refused_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Recorder] = []
    init = Recorder.__init__

    def init_and_record(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
        init(recorder, *args, **kwargs)
        created.append(recorder)

    monkeypatch.setattr(Recorder, "__init__", init_and_record)
    monkeypatch.setattr("infergate.runtime.assemble._listener_specs", _fail)
    with pytest.raises(OSError, match="refused"):
        assemble(config_with(tmp_path, {}))
    assert [recorder._writer._thread.is_alive() for recorder in created] == [False]


def _fail(*_: Any) -> None:
    raise OSError("refused")


# ---- the admin listener


@dataclass
class Admin:
    """The recording paths of an admin listener, with simulated processes."""

    allows_actions: bool = True
    processes: int = 2
    actions: list[RecordingAction] = field(default_factory=list)

    async def control(self, action: RecordingAction) -> list[dict[str, Any]]:
        self.actions.append(action)
        return [{"worker": number} for number in range(self.processes)]

    async def respond(self, method: str, path: str, **headers: str) -> tuple[int, str]:
        app = RecordingAdmin(self.control, allows_actions=self.allows_actions, hosts=("ok.com",))
        wire = HttpRequest(method, path, headers={"host": "127.0.0.1", **headers})
        response = await app.respond(wire, RequestContext("peer"))
        return response.status, b"".join(map(bytes, response.body)).decode()


@pytest.mark.parametrize(
    ("method", "path", "action"),
    [
        ("GET", "/recording", RecordingAction.GET_STATUS),
        ("POST", "/recording/start", RecordingAction.START),
        ("POST", "/recording/stop", RecordingAction.STOP),
    ],
)
async def test_an_action_returns_the_status_of_every_process(
    method: str, path: str, action: RecordingAction, caplog: pytest.LogCaptureFixture
) -> None:
    admin = Admin()
    with caplog.at_level(logging.INFO, "infergate.audit"):
        status, body = await admin.respond(method, path)
    assert status == 200
    assert json.loads(body) == {"processes": [{"worker": 0}, {"worker": 1}]}
    assert admin.actions == [action]
    assert [entry.getMessage() for entry in caplog.records] == (
        [] if method == "GET" else [f"recording {path.rpartition('/')[2]} peer=peer"]
    )


async def test_actions_must_be_enabled_but_the_status_is_always_readable() -> None:
    admin = Admin(allows_actions=False)
    status, body = await admin.respond("POST", "/recording/start")
    assert (status, admin.actions) == (403, [])
    assert "'recording: {post: true}' enables it" in body
    assert (await admin.respond("GET", "/recording"))[0] == 200


async def test_other_websites_can_neither_change_nor_read_anything() -> None:
    admin = Admin()
    assert (await admin.respond("POST", "/recording/stop", origin="http://evil.com"))[0] == 403
    assert (await admin.respond("GET", "/recording", host="evil.com"))[0] == 403
    assert (await admin.respond("POST", "/recording/stop", host="evil.com"))[0] == 403
    assert admin.actions == []
    assert (await admin.respond("GET", "/recording", host="ok.com"))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/recording", 405),
        ("GET", "/recording/start", 405),
        ("GET", "/recording/stop", 405),
        ("GET", "/recording/nosuch", 404),
    ],
)
async def test_other_methods_and_paths_are_rejected(method: str, path: str, status: int) -> None:
    admin = Admin()
    assert (await admin.respond(method, path))[0] == status
    assert admin.actions == []


async def test_an_action_without_a_recorder_is_a_conflict() -> None:
    status, body = await Admin(processes=0).respond("POST", "/recording/start")
    assert status == 409
    assert "no route has 'record'" in body

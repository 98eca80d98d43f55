"""A worker that prepares a configuration. Its requests are handled in the process of the tests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from infergate.config.schema import Config
from infergate.runtime import plugins
from infergate.runtime.workers import worker_slot
from infergate.runtime.workers.channel import RequestFailedError
from infergate.runtime.workers.messages import PrepareConfig, WorkerCommand
from infergate.runtime.workers.process import _WorkerProcess
from infergate.runtime.workers.shared_files import SharedFiles
from infergate.runtime.workers.worker import Worker
from infergate.runtime.workers.worker_slot import WorkerSlot, prepare_all
from running_gateways import WatchedConstructor, quiet_config, serving


class LocalWorker:
    """A worker whose requests are handled in this process."""

    def __init__(self, process: _WorkerProcess) -> None:
        self._process = process
        self.channel = self
        self.kills = 0
        self.is_silent = False

    async def request(self, message: Any) -> Any:
        if self.is_silent:
            await asyncio.Event().wait()
        task = asyncio.ensure_future(self._process._handle(message))
        return await asyncio.shield(task)  # a cancelled caller does not end the work

    def hand_over_sockets(self, descriptors: Any) -> None:
        assert not descriptors

    def kill(self) -> None:
        self.kills += 1


class Harness:
    def __init__(self, worker: LocalWorker, process: _WorkerProcess) -> None:
        self.worker = worker
        self.slot = WorkerSlot(0, cast("Worker", worker), is_serving=True)
        self.process = process

    async def prepare(self, factor: int = 2) -> str | None:
        return await prepare_all([self.slot], PrepareConfig(config(factor), ()), ())

    @property
    def config(self) -> Config:
        return self.process._gateway.config


def config(factor: int = 2) -> Config:
    model = {"protocol": "python", "model": "plugin_kit:Double", "options": {"factor": factor}}
    return quiet_config(backends={"py": model}, routes=({"model": "*", "backend": "py"},))


@pytest.fixture
async def harness(constructor: WatchedConstructor) -> AsyncIterator[Harness]:
    """A worker whose plug-in hangs in its constructor if its factor is 3."""
    files = SharedFiles.create()
    worker_socket, supervisor_socket = socket.socketpair()
    with worker_socket, supervisor_socket:
        process = _WorkerProcess(0, worker_socket, files)
        process._handler = logging.NullHandler()
        async with serving(config()) as process._gateway:
            yield Harness(LocalWorker(process), process)
            constructor.release.set()
    files.close()


async def test_a_worker_with_a_plugin_that_hangs_is_not_killed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_slot, "_PREPARE_SECONDS", 0.02)
    monkeypatch.setattr(plugins, "CREATE_SECONDS", 0.03)
    problem = await harness.prepare(factor=3)
    assert problem == "worker 0 took longer than 0.05 s to prepare the configuration"
    assert harness.worker.kills == 0
    monkeypatch.undo()
    assert await harness.prepare(factor=4) == "", "the worker prepares another configuration"
    await harness.worker.request(WorkerCommand.APPLY_PREPARED)
    assert harness.config == config(factor=4)


async def test_a_worker_that_does_not_respond_is_killed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_slot, "_PREPARE_SECONDS", 0.01)
    monkeypatch.setattr(plugins, "CREATE_SECONDS", 0.0)
    monkeypatch.setattr(worker_slot, "_DISCARD_SECONDS", 0.01)
    harness.worker.is_silent = True
    problem = await harness.prepare()
    assert problem == "worker 0 took longer than 0.01 s to prepare the configuration and was killed"
    assert harness.worker.kills == 1


async def test_an_abandoned_reload_is_discarded_by_the_workers(
    harness: Harness, constructor: WatchedConstructor
) -> None:
    preparing = asyncio.create_task(harness.prepare(factor=3))
    await asyncio.to_thread(constructor.entered.wait, 60)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert harness.worker.kills == 0
    assert await harness.prepare(factor=4) == ""
    await harness.worker.request(WorkerCommand.DISCARD_PREPARED)
    assert harness.config == config()


async def test_a_request_for_a_discarded_configuration_fails(
    harness: Harness, constructor: WatchedConstructor
) -> None:
    request = asyncio.create_task(harness.worker.request(PrepareConfig(config(factor=3), ())))
    await asyncio.to_thread(constructor.entered.wait, 60)
    await harness.worker.request(WorkerCommand.DISCARD_PREPARED)
    with pytest.raises(RequestFailedError, match="was discarded"):
        await request

"""The supervisor's control of its workers. Worker processes are tested in tests/e2e."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

import pytest

from infergate.config.schema import Config
from infergate.core.errors import GatewayError
from infergate.gateway.model_catalogue import QUERY_TIMEOUT_SECONDS
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.running import ConfigRejectedError
from infergate.runtime.worker_group import ProcessEndedError
from infergate.runtime.workers.channel import ChannelClosedError
from infergate.runtime.workers.messages import PrepareConfig, WorkerCommand
from infergate.runtime.workers.shared_files import SharedFiles
from infergate.runtime.workers.sockets import ListenerSockets
from infergate.runtime.workers.supervisor import Supervisor
from infergate.runtime.workers.worker import Worker, describe_exit
from infergate.runtime.workers.worker_slot import WorkerSlot
from running_gateways import FREE, quiet_config
from waiting import until


def config(*, has_graphpipe: bool = False) -> Config:
    graphpipe = ({**FREE, "model": "identity"},) if has_graphpipe else ()
    listeners = {"http": FREE, "grpc": None, "admin": None, "graphpipe": graphpipe}
    return quiet_config(workers=2, listeners=listeners)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """A supervisor that has bound its sockets and has no workers."""
    unstarted = Supervisor(config(), ConfigHistory())
    unstarted._sockets = await unstarted._bind_all(unstarted.config, {})
    yield unstarted
    for slot in unstarted._slots:
        slot.worker = None
    await unstarted.stop(0)


def add_workers(supervisor: Supervisor, *workers: FakeWorker) -> None:
    """Let ``workers`` serve in the first slots."""
    for slot, worker in zip(supervisor._slots, workers, strict=False):
        slot.worker, slot.is_serving = cast("Worker", worker), True


@asynccontextmanager
async def restarting(supervisor: Supervisor) -> AsyncIterator[None]:
    """For up to 20 s, restart the second worker whenever it ends."""
    restarts = asyncio.create_task(supervisor._restart_loop(supervisor._slots[1]))
    async with asyncio.timeout(20):
        yield
    restarts.cancel()
    await asyncio.gather(restarts, return_exceptions=True)


class SocketSupervisor(Supervisor):
    """A supervisor that can bind sockets without workers, and keeps the sockets in ``bound``."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, ConfigHistory())
        self.bound: list[socket.socket] = []

    async def bind(self) -> None:
        self._sockets = await self._bind_all(self.config, {})

    async def _bind_all(
        self, config: Config, existing: Mapping[str, ListenerSockets]
    ) -> dict[str, ListenerSockets]:
        sockets = await super()._bind_all(config, existing)
        self.bound += [sock for item in sockets.values() for sock in item.bound_sockets.sockets]
        return sockets

    def has_closed_all(self) -> bool:
        return bool(self.bound) and all(sock.fileno() == -1 for sock in self.bound)


async def test_a_stop_during_a_reload_closes_all_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = SocketSupervisor(config())
    await supervisor.bind()
    prepare = supervisor._prepare

    async def stop_and_prepare(*arguments: Any) -> None:
        await supervisor.stop(0)
        await prepare(*arguments)

    monkeypatch.setattr(supervisor, "_prepare", stop_and_prepare)
    with pytest.raises(ConfigRejectedError, match="is stopping"):
        await supervisor.reload(config(has_graphpipe=True))
    assert not supervisor.config.listeners.graphpipe
    assert supervisor.has_closed_all()


async def test_a_stop_while_workers_apply_a_configuration_closes_all_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = SocketSupervisor(config(has_graphpipe=True))
    await supervisor.bind()
    request_all = supervisor._request_all

    async def stop_and_request(message: object, seconds: float = 1.0) -> list[Any]:
        if message is WorkerCommand.APPLY_PREPARED:
            await supervisor.stop(0)
        return await request_all(message, seconds)

    monkeypatch.setattr(supervisor, "_request_all", stop_and_request)
    await supervisor.reload(config())
    assert supervisor.has_closed_all()


async def test_an_unanswered_request_is_not_sent_to_another_worker(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GatewayError, match="no worker is serving"):
        await supervisor.run_action("try", {})
    requests: list[object] = []

    async def ignore(worker: object, *_: object) -> None:
        requests.append(worker)

    monkeypatch.setattr(supervisor, "_serving", lambda: [(None, "first"), (None, "second")])
    monkeypatch.setattr(supervisor, "_request", ignore)
    with pytest.raises(GatewayError, match="did not respond"):
        await supervisor.run_action("try", {})
    assert requests == ["first"]
    monkeypatch.undo()


async def test_readiness_requests_allow_time_for_backend_queries(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor._config = config().model_copy(update={"readiness": "strict"})
    timeouts: list[float] = []

    async def confirm(worker: object, message: object, seconds: float = 1.0) -> bool:
        timeouts.append(seconds)
        return True

    monkeypatch.setattr(supervisor, "_request", confirm)
    monkeypatch.setattr(supervisor, "_serving", lambda: [(None, None)] * 2)
    assert await supervisor._check_ready()
    assert min(timeouts) > QUERY_TIMEOUT_SECONDS
    monkeypatch.setattr(supervisor, "_serving", lambda: [(None, None)])
    assert not await supervisor._check_ready(), "readiness: strict"
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-40, "signal 40")],
)
def test_exit_codes_are_described(code: int, expected: str) -> None:
    assert describe_exit(code) == expected


async def test_sockets_are_not_handed_to_a_worker_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "infergate.runtime.workers.worker.python_command",
        lambda *_: [sys.executable, "-c", "raise SystemExit(7)"],
    )
    files = SharedFiles.create()
    worker = Worker()
    await worker.start(0, "own", files, reject_message)
    assert await worker.exited == 7
    with pytest.raises(ChannelClosedError):
        worker.hand_over_sockets([files.log_lock])
    worker.channel.close()
    files.close()


async def reject_message(message: Any) -> Any:
    raise AssertionError(message)


class FakeWorker:
    """A worker that records its requests. It has prepared a configuration when ``is_prepared`` is
    set."""

    def __init__(self) -> None:
        self.channel = self
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.started_at, self.pid, self.is_running = time.monotonic(), 1, False
        self.is_outdated = False
        self.requests: list[object] = []
        self.preparing, self.is_prepared = asyncio.Event(), asyncio.Event()
        self.kills = 0

    async def request(self, message: object) -> None:
        self.requests.append(message)
        if isinstance(message, PrepareConfig):
            self.preparing.set()
            await self.is_prepared.wait()

    def hand_over_sockets(self, descriptors: Any) -> None:
        pass

    def kill(self) -> None:
        self.kills += 1
        if self.is_running:
            self.exited.set_result(-signal.SIGKILL)
            self.is_running = False


async def test_a_worker_restarted_during_a_reload_prepares_the_new_configuration(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, replacement = (FakeWorker() for _ in range(3))
    add_workers(supervisor, first, second)

    async def start(slot: WorkerSlot) -> None:
        slot.worker, slot.is_serving = cast("Worker", replacement), True

    monkeypatch.setattr(supervisor, "_start_worker", start)
    async with restarting(supervisor):
        reload = asyncio.create_task(supervisor.reload(config()))
        await first.preparing.wait()
        second.is_prepared.set()
        second.exited.set_result(1)
        await until(lambda: supervisor._slots[1].worker is replacement)
        first.is_prepared.set()
        await replacement.preparing.wait()
        assert WorkerCommand.APPLY_PREPARED not in first.requests
        replacement.is_prepared.set()
        await reload
    assert first.requests[-1] == replacement.requests[-1] == WorkerCommand.APPLY_PREPARED
    assert [type(each) for each in first.requests].count(PrepareConfig) == 1
    assert not first.kills + replacement.kills


class CrashingWorker(FakeWorker):
    """A worker that ends when it prepares a configuration."""

    async def request(self, message: object) -> None:
        self.requests.append(message)
        if isinstance(message, PrepareConfig):
            raise ChannelClosedError("the other process has ended")


@pytest.mark.parametrize(
    ("kinds", "is_applied"),
    [((CrashingWorker, CrashingWorker), False), ((CrashingWorker, FakeWorker), True), ((), True)],
    ids=["all workers end", "one of two ends", "no worker serves"],
)
async def test_a_configuration_is_rejected_if_all_workers_end_while_they_prepare_it(
    supervisor: Supervisor, kinds: tuple[type[FakeWorker], ...], *, is_applied: bool
) -> None:
    workers = [kind() for kind in kinds]
    for worker in workers:
        worker.is_prepared.set()
    add_workers(supervisor, *workers)
    previous = supervisor.config
    with nullcontext() if is_applied else pytest.raises(ConfigRejectedError, match="all workers"):
        await supervisor.reload(config())
    assert (supervisor.config is previous) is not is_applied


@pytest.mark.parametrize("kind", [CrashingWorker, FakeWorker])
async def test_the_replacement_of_an_ended_worker_decides_the_reload(
    supervisor: Supervisor, kind: type[FakeWorker]
) -> None:
    slot = supervisor._slots[0]
    replacement = kind()
    replacement.is_prepared.set()

    class ReplacedWorker(CrashingWorker):
        async def request(self, message: object) -> None:
            slot.worker = cast("Worker", replacement)
            await super().request(message)

    add_workers(supervisor, ReplacedWorker())
    rejected = pytest.raises(ConfigRejectedError, match="all workers")
    with rejected if kind is CrashingWorker else nullcontext():
        await supervisor.reload(config())
    assert any(isinstance(message, PrepareConfig) for message in replacement.requests)


async def test_a_reload_waits_until_the_gateway_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervisor = Supervisor(config(), ConfigHistory())
    workers: list[FakeWorker] = []
    may_serve = asyncio.Event()

    async def start(slot: WorkerSlot) -> None:
        worker = FakeWorker()
        worker.is_running = True
        worker.is_prepared.set()
        workers.append(worker)
        slot.worker = cast("Worker", worker)
        await may_serve.wait()
        slot.is_serving = True

    monkeypatch.setattr(supervisor, "_start_worker", start)
    async with asyncio.timeout(20):
        starting = asyncio.create_task(supervisor.start())
        await until(lambda: len(workers) >= 2)
        reload = asyncio.create_task(supervisor.reload(config()))
        done, _ = await asyncio.wait({reload}, timeout=0.2)
        assert not done
        may_serve.set()
        await starting
        await reload
    assert not sum(each.kills for each in workers)
    assert {each.requests[-1] for each in workers} == {WorkerCommand.APPLY_PREPARED}
    for each in workers:
        each.is_running = False
    await supervisor.stop(0)


async def test_a_reload_does_not_wait_for_a_worker_that_is_starting(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, ended, starting = (FakeWorker() for _ in range(3))
    add_workers(supervisor, serving, ended)

    async def start(slot: WorkerSlot) -> None:
        starting.is_running = True
        slot.worker = cast("Worker", starting)
        await asyncio.Event().wait()

    monkeypatch.setattr(supervisor, "_start_worker", start)
    serving.is_prepared.set()
    async with restarting(supervisor):
        ended.exited.set_result(1)
        await until(lambda: starting.is_running)
        await supervisor.reload(config())
    assert (serving.kills, starting.kills) == (0, 1), "the starting worker is outdated"


async def test_a_worker_that_is_ended_because_it_is_outdated_is_not_reported_as_failed(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serving, crashed, outdated, last = (FakeWorker() for _ in range(4))
    add_workers(supervisor, serving, crashed)
    has_served = asyncio.Event()

    async def start(slot: WorkerSlot) -> None:
        if slot.worker is cast("Worker", crashed):
            outdated.is_running = True
            slot.worker = cast("Worker", outdated)
            raise ProcessEndedError("worker 1 ended: SIGKILL", await outdated.exited)
        slot.worker, slot.is_serving = cast("Worker", last), True
        has_served.set()

    monkeypatch.setattr(supervisor, "_start_worker", start)
    serving.is_prepared.set()
    caplog.set_level(logging.INFO, "infergate")
    async with restarting(supervisor):
        crashed.exited.set_result(3)
        await until(lambda: outdated.is_running)
        await supervisor.reload(config())
        await has_served.wait()
        await asyncio.sleep(0)
    logged = [getattr(record, "event", "") for record in caplog.records]
    assert logged == ["worker_ended", "worker_outdated", "worker_serves"]
    events = [event["kind"] for event in supervisor._events.as_json(0)]
    assert events == ["worker_started", "worker_ended", "start"]

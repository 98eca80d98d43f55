"""Several workers that accept from one socket, in one process."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator

import pytest

from infergate.transport.server import accept as accept_module
from infergate.transport.server.accept import Acceptor
from infergate.transport.worker_loads import WorkerLoads
from waiting import until


class Worker:
    def __init__(self, listener: socket.socket, file: int, index: int) -> None:
        self.connections: set[asyncio.Protocol] = set()
        self.loads = WorkerLoads(file, index)
        self.listener = listener
        self.acceptor: Acceptor | None = None

    def accept(self) -> None:
        self.acceptor = Acceptor(
            [self.listener], self.loads, lambda: Connection(self), lambda: len(self.connections)
        )

    def close(self) -> None:
        assert self.acceptor is not None
        self.acceptor.close()


class Connection(asyncio.Protocol):
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.worker.connections.add(self)
        transport.write(b"hello")

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.connections.discard(self)
        assert self.worker.acceptor is not None
        self.worker.acceptor.update_load()


@pytest.fixture
async def workers() -> AsyncIterator[list[Worker]]:
    file = WorkerLoads.create_file(3)
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    listener.setblocking(False)
    started = [Worker(listener.dup(), file, index) for index in range(3)]
    listener.close()
    yield started
    for each in started:
        if each.acceptor is not None:
            each.close()
        each.listener.close()
    os.close(file)


async def open_connections(worker: Worker, count: int) -> list[asyncio.StreamWriter]:
    async def connect() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(*worker.listener.getsockname())
        assert await reader.readexactly(5) == b"hello"
        return writer

    async with asyncio.timeout(20):
        return await asyncio.gather(*(connect() for _ in range(count)))


async def close_all(writers: list[asyncio.StreamWriter]) -> None:
    for each in writers:
        each.close()
        await each.wait_closed()


async def test_connections_spread_evenly(workers: list[Worker]) -> None:
    for each in workers:
        each.accept()
    writers = await open_connections(workers[0], 12)
    assert sorted(len(each.connections) for each in workers) in ([4, 4, 4], [3, 4, 5])
    assert workers[0].loads.counts() == tuple(len(each.connections) for each in workers)
    await close_all(writers)


async def test_a_later_worker_gets_the_new_connections(workers: list[Worker]) -> None:
    workers[0].accept()
    before = await open_connections(workers[0], 6)
    assert len(workers[0].connections) == 6
    assert workers[0].loads.counts() == (6, -1, -1)
    workers[1].accept()
    after = await open_connections(workers[0], 6)
    assert len(workers[1].connections) >= 5
    await close_all(before + after)
    await until(lambda: workers[0].loads.counts() == (0, 0, -1))


async def test_a_worker_that_does_not_accept_delays_no_connection(workers: list[Worker]) -> None:
    workers[0].accept()
    workers[1].loads.report(0)  # present, but does not accept
    writers = await open_connections(workers[0], 100)
    assert len(workers[0].connections) == 100
    await close_all(writers)


async def test_connections_do_not_wait_for_an_absent_worker(workers: list[Worker]) -> None:
    workers[1].loads.report(0)
    workers[0].accept()
    workers[0].loads.mark_absent(1)
    writers = await open_connections(workers[0], 3)
    assert not workers[0].loads.is_overloaded
    await close_all(writers)


async def test_a_closed_worker_leaves_connections_to_other_workers(workers: list[Worker]) -> None:
    workers[0].accept()
    workers[0].close()
    assert workers[0].loads.counts() == (-1, -1, -1)
    reader, writer = await asyncio.open_connection(*workers[0].listener.getsockname())
    workers[1].accept()  # the connection waited in the backlog
    async with asyncio.timeout(20):
        assert await reader.readexactly(5) == b"hello"
    await close_all([writer])


class ExhaustedSocket:
    """A listening socket whose ``accept`` fails once because the system has no descriptor left."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.failures = 1

    def fileno(self) -> int:
        return self.listener.fileno()

    def getsockname(self) -> tuple[str, int]:
        name: tuple[str, int] = self.listener.getsockname()
        return name

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.listener.accept()

    def close(self) -> None:
        self.listener.close()


async def test_accepting_resumes_after_descriptors_are_exhausted(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accept_module, "_RETRY_AFTER_EXHAUSTION", 0.05)
    workers[0].listener = ExhaustedSocket(workers[0].listener)  # type: ignore[assignment]
    workers[0].accept()
    writers = await open_connections(workers[0], 1)
    assert "cannot accept a connection: [Errno 24] Too many open files" in caplog.text
    await close_all(writers)

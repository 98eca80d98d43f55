"""Socket files, and HTTP over Unix sockets."""

# ruff: noqa: ASYNC240 - local files

import asyncio
import errno
import fcntl
import socket
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from transport_kit import LIMITS, Engine, HttpEcho, Peer

from infergate.core.wire import HttpRequest, join_parts
from infergate.transport.base import Address, Endpoint
from infergate.transport.compat.aiohttp_server import AiohttpServer
from infergate.transport.http1.client import H1Upstream
from infergate.transport.net.unix_socket import SocketFile
from infergate.transport.server.admission import Admission
from infergate.transport.server.listener import HttpAppListener

REQUEST = b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gp.sock"


def server_at(path: Path, mode: int = 0o660) -> AiohttpServer:
    address = Address(unix=str(path), mode=mode)
    return AiohttpServer(address, HttpEcho(), LIMITS, Admission(LIMITS))


async def check_serving(path: Path) -> None:
    peer = Peer(*await asyncio.open_unix_connection(str(path)))
    assert (await peer.request(REQUEST)).body == b"POST hi"
    await peer.close()


@pytest.fixture
async def server(engine: Engine, path: Path) -> AsyncIterator[HttpAppListener]:
    server = engine.http(Address(unix=str(path)), HttpEcho(), LIMITS, Admission(LIMITS))
    await server.start()
    yield server
    await server.stop(0)


async def test_http_is_served_over_a_unix_socket(server: HttpAppListener, path: Path) -> None:
    assert str(server.address) == f"unix:{path}"
    peer = Peer(*await asyncio.open_unix_connection(str(path)))
    for _ in range(2):
        assert (await peer.request(REQUEST)).body == b"POST hi"
    app = server.app
    assert isinstance(app, HttpEcho)
    assert {call.peer for call in app.calls} == {"unix"}
    await peer.close()


async def test_the_client_connects_to_a_unix_socket(server: HttpAppListener, path: Path) -> None:
    upstream = H1Upstream(LIMITS)
    wire = HttpRequest("POST", "/x", body=[b"hi"])
    for _ in range(2):
        response = await upstream.exchange(wire, Endpoint(unix=str(path), path="/base"), 5)
        assert join_parts(response.body) == b"POST hi"
    app = server.app
    assert isinstance(app, HttpEcho)
    assert app.requests[0].path == "/base/x"
    assert app.requests[0].headers["host"] == "localhost"
    assert len(server._connections) == 1
    await upstream.close()


async def test_the_socket_file_has_its_mode_and_is_removed_on_stop(path: Path) -> None:
    server = server_at(path, 0o600)
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await server.stop(0)
    assert not path.exists()


async def test_a_stale_socket_file_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    server = server_at(path)
    await server.start()
    await check_serving(path)
    await server.stop(0)


async def test_a_socket_in_use_is_an_error(server: HttpAppListener, path: Path) -> None:
    with pytest.raises(OSError, match="address already in use") as caught:
        await server_at(path).start()
    assert caught.value.errno == errno.EADDRINUSE
    await check_serving(path)


async def test_a_socket_with_a_full_backlog_is_in_use(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        clients = []
        try:
            while True:
                client = socket.socket(socket.AF_UNIX)
                clients.append(client)
                client.setblocking(False)
                client.connect(str(path))
        except BlockingIOError:
            pass
        with pytest.raises(OSError, match="address already in use"):
            await server_at(path).start()
        for client in clients:
            client.close()


async def test_a_bound_socket_that_does_not_listen_is_in_use(path: Path) -> None:
    first = SocketFile(str(path), 0o660)
    bound_socket = first.bind()
    with pytest.raises(OSError, match="address already in use") as caught:
        await server_at(path).start()
    assert caught.value.errno == errno.EADDRINUSE
    bound_socket.listen()
    peer = Peer(*await asyncio.open_unix_connection(str(path)))
    await peer.close()
    bound_socket.close()
    first.remove()
    assert list(path.parent.iterdir()) == []


async def test_a_socket_file_of_a_dead_process_is_replaced(path: Path) -> None:
    """The system has released the lock, although the file exists."""
    code = (
        "import os, sys; from infergate.transport.net.unix_socket import SocketFile;"
        "SocketFile(sys.argv[1], 0o660).bind(); os._exit(0)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(path))
    assert await process.wait() == 0
    assert len(list(path.parent.iterdir())) == 2
    server = server_at(path)
    await server.start()
    await check_serving(path)
    await server.stop(0)
    assert list(path.parent.iterdir()) == []


def test_a_lock_on_a_deleted_file_is_taken_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may delete the file between ``open`` and ``flock``."""
    flock, lock_file = fcntl.flock, path.with_name(path.name + ".lock")

    def delete_and_lock(lock: int, operation: int) -> None:
        if lock_file.exists() and not operations:
            lock_file.unlink()
        operations.append(operation)
        flock(lock, operation)

    operations: list[int] = []
    monkeypatch.setattr(fcntl, "flock", delete_and_lock)
    file = SocketFile(str(path), 0o660)
    bound_socket = file.bind()
    assert len(operations) == 2
    assert lock_file.exists()
    bound_socket.close()
    file.remove()


async def test_one_of_many_concurrent_servers_gets_the_path(path: Path) -> None:
    servers = [server_at(path) for _ in range(20)]
    outcomes = await asyncio.gather(*(each.start() for each in servers), return_exceptions=True)
    assert [outcome for outcome in outcomes if outcome is None] == [None]
    await check_serving(path)
    for each in servers:
        await each.stop(0)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
async def test_files_other_than_sockets_are_not_replaced(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("precious")
    else:
        path.mkdir()
    with pytest.raises(FileExistsError, match="not a socket"):
        await server_at(path).start()
    assert list(path.parent.iterdir()) == [path]


async def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await server_at(tmp_path / "none" / "gp.sock").start()


async def test_a_socket_file_of_another_process_is_not_removed(path: Path) -> None:
    server = server_at(path)
    await server.start()
    moved = path.with_name("moved")
    path.rename(moved)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        await server.stop(0)
        assert path.exists()

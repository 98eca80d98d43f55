"""Flow control between a client that reads slowly and the protocol behind a ``TlsTransport``."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from infergate.core.limits import DEFAULT_LIMITS, KIB
from infergate.transport.base import Address
from infergate.transport.http1.server import H1Server
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import ConnectionCount, ConnectionGate
from infergate.transport.server.tls_transport import TlsBuffers, TlsTransport
from infergate.transport.tls.server_context import ServerTlsContext
from tls_kit import Authority, server_tls

PIECE = 256 * KIB
"""Maximum bytes that are encrypted at once."""


class SlowSocket(asyncio.transports._FlowControlMixin, asyncio.Transport):
    """A socket's transport with asyncio's flow control. It sends only when ``take`` is called."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)}, asyncio.get_running_loop())
        self._protocol = protocol
        self._buffer = bytearray()
        self.peak = 0

    def write(self, data: Any) -> None:
        self._buffer += data
        self.peak = max(self.peak, len(self._buffer))
        self._maybe_pause_protocol()

    def take(self, size: int) -> bytes:
        data_read = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._maybe_resume_protocol()
        return data_read

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def is_closing(self) -> bool:
        return False


class App(asyncio.Protocol):
    """Records whether it is paused."""

    is_paused = False

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


class Connection:
    """A client's side of a connection to an ``App`` behind a ``TlsTransport``."""

    def __init__(self, authority: Authority) -> None:
        certificates = ServerTlsContext("http", server_tls(authority.server()), ["http/1.1"])
        gate = ConnectionGate("http", ConnectionCount(), certificates)
        host = H1Server(
            Address("127.0.0.1", 0), None, DEFAULT_LIMITS, Admission(DEFAULT_LIMITS), gate
        )  # type: ignore[arg-type] # no request is served
        host.loop = asyncio.get_running_loop()
        self.app = App()
        self.transport = TlsTransport(host, self.app, TlsBuffers())
        self.socket = SlowSocket(self.transport)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=authority.file)
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.transport.connection_made(self.socket)
        for _ in range(2):
            self._handshake()

    def _handshake(self) -> None:
        with suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
        data = self._outgoing.read()
        self.transport.get_buffer(-1)[: len(data)] = data
        self.transport.buffer_updated(len(data))
        self._incoming.write(self.socket.take(1 << 20))

    async def read(self, step: int) -> bytes:
        """Return all bytes that the client can read; ``step`` is the number of encrypted bytes read
        at a time.
        """
        received = bytearray()
        while self.socket.get_write_buffer_size():
            self._incoming.write(self.socket.take(step))
            with suppress(ssl.SSLWantReadError):
                while True:
                    received += self._ssl.read(1 << 20)
            await asyncio.sleep(0)
        return bytes(received)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder: Path = tmp_path_factory.mktemp("authority")
    return Authority(folder)


@pytest.mark.parametrize("excess", [1, 15, 17, 40, 63, 65, 200])
@pytest.mark.parametrize("step", [1000, 20_000])
async def test_the_app_is_resumed_when_the_client_has_read(
    authority: Authority, excess: int, step: int
) -> None:
    """The last ``excess`` KiB of the response fit into the socket's buffer, so that the socket
    neither pauses nor resumes again."""
    connection = Connection(authority)
    data = bytes(range(256)) * (2 * PIECE // 256 + 4 * excess)
    connection.transport.write(data)
    assert connection.app.is_paused
    assert connection.socket.peak < PIECE + 2 * KIB, "the remaining bytes wait as plain text"
    assert await connection.read(step) == data
    assert not connection.app.is_paused


async def test_the_app_is_resumed_at_the_configured_watermark(authority: Authority) -> None:
    connection = Connection(authority)
    connection.transport.set_write_buffer_limits(high=4 * KIB)
    data = bytes(5 * KIB)
    connection.transport.write(data)
    assert connection.app.is_paused
    connection.socket.take(3 * KIB)
    await asyncio.sleep(0)
    assert connection.app.is_paused
    connection.socket.take(2 * KIB)
    await asyncio.sleep(0)
    assert not connection.app.is_paused


async def test_the_app_is_paused_and_resumed_at_the_watermarks(authority: Authority) -> None:
    connection = Connection(authority)
    while not connection.app.is_paused:
        connection.transport.write(bytes(10 * KIB))
    written = connection.transport.get_write_buffer_size()
    assert 64 * KIB < written < 80 * KIB
    while connection.app.is_paused:
        connection.socket.take(1000)
        await asyncio.sleep(0)
    assert 12 * KIB < connection.transport.get_write_buffer_size() <= 16 * KIB

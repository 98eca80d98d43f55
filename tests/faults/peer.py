"""Raw sockets: a client that sends bytes that no library would send, and a backend that runs a
script."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from faults.watch import SECONDS


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        error = self.json["error"]
        assert isinstance(error, str)
        return error


class Client:
    """A connection to ``host:port`` or ``unix:path``. Every wait times out after SECONDS."""

    def __init__(self, address: str) -> None:
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(SECONDS)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            self.socket = socket.create_connection(_pair(address), timeout=SECONDS)
        self._held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> None:
        """Send a POST request, or a request with another ``method``."""
        fields = {"Host": "x", "Content-Length": str(len(body)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.send(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)

    def reset(self) -> None:
        """Close with a RST instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self) -> bytes:
        """Return the next bytes, or no bytes at the end of the stream."""
        if self._held:
            held, self._held = self._held, b""
            return held
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def exactly(self, count: int) -> bytes:
        data, self._held = self._held, b""
        while len(data) < count:
            more = self.receive()
            if not more:
                raise EOFError(f"expected {count} bytes, but the peer closed after {data!r}")
            data += more
        data, self._held = data[:count], data[count:]
        return data

    def until(self, mark: bytes) -> bytes:
        data = b""
        while mark not in data:
            more = self.receive()
            if not more:
                raise EOFError(f"{mark!r} expected, ended after {data!r}")
            data += more
        end = data.index(mark) + len(mark)
        data, self._held = data[:end], data[end:]
        return data

    def read_to_end(self) -> bytes:
        """Return everything until the other side closes."""
        return b"".join(iter(self.receive, b""))

    def answer(self) -> Answer:
        """Return the next HTTP response."""
        first, *lines = self.until(b"\r\n\r\n").decode().rstrip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.exactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split()[1]), headers, body)

    def _chunk(self) -> bytes:
        """Return the next chunk of a body. The last chunk is empty."""
        size = int(self.until(b"\r\n"), 16)
        return self.exactly(size + 2)[:-2]


def post(
    address: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> Answer:
    with Client(address) as client:
        client.post(path, body, headers, method)
        return client.answer()


def get(address: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    return post(address, path, b"", headers, "GET")


# ---- a backend -------------------------------------------------------------------------------


class Gone(Exception):  # noqa: N818
    """The gateway closed the connection."""


class Connection:
    """A connection from the gateway to a scripted backend."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._held = b""

    def read(self, count: int) -> bytes:
        while len(self._held) < count:
            self._more()
        data, self._held = self._held[:count], self._held[count:]
        return data

    def _more(self) -> None:
        try:
            more = self._socket.recv(65536)
        except OSError as error:
            raise Gone from error
        if not more:
            raise Gone
        self._held += more

    def head(self) -> int:
        """Wait for the head of an HTTP request. Return its length."""
        while b"\r\n\r\n" not in self._held:
            self._more()
        return self._held.index(b"\r\n\r\n") + 4

    def request(self) -> bytes:
        """Return an HTTP request, with its head and body."""
        end = self.head()
        length = 0
        for line in self._held[:end].split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return self.read(end + length)

    def write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Gone from error

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a RST instead of a FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def wait_closed(self) -> None:
        """Wait until the gateway has closed its side."""
        with contextlib.suppress(Gone):
            while True:
                self._more()

    def cut(self) -> None:
        """Shut down both directions, which wakes a waiting thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


@dataclass
class Backend:
    """A server that runs ``script`` for each connection, in a thread. ``requests`` holds the
    requests that scripts recorded."""

    address: str
    script: Script
    connections: int = 0
    requests: list[Any] = field(default_factory=list)
    _open: dict[Connection, threading.Thread] = field(default_factory=dict)

    def use(self, script: Script) -> None:
        """Use another script for new connections, as soon as the gateway has closed the old
        connections."""
        self.script = script
        for connection, thread in tuple(self._open.items()):
            with contextlib.suppress(OSError):
                connection.half_close()
            thread.join(SECONDS)
            assert not thread.is_alive()

    @property
    def open(self) -> int:
        """The number of connections whose scripts still run."""
        return len(self._open)

    def accept_from(self, listener: socket.socket) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            connection = Connection(accepted)
            thread = threading.Thread(target=self._serve, args=(connection, accepted), daemon=True)
            self._open[connection] = thread
            thread.start()

    def _serve(self, connection: Connection, accepted: socket.socket) -> None:
        with accepted, contextlib.suppress(Gone):
            self.script(connection, self)
        del self._open[connection]

    def cut(self) -> None:
        """Close all connections."""
        for connection, thread in tuple(self._open.items()):
            connection.cut()
            thread.join(SECONDS)


Script = Callable[[Connection, Backend], None]


@contextmanager
def scripted(script: Script) -> Iterator[Backend]:
    """Run a backend on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    backend = Backend(f"127.0.0.1:{listener.getsockname()[1]}", script)
    accepting = threading.Thread(target=backend.accept_from, args=(listener,), daemon=True)
    accepting.start()
    try:
        yield backend
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        backend.cut()


def http_answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/json\r\n{headers}\r\n".encode()
        + body
    )


GOOD_BODY = (
    b'{"model_name":"m","model_version":"1","outputs":'
    b'[{"name":"OUTPUT0","datatype":"INT32","shape":[1],"data":[7]}]}'
)
"""The body of a valid response: OUTPUT0, which is an INT32 of 7."""


def silent(connection: Connection, backend: Backend) -> None:
    """Record the request, and send no response."""
    connection.request()
    backend.requests.append("received")
    connection.wait_closed()


def good_http(connection: Connection, backend: Backend) -> None:
    """Record every request, and respond to it."""
    while True:
        backend.requests.append(connection.request())
        connection.write(http_answer(GOOD_BODY))

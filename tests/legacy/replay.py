"""Replays recorded bytes to any server, and returns its responses.

*Rule 1.* The HTTP requests of a recorded connection are sent one at a time, because the legacy
servers lose pipelined requests. gRPC calls are also sent one at a time, because the requests of a
sequence have an order. *Rule 2.* Reading ends when the responses are complete; nothing waits for a
fixed time. *Rule 3.* A recorded client has not seen the settings of this server, so it does not
acknowledge them: its header blocks may use a dynamic table that this server has switched off (RFC
7541, 4.2)."""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from hpack import Decoder

from faults import h2

_SECONDS = 60.0
_HEAD_END = b"\r\n\r\n"
_PADDED, _PRIORITY = 0x8, 0x20
_MAX_TABLE = 1 << 20


@dataclass(frozen=True)
class Response:
    """An HTTP response; ``raw`` is all of its bytes."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    raw: bytes

    @property
    def code(self) -> int:
        return int(self.line.split()[1])

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each.lower() == name.lower()), None)


class HTTP:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _SECONDS)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def response(self) -> Response | None:
        """Return the next response, or None if the server closed the connection."""
        while _HEAD_END not in self._buffer:
            if not self._receive():
                assert not self._buffer, f"the connection ended within {self._buffer!r}"
                return None
        head, _, rest = self._buffer.partition(_HEAD_END)
        line, *lines = head.decode("latin-1").split("\r\n")
        pairs = tuple((name, value.strip()) for name, _, value in (x.partition(":") for x in lines))
        head_only = Response(line, pairs, b"", head + _HEAD_END)
        length = head_only.header("content-length")
        if length is None and head_only.code != 100:
            while self._receive():
                pass
            rest = self._buffer[len(head_only.raw) :]
        size = int(length or 0) if length or head_only.code == 100 else len(rest)
        while len(self._buffer) < len(head_only.raw) + size:
            assert self._receive(), f"the connection ended within {self._buffer!r}"
        body = self._buffer[len(head_only.raw) : len(head_only.raw) + size]
        self._buffer = self._buffer[len(head_only.raw) + size :]
        return Response(line, pairs, body, head_only.raw + body)

    def rest(self) -> bytes:
        """Shut down sending, and return all bytes until the server closes the connection."""
        self._socket.shutdown(socket.SHUT_WR)
        return self.until_closed()

    def until_closed(self) -> bytes:
        while self._receive():
            pass
        buffered, self._buffer = self._buffer, b""
        return buffered

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)


def requests_of(sent: bytes) -> Iterator[bytes]:
    while sent:
        head, _, rest = sent.partition(_HEAD_END)
        size = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        yield head + _HEAD_END + rest[:size]
        sent = rest[size:]


def responses_of(received: bytes) -> list[Response]:
    """Return the responses that a server sent over a connection."""
    with _RecordedResponses(received) as recorded:
        return list(iter(recorded.response, None))


class _RecordedResponses(HTTP):
    def __init__(self, received: bytes) -> None:
        self._buffer = received

    def __exit__(self, *_: object) -> None: ...

    def _receive(self) -> bool:
        return False


def http(address: str, sent: bytes) -> list[Response]:
    """Return the responses to a recorded connection's requests, up to a missing response."""
    received = []
    with HTTP(address) as connection:
        for request in requests_of(sent):
            connection.send(request)
            response = connection.response()
            if response is None:
                break
            received.append(response)
    return received


@dataclass
class Stream:
    """One side of a gRPC call: its messages, and its header fields including trailers."""

    messages: list[bytes] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    data: bytes = b""


def grpc(address: str, sent: bytes) -> dict[int, Stream]:
    """Return a server's responses to the calls of a recorded connection, by stream number.

    Before a call starts, the responses to all calls that the client has ended are read.
    """
    host, _, port = address.rpartition(":")
    calls: dict[int, Stream] = {}
    with (
        socket.create_connection((host, int(port)), _SECONDS) as connection,
        connection.makefile("rb") as reader,
    ):
        frames_read = _collect(h2.frames(lambda size: _exactly(reader.read(size), size)), calls)

        def wait(numbers: set[int]) -> None:
            while not all(number in calls and calls[number].ended for number in numbers):
                if next(frames_read, None) is None:
                    return

        started: set[int] = set()
        ended: set[int] = set()
        connection.sendall(sent[: len(h2.PREFACE)])
        for frame in _until_eof(h2.frames(_reader(sent[len(h2.PREFACE) :]))):
            if frame.kind == h2.HEADERS and frame.stream not in started:
                wait(ended)
            started.add(frame.stream)
            if frame.kind in (h2.HEADERS, h2.DATA) and frame.flags & h2.END_STREAM:
                ended.add(frame.stream)
            # Rule 3: the blocks after an ACK were encoded for the recorded server's settings.
            if frame.kind != h2.SETTINGS or not frame.flags & h2.ACK:
                connection.sendall(h2.frame(*frame))
        wait(ended)
    return calls


def streams(recorded: bytes, *, client: bool) -> dict[int, Stream]:
    """Return the calls of one direction of a recorded connection."""
    calls: dict[int, Stream] = {}
    for _ in _collect(h2.frames(_reader(recorded[len(h2.PREFACE) * client :])), calls):
        pass
    return calls


def _reader(data: bytes) -> Callable[[int], bytes]:
    read = io.BytesIO(data).read
    return lambda size: _exactly(read(size), size)


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise EOFError
    return data


def _until_eof(frames: Iterable[h2.Frame]) -> Iterator[h2.Frame]:
    with contextlib.suppress(EOFError):
        yield from frames


def _collect(frames: Iterable[h2.Frame], calls: dict[int, Stream]) -> Iterator[bool]:
    """Add each frame to its stream, and yield after each frame."""
    decoder = Decoder()
    decoder.max_allowed_table_size = _MAX_TABLE  # Rule 3
    for frame in _until_eof(frames):
        if frame.stream and frame.kind in (h2.DATA, h2.HEADERS, h2.RST_STREAM):
            _add_frame(calls.setdefault(frame.stream, Stream()), frame, decoder)
        yield True


def _add_frame(stream: Stream, frame: h2.Frame, decoder: Decoder) -> None:
    assert not frame.flags & (_PADDED | _PRIORITY), frame
    if frame.kind == h2.HEADERS:
        assert frame.flags & h2.END_HEADERS, frame
        stream.fields.update(decoder.decode(frame.payload))
    if frame.kind == h2.DATA:
        stream.data += frame.payload
        while len(stream.data) >= 5:
            size = int.from_bytes(stream.data[1:5], "big")
            if len(stream.data) < 5 + size:
                break
            stream.messages.append(stream.data[5 : 5 + size])
            stream.data = stream.data[5 + size :]
    stream.ended |= frame.kind == h2.RST_STREAM or bool(frame.flags & h2.END_STREAM)

"""Any bytes give events or one error, in bounded memory and time. The ``h2`` package interoperates
with this engine."""

import time
from collections.abc import Iterator
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest
from h2_kit import (
    HELLO,
    MAX_STREAMS,
    OK,
    REQUEST,
    SETTINGS,
    TRAILERS,
    client,
    data,
    headers,
    sent_frames,
    server,
)
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from infergate.transport.http2 import frames, limits
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Data, Failed, Headers, Reset, Trailers
from infergate.transport.http2.frames import frame
from infergate.transport.http2.roles import Http2ClientConnection, Http2ServerConnection
from searching import examples

_NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1])
_FLAGS = st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 32, 36, 37, 45, 255])
_PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([REQUEST, OK, TRAILERS, b"\x20" + REQUEST, bytes(5) + REQUEST, bytes(4)]),
    st.sampled_from([b"\0\0\0\1", b"\x7f\xff\xff\xff", bytes(8), bytes(6), b"\0\4\0\0\0\1"]),
    st.integers(0, 70_000).map(bytes),
)
_FRAMES = st.builds(frame, st.integers(0, 11), _FLAGS, _NUMBERS, _PAYLOADS)
_RUNS = st.builds(
    lambda number, size, count: headers(number) + data(number, bytes(size)) * count,
    st.sampled_from([1, 3, 5, 7]), st.integers(0, 40_000), st.integers(2, 40),
)  # fmt: skip
_OPENING = st.one_of(
    st.binary(max_size=300),
    st.lists(_FRAMES | _RUNS, max_size=30).map(b"".join),
    st.tuples(st.lists(_FRAMES, max_size=30).map(b"".join), st.binary(max_size=60)).map(b"".join),
)
PHASES = (Phase.explicit, Phase.generate)
"""The phases without shrinking, which takes long. The examples are short."""
_STEPS = st.lists(st.integers(1, 5000), max_size=30)


def pieces(wire_bytes: bytes, steps: list[int]) -> list[bytes]:
    result, start = [], 0
    for step in steps:
        result.append(wire_bytes[start : start + step])
        start += step
    return [*result, wire_bytes[start:]]


def feed(
    connection: Http2Connection, wire_bytes: list[bytes], *, is_shared: bool = False
) -> list[object]:
    """Return the connection's events, with the DATA of each stream joined. If
    `is_shared`, each piece is passed at the start of a longer buffer, which is reused."""
    events: list[object] = []
    shared = bytearray(b"".join(wire_bytes) * 3)
    for piece in wire_bytes:
        shared[: len(piece)] = piece
        data, size = (shared, len(piece)) if is_shared else (piece, -1)
        for event in connection.receive(data, 0.0, size):
            assert not events or not isinstance(events[-1], Failed), "no event follows a failure"
            match event:
                case Data(stream, parts, size, end):
                    assert stream.owner is not None
                    stream.owner += map(bytes, parts)
                    assert size == sum(map(len, parts))
                    if end:
                        events.append((stream.id, b"".join(stream.owner)))
                case Headers(stream, fields, end):
                    stream.owner = []
                    events.append((stream.id, fields.pairs, end))
                case Trailers(stream, fields):
                    events.append((stream.id, b"".join(stream.owner), fields.pairs))
                case Reset(stream, code, _):
                    events.append((stream.id, code))
                case Failed(code, _):
                    events.append(event)
                case _:
                    pass
    return events


@pytest.mark.parametrize("end", ["server", "client"])
@settings(max_examples=examples(400), deadline=None, phases=PHASES)
@given(wire_bytes=_OPENING, steps=_STEPS, is_shared=st.booleans())
def test_any_bytes_give_the_same_events_however_they_are_split(
    end: str, wire_bytes: bytes, steps: list[int], is_shared: bool
) -> None:
    def make_connection() -> Http2Connection:
        if end == "server":
            return server()
        connection = client()
        for _ in range(3):
            connection.open_stream(REQUEST, [b"x"]).owner = []
        connection.take_output()
        return connection

    unsplit, split = make_connection(), make_connection()
    start = time.process_time()
    events = feed(unsplit, [wire_bytes])
    assert time.process_time() - start < 10 + len(wire_bytes) / 10_000
    # The result does not depend on how the bytes are split.
    assert feed(split, pieces(wire_bytes, steps), is_shared=is_shared) == events
    assert b"".join(map(bytes, split.take_output())) == b"".join(map(bytes, unsplit.take_output()))
    assert set(split.streams) == set(unsplit.streams)
    # Only an incomplete frame is buffered, and long frames are passed on in parts.
    assert len(unsplit._unparsed) <= unsplit._max_block + frames.FRAME_HEADER_SIZE
    assert len(unsplit._closed_streams) <= limits.MAX_CLOSED_STREAMS
    assert len(unsplit.streams) <= MAX_STREAMS + limits.EARLY_STREAMS
    if unsplit.is_closed:
        assert unsplit.receive(wire_bytes, 0.0) == []


@settings(max_examples=examples(400), deadline=None, phases=PHASES)
@given(st.one_of(st.lists(_FRAMES, max_size=4), st.lists(_FRAMES, max_size=12)).map(b"".join))
@example(frame(10, 0, 1, b"\0\0\0\1") + frame(frames.RST_STREAM, 0, 1, b"\0\0\0\1"))
def test_bytes_are_accepted_as_by_h2(wire_bytes: bytes) -> None:
    """Both libraries accept the same frames, except for the differences below."""
    engine = server()
    events = engine.receive(wire_bytes, 0.0)
    resets = [each for each in sent_frames(engine) if each[0] == frames.RST_STREAM]
    h2_peer = make_h2_peer(client_side=False, encoding=None)
    h2_peer.initiate_connection()
    h2_peer.receive_data(HELLO)
    h2_peer.max_inbound_frame_size = limits.MAX_FRAME
    error_text = ""
    try:
        h2_peer.receive_data(wire_bytes)
    except (h2.exceptions.ProtocolError, h2.exceptions.StreamClosedError) as error:
        error_text = repr(error)
    if error_text:
        # h2 also checks ALTSVC and whitespace around values, and rejects incomplete frames.
        laxer = ("Frame data missing", "RECV_ALTERNATIVE_SERVICE", "surrounded by whitespace")
        is_laxer = any(word in error_text for word in laxer) or engine._unparsed
        assert engine.is_closed or resets or is_laxer, (error_text, wire_bytes)
        return
    if events and isinstance(events[-1], Failed):
        stricter = ("too many", "too_many", "too long", "a closed stream", "size is wrong for its")
        reason = events[-1].reason
        if "never opened" in reason and _ALTSVC in frame_kinds(wire_bytes):
            return  # in h2, an ALTSVC frame opens the stream
        is_stricter = any(word in reason for word in stricter)
        assert is_stricter or reason in _UNCHECKED_BY_H2, (reason, wire_bytes)


_ALTSVC = 10
"""An extension (RFC 7838) that this engine ignores."""


def make_h2_peer(
    *, client_side: bool, encoding: str | None = "utf-8"
) -> h2.connection.H2Connection:
    config = h2.config.H2Configuration(client_side=client_side, header_encoding=encoding)
    return h2.connection.H2Connection(config)


def frame_kinds(wire_bytes: bytes) -> Iterator[int]:
    at = 0
    while at + 9 <= len(wire_bytes):
        yield wire_bytes[at + 3]
        at += 9 + int.from_bytes(wire_bytes[at : at + 3])


_UNCHECKED_BY_H2 = frozenset(
    {
        "a SETTINGS acknowledgement without SETTINGS",
        "HEADERS shorter than their padding",
        "PUSH_PROMISE although push is disabled",
        "headers on a closed stream",
    }
)


def exchange(
    engine: Http2Connection, h2_peer: h2.connection.H2Connection
) -> tuple[list[object], list[object]]:
    """Exchange output until neither side has any."""
    events, h2_events = [], []
    while True:
        output = b"".join(map(bytes, engine.take_output()))
        h2_output = h2_peer.data_to_send()
        if not output and not h2_output:
            return events, h2_events
        if output:
            h2_events += h2_peer.receive_data(output)
        if h2_output:
            events += engine.receive(h2_output, 0.0)


def take_data(engine: Http2Connection, events: list[object]) -> bytes:
    """Return the bytes of the DATA in ``events``, and release them."""
    data_events = [event for event in events if isinstance(event, Data)]
    for event in data_events:
        engine.release(event.stream, event.size)
    return b"".join(part for event in data_events for part in event.parts)


def read_with_h2(
    engine: Http2Connection, h2_peer: h2.connection.H2Connection, stream: int
) -> tuple[bytes, list[Any]]:
    """Exchange output until the stream has ended for ``h2_peer``. Return the body and trailers."""
    body, has_ended = bytearray(), False
    trailers: list[Any] = []
    while not has_ended:
        _, events = exchange(engine, h2_peer)
        assert events
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                body += event.data
                h2_peer.acknowledge_received_data(event.flow_controlled_length, stream)
            if isinstance(event, h2.events.TrailersReceived):
                trailers = event.headers
            has_ended = has_ended or isinstance(event, h2.events.StreamEnded)
    return bytes(body), trailers


@settings(max_examples=examples(60), deadline=None, phases=PHASES)
@given(
    bodies=st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    window=st.sampled_from([1000, 65_535, 2**20]),
    padding=st.sampled_from([None, 0, 200]),
)
def test_h2_interoperates_as_a_client(bodies: list[int], window: int, padding: int | None) -> None:
    engine = Http2ServerConnection(4096, 100)
    h2_peer = make_h2_peer(client_side=True)
    codes = h2.settings.SettingCodes
    h2_peer.local_settings = h2.settings.Settings(
        initial_values={codes.INITIAL_WINDOW_SIZE: window}
    )
    h2_peer.initiate_connection()
    exchange(engine, h2_peer)
    for number, size in enumerate(bodies):
        stream = 2 * number + 1
        pairs = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x")]
        h2_peer.send_headers(stream, [*pairs, ("n", str(number % 3)), ("n", "x" * 300)])
        sent = 0
        received = bytearray()
        while sent < size:
            capacity = min(h2_peer.local_flow_control_window(stream), size - sent, 10_000)
            overhead = 0 if padding is None else padding + 1
            if capacity > overhead:
                h2_peer.send_data(stream, b"d" * (capacity - overhead), pad_length=padding)
                sent += capacity - overhead
            elif capacity > 0:
                h2_peer.send_data(stream, b"d" * capacity)
                sent += capacity
            events, _ = exchange(engine, h2_peer)
            received += take_data(engine, events)
        h2_peer.end_stream(stream)
        events, _ = exchange(engine, h2_peer)
        assert events
        assert bytes(received) == b"d" * size
        stream_state = engine.streams[stream]
        engine.send_headers(stream_state, OK)
        engine.send_data(stream_state, [b"e" * size], TRAILERS)
        body, trailers = read_with_h2(engine, h2_peer, stream)
        assert (body, trailers) == (b"e" * size, [("grpc-status", "0")])
    assert not engine.streams
    assert not engine.is_closed


@settings(max_examples=examples(40), deadline=None, phases=PHASES)
@given(
    size=st.integers(0, 300_000),
    window=st.sampled_from([500, 65_535, 2**20]),
    frame_size=st.sampled_from([16_384, 100_000]),
)
def test_h2_interoperates_as_a_server(size: int, window: int, frame_size: int) -> None:
    engine = Http2ClientConnection(4096)
    h2_peer = make_h2_peer(client_side=False)
    codes = h2.settings.SettingCodes
    h2_peer.local_settings = h2.settings.Settings(
        client=False,
        initial_values={codes.INITIAL_WINDOW_SIZE: window, codes.MAX_FRAME_SIZE: frame_size},
    )
    h2_peer.max_inbound_frame_size = frame_size
    h2_peer.initiate_connection()
    exchange(engine, h2_peer)
    assert engine.can_open_stream
    for _ in range(2):
        stream = engine.open_stream(REQUEST, [b"\0" * 5, memoryview(b"q" * size)])
        body, _ = read_with_h2(engine, h2_peer, stream.id)
        assert body == bytes(5) + b"q" * size
        h2_peer.send_headers(stream.id, [(":status", "200"), ("content-type", "application/grpc")])
        received, sent = bytearray(), 0
        while sent < size:
            capacity = min(h2_peer.local_flow_control_window(stream.id), size - sent, 16_384)
            h2_peer.send_data(stream.id, b"a" * capacity)
            sent += capacity
            events, _ = exchange(engine, h2_peer)
            received += take_data(engine, events)
        h2_peer.send_headers(stream.id, [("grpc-status", "0")], end_stream=True)
        events, _ = exchange(engine, h2_peer)
        assert isinstance(events[-1], Trailers)
        assert len(received) == size
        assert not engine.streams


def test_the_h2_package_resets_a_stream_and_receives_a_goaway() -> None:
    engine = Http2ServerConnection(4096, 100)
    h2_peer = make_h2_peer(client_side=True)
    h2_peer.initiate_connection()
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x")]
    h2_peer.send_headers(1, pairs)
    h2_peer.send_headers(3, pairs)
    exchange(engine, h2_peer)
    h2_peer.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
    (event,), _ = exchange(engine, h2_peer)
    assert isinstance(event, Reset)
    engine.drain()
    # The PING after the GOAWAY is omitted, because h2 refuses it.
    h2_events = h2_peer.receive_data(bytes(engine.take_output()[0]))
    assert [
        e.last_stream_id for e in h2_events if isinstance(e, h2.events.ConnectionTerminated)
    ] == [frames.LAST_STREAM]


def test_a_frame_in_single_bytes_is_parsed_in_bounded_time() -> None:
    connection = server()
    wire_bytes = headers(1, REQUEST + b"\x00\x01a\x7f\x81\x1e" + b"x" * 3968)
    start = time.process_time()
    for at in range(len(wire_bytes)):
        connection.receive(wire_bytes[at : at + 1], 0.0)
    assert time.process_time() - start < 10
    assert list(connection.streams) == [1]


def test_incomplete_data_frames_are_not_buffered() -> None:
    connection = server(HELLO + SETTINGS)
    connection.receive(headers(1), 0.0)
    (event,) = connection.receive(data(1, bytes(100_000))[:50_000], 0.0)
    assert isinstance(event, Data)
    assert event.size == 50_000 - 9
    assert not connection._unparsed

"""Any bytes give events or one error, in bounded memory and time; and the independent ``h2``
package interoperates with this engine."""

import time

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
    sent,
    server,
)
from hypothesis import Phase, given, settings
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
"""Examples are short enough, so they are not shrunk, which takes long."""
_STEPS = st.lists(st.integers(1, 5000), max_size=30)


def pieces(wire_bytes: bytes, steps: list[int]) -> list[bytes]:
    found, at = [], 0
    for step in steps:
        found.append(wire_bytes[at : at + step])
        at += step
    return [*found, wire_bytes[at:]]


def fed(connection: Http2Connection, wire_bytes: list[bytes]) -> list[object]:
    """Return its events, with DATA joined; open streams get a response."""
    found: list[object] = []
    for piece in wire_bytes:
        for event in connection.receive(piece, 0.0):
            assert not found or not isinstance(found[-1], Failed), "nothing comes after the end"
            match event:
                case Data(stream, parts, size, end):
                    assert stream.owner is not None
                    stream.owner += map(bytes, parts)
                    assert size == sum(map(len, parts))
                    if end:
                        found.append((stream.id, b"".join(stream.owner)))
                case Headers(stream, fields, end):
                    stream.owner = []
                    found.append((stream.id, fields.pairs, end))
                case Trailers(stream, fields):
                    found.append((stream.id, b"".join(stream.owner), fields.pairs))
                case Reset(stream, code, _):
                    found.append((stream.id, code))
                case Failed(code, _):
                    found.append(event)
                case _:
                    pass
    return found


@pytest.mark.parametrize("end", ["server", "client"])
@settings(max_examples=examples(400), deadline=None, phases=PHASES)
@given(wire_bytes=_OPENING, steps=_STEPS)
def test_any_bytes(end: str, wire_bytes: bytes, steps: list[int]) -> None:
    def made() -> Http2Connection:
        if end == "server":
            return server()
        connection = client()
        for _ in range(3):
            connection.open_stream(REQUEST, [b"x"]).owner = []
        connection.take_output()
        return connection

    whole, cut = made(), made()
    began = time.process_time()
    events = fed(whole, [wire_bytes])
    assert time.process_time() - began < 10 + len(wire_bytes) / 10_000
    # The result does not depend on how the bytes are split.
    assert fed(cut, pieces(wire_bytes, steps)) == events
    assert b"".join(map(bytes, cut.take_output())) == b"".join(map(bytes, whole.take_output()))
    assert set(cut.streams) == set(whole.streams)
    # Only an unfinished frame is buffered, and long ones are passed on in parts.
    assert len(whole._unparsed) <= whole._max_block + frames.FRAME_HEADER_SIZE
    assert len(whole._closed_streams) <= limits.MAX_CLOSED_STREAMS
    assert len(whole.streams) <= MAX_STREAMS + limits.EARLY_STREAMS
    if whole.is_closed:
        assert whole.receive(wire_bytes, 0.0) == []


@settings(max_examples=examples(400), deadline=None, phases=PHASES)
@given(
    wire_bytes=st.one_of(st.lists(_FRAMES, max_size=4), st.lists(_FRAMES, max_size=12)).map(
        b"".join
    )
)
def test_frames_accepted_by_h2_are_accepted(wire_bytes: bytes) -> None:
    """Errors of either engine are errors of the other, except for stricter limits here."""
    ours = server()
    events = ours.receive(wire_bytes, 0.0)
    resets = [each for each in sent(ours) if each[0] == frames.RST_STREAM]
    theirs = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=False, header_encoding=None)
    )
    theirs.initiate_connection()
    theirs.receive_data(HELLO)
    # the announced setting
    theirs.max_inbound_frame_size = limits.MAX_FRAME
    refused = ""
    try:
        theirs.receive_data(wire_bytes)
    except (h2.exceptions.ProtocolError, h2.exceptions.StreamClosedError) as error:
        refused = repr(error)
    if refused:
        # This engine also checks unknown frames such as ALTSVC, a frame's head before its end,
        # and white space around values.
        known = ("Frame data missing", "RECV_ALTERNATIVE_SERVICE", "surrounded by whitespace")
        unlike = any(word in refused for word in known) or ours._unparsed
        assert ours.is_closed or resets or unlike, (refused, wire_bytes)
        return
    if events and isinstance(events[-1], Failed):
        known = {
            "too many",
            "too_many",
            "too long",
            "a closed stream",
            "size is wrong for its kind",
        }
        written = events[-1].reason
        assert any(word in written for word in known) or written in _STRICTER, (written, wire_bytes)


_STRICTER = frozenset(
    {
        # not checked by h2
        "a SETTINGS acknowledgement without SETTINGS",
        "HEADERS shorter than their padding",
        "PUSH_PROMISE although push is disabled",
        "headers on a closed stream",
    }
)


# ---- the h2 package as the other end


def pumped(
    ours: Http2Connection, theirs: h2.connection.H2Connection
) -> tuple[list[object], list[object]]:
    """Exchange output until neither side has any."""
    our_events, their_events = [], []
    while True:
        written = b"".join(map(bytes, ours.take_output()))
        requested = theirs.data_to_send()
        if not written and not requested:
            return our_events, their_events
        if written:
            their_events += theirs.receive_data(written)
        if requested:
            our_events += ours.receive(requested, 0.0)


@settings(max_examples=examples(60), deadline=None, phases=PHASES)
@given(
    bodies=st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    window=st.sampled_from([1000, 65_535, 2**20]),
    padding=st.sampled_from([None, 0, 200]),
)
def test_h2_as_a_client(bodies: list[int], window: int, padding: int | None) -> None:
    ours = Http2ServerConnection(4096, 100)
    theirs = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    codes = h2.settings.SettingCodes
    theirs.local_settings = h2.settings.Settings(initial_values={codes.INITIAL_WINDOW_SIZE: window})
    theirs.initiate_connection()
    pumped(ours, theirs)
    got: dict[int, bytearray] = {}
    for number, size in enumerate(bodies):
        stream = 2 * number + 1
        pairs = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x")]
        theirs.send_headers(stream, [*pairs, ("n", str(number % 3)), ("n", "x" * 300)])
        sent = 0
        received = bytearray()
        while sent < size:
            capacity = min(theirs.local_flow_control_window(stream), size - sent, 10_000)
            around = 0 if padding is None else padding + 1
            if capacity > around:
                theirs.send_data(stream, b"d" * (capacity - around), pad_length=padding)
                sent += capacity - around
            elif capacity > 0:
                theirs.send_data(stream, b"d" * capacity)
                sent += capacity
            our_events, _ = pumped(ours, theirs)
            for event in our_events:
                if isinstance(event, Data):
                    received += b"".join(event.parts)
                    ours.release(event.stream, event.size)
        theirs.end_stream(stream)
        our_events, _ = pumped(ours, theirs)
        assert our_events
        assert bytes(received) == b"d" * size
        stream_state = ours.streams[stream]
        ours.send_headers(stream_state, OK)
        ours.send_data(stream_state, [b"e" * size], TRAILERS)
        done = False
        while not done:
            _, their_events = pumped(ours, theirs)
            assert their_events
            for event in their_events:
                if isinstance(event, h2.events.DataReceived):
                    got.setdefault(stream, bytearray()).extend(event.data)
                    theirs.acknowledge_received_data(event.flow_controlled_length, stream)
                if isinstance(event, h2.events.TrailersReceived):
                    assert event.headers == [("grpc-status", "0")]
                done = done or isinstance(event, h2.events.StreamEnded)
        assert bytes(got.get(stream, b"")) == b"e" * size
    assert not ours.streams
    assert not ours.is_closed


@settings(max_examples=examples(40), deadline=None, phases=PHASES)
@given(
    size=st.integers(0, 300_000),
    window=st.sampled_from([500, 65_535, 2**20]),
    frame_size=st.sampled_from([16_384, 100_000]),
)
def test_h2_as_a_server(size: int, window: int, frame_size: int) -> None:
    ours = Http2ClientConnection(4096)
    theirs = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
    )
    codes = h2.settings.SettingCodes
    theirs.local_settings = h2.settings.Settings(
        client=False,
        initial_values={codes.INITIAL_WINDOW_SIZE: window, codes.MAX_FRAME_SIZE: frame_size},
    )
    theirs.max_inbound_frame_size = frame_size
    theirs.initiate_connection()
    pumped(ours, theirs)
    assert ours.can_open_stream
    for _ in range(2):
        stream = ours.open_stream(REQUEST, [b"\0" * 5, memoryview(b"q" * size)])
        requested, ended = bytearray(), False
        while not ended:
            _, their_events = pumped(ours, theirs)
            assert their_events
            for event in their_events:
                if isinstance(event, h2.events.DataReceived):
                    requested += event.data
                    theirs.acknowledge_received_data(event.flow_controlled_length, stream.id)
                ended = ended or isinstance(event, h2.events.StreamEnded)
        assert bytes(requested) == bytes(5) + b"q" * size
        theirs.send_headers(stream.id, [(":status", "200"), ("content-type", "application/grpc")])
        answered, sent = bytearray(), 0
        while sent < size:
            capacity = min(theirs.local_flow_control_window(stream.id), size - sent, 16_384)
            theirs.send_data(stream.id, b"a" * capacity)
            sent += capacity
            our_events, _ = pumped(ours, theirs)
            for event in our_events:
                if isinstance(event, Data):
                    answered += b"".join(event.parts)
                    ours.release(stream, event.size)
        theirs.send_headers(stream.id, [("grpc-status", "0")], end_stream=True)
        our_events, _ = pumped(ours, theirs)
        assert isinstance(our_events[-1], Trailers)
        assert len(answered) == size
        assert not ours.streams


def test_h2_resets_and_leaves() -> None:
    ours = Http2ServerConnection(4096, 100)
    theirs = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    theirs.initiate_connection()
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x")]
    theirs.send_headers(1, pairs)
    theirs.send_headers(3, pairs)
    pumped(ours, theirs)
    theirs.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
    (our_events,), _ = pumped(ours, theirs)
    assert isinstance(our_events, Reset)
    ours.drain()
    their_events = theirs.receive_data(
        bytes(ours.take_output()[0])
    )  # after a GOAWAY h2 refuses PING
    assert [
        e.last_stream_id for e in their_events if isinstance(e, h2.events.ConnectionTerminated)
    ] == [frames.LAST_STREAM]


# ---- time and memory


def test_a_frame_that_drips_costs_little() -> None:
    connection = server()
    wire_bytes = headers(1, REQUEST + b"\x00\x01a\x7f\x81\x1e" + b"x" * 3968) * 1
    began = time.process_time()
    for at in range(len(wire_bytes)):
        connection.receive(wire_bytes[at : at + 1], 0.0)
    assert time.process_time() - began < 10
    assert list(connection.streams) == [1]


def test_data_is_never_held() -> None:
    connection = server(HELLO + SETTINGS)
    connection.receive(headers(1), 0.0)
    events = connection.receive(data(1, bytes(100_000))[:50_000], 0.0)
    (event,) = events
    assert isinstance(event, Data)
    assert event.size == 50_000 - 9
    assert not connection._unparsed

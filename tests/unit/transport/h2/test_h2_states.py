"""RFC 9113, 5.1: every kind of frame in every state of a stream, at both ends.

An error of one stream must not end the connection, which other requests share, unless the RFC
requires it; and frames on closed streams are limited.
"""

from collections.abc import Callable

import pytest
from h2_kit import (
    HELLO,
    OK,
    REQUEST,
    TRAILERS,
    client,
    data,
    failure,
    headers,
    request_frame,
    resets,
    sent,
    server,
)

from infergate.transport.http2 import frames, limits
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Failed, Reset
from infergate.transport.http2.frames import Code, frame, window_update
from infergate.transport.http2.roles import Http2ClientConnection

END = frames.END_HEADERS | frames.END_STREAM

# ---- the states; the stream is number 1


def answering(body: bytes = b"xx", window: int = 65_535) -> Http2ClientConnection:
    """A stream whose response has begun. With ``window`` 0, part of ``body`` is not sent yet."""
    made = Http2ClientConnection(4096)
    made.receive(frames.settings([(frames.INITIAL_WINDOW_SIZE, window)]), 0.0)
    made.open_stream(REQUEST, [body])
    made.receive(headers(1, OK), 0.0)
    return made


def ended(made: Http2Connection) -> Http2Connection:
    """Send END_STREAM from this end."""
    made.send_headers(made.streams[1], OK, end=True)
    return made


def reset_here(made: Http2Connection) -> Http2Connection:
    made.reset(made.streams[1], Code.CANCEL)
    return made


def after(made: Http2Connection, wire_bytes: bytes) -> Http2Connection:
    """Receive ``said`` from the peer."""
    made.receive(wire_bytes, 0.0)
    return made


def leaving() -> Http2Connection:
    made = server()
    made.announce_last_stream()
    return after(made, headers(1))


STATES: dict[str, Callable[[], Http2Connection]] = {
    "server, idle": server,
    "server, open": lambda: server(HELLO + headers(1)),
    "server, half-closed (local)": lambda: ended(server(HELLO + headers(1))),
    "server, half-closed (remote)": lambda: server(HELLO + request_frame(1)),
    "server, closed": lambda: ended(server(HELLO + request_frame(1))),
    "server, reset by us": lambda: reset_here(server(HELLO + headers(1))),
    "server, reset by the peer": lambda: server(HELLO + headers(1) + frames.reset(1, 8)),
    "server, refused": leaving,
    "server, broken": lambda: server(HELLO + headers(1, OK)),
    "server, skipped": lambda: server(HELLO + request_frame(3)),
    "client, idle": client,
    "client, open": lambda: answering(window=0),
    "client, half-closed (local)": answering,
    "client, half-closed (remote)": lambda: after(answering(window=0), headers(1, TRAILERS, END)),
    "client, closed": lambda: after(answering(), headers(1, TRAILERS, END)),
    "client, reset by us": lambda: reset_here(answering()),
    "client, reset by the peer": lambda: after(answering(), frames.reset(1, 8)),
    "client, given up by the peer": lambda: after(answering(), frames.goaway(0, 0, "")),
}

# ---- the result of each frame: an event, nothing, or an error of the stream or the connection

EVENT, NOTHING = "an event", "nothing"


def stream_error(code: Code) -> str:
    return f"stream: {code.name}"


def connection_error(code: Code) -> str:
    return f"connection: {code.name}"


FRAMES: dict[str, bytes] = {
    "DATA": data(1, b"x"),
    "HEADERS": headers(1, TRAILERS, END),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "PRIORITY, cut short": frame(frames.PRIORITY, 0, 1, bytes(4)),
    "RST_STREAM": frames.reset(1, Code.CANCEL),
    "WINDOW_UPDATE": window_update(1, 1),
    "WINDOW_UPDATE by 0": window_update(1, 0),
    "unknown": frame(99, 0, 1, b"x"),
    "PUSH_PROMISE": frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, bytes(4)),
    "CONTINUATION": frame(frames.CONTINUATION, frames.END_HEADERS, 1, TRAILERS),
    "SETTINGS": frame(frames.SETTINGS, 0, 1),
    "PING": frame(frames.PING, 0, 1, bytes(8)),
    "GOAWAY": frame(frames.GOAWAY, 0, 1, bytes(8)),
}

_WRONG = connection_error(Code.PROTOCOL_ERROR)
_CLOSED = stream_error(Code.STREAM_CLOSED)
_PRIORITY = stream_error(Code.FRAME_SIZE_ERROR)
_WINDOW = stream_error(Code.PROTOCOL_ERROR)
# DATA, HEADERS, truncated PRIORITY, RST_STREAM, WINDOW_UPDATE, WINDOW_UPDATE by 0
_IDLE = (_WRONG, _WRONG, connection_error(Code.FRAME_SIZE_ERROR), _WRONG, _WRONG, _WRONG)
_OPEN = (EVENT, EVENT, _PRIORITY, EVENT, NOTHING, _WINDOW)
_HALF_REMOTE = (_CLOSED, _CLOSED, _PRIORITY, EVENT, NOTHING, _WINDOW)
_DONE = (_CLOSED, _CLOSED, _PRIORITY, NOTHING, NOTHING, NOTHING)
_IGNORED = (NOTHING, NOTHING, _PRIORITY, NOTHING, NOTHING, NOTHING)
# The server treats any lower number as closed: numbers only grow (5.1.1).
_LOWER = (_CLOSED, connection_error(Code.STREAM_CLOSED), *_DONE[2:])
_VARIED = ("DATA", "HEADERS", "PRIORITY, cut short", "RST_STREAM", "WINDOW_UPDATE",
           "WINDOW_UPDATE by 0")  # fmt: skip
_SAME = {"PRIORITY": NOTHING, "unknown": NOTHING} | dict.fromkeys(
    ("PUSH_PROMISE", "CONTINUATION", "SETTINGS", "PING", "GOAWAY"), _WRONG
)
EXPECTED: dict[str, tuple[str, ...]] = {
    "server, idle": (_WRONG, EVENT, *_IDLE[2:]),
    "server, open": _OPEN,
    "server, half-closed (local)": _OPEN,
    "server, half-closed (remote)": _HALF_REMOTE,
    "server, closed": _LOWER,
    "server, reset by us": _IGNORED,
    "server, reset by the peer": _DONE,
    "server, refused": _IGNORED,
    "server, broken": _IGNORED,
    "server, skipped": _LOWER,
    "client, idle": _IDLE,
    "client, open": _OPEN,
    "client, half-closed (local)": _OPEN,
    "client, half-closed (remote)": _HALF_REMOTE,
    "client, closed": _DONE,
    "client, reset by us": _IGNORED,
    "client, reset by the peer": _DONE,
    "client, given up by the peer": _DONE,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_in_a_state(state: str, kind: str) -> None:
    wire_bytes = FRAMES[kind]
    if (state, kind) == ("server, idle", "HEADERS"):
        wire_bytes = headers(1)
    expected = _SAME.get(kind) or EXPECTED[state][_VARIED.index(kind)]
    connection = STATES[state]()
    connection.take_output()
    events = connection.receive(wire_bytes, 0.0)
    found = EVENT if events else NOTHING
    if connection.is_closed:
        found = connection_error(Code(failure(events)[0]))
    elif reset := resets(connection):
        assert [number for number, _ in reset] == [1]
        found = stream_error(Code(reset[0][1]))
        assert 1 not in connection.streams
    assert found == expected
    if connection.is_closed:
        return
    # After an error, frames in flight are ignored, and other streams continue.
    if found.startswith("stream"):
        connection.take_output()
        assert connection.receive(data(1, b"x") + headers(1, TRAILERS, END), 0.0) == []
        assert not connection.has_output
    if isinstance(connection, Http2ClientConnection):
        if connection.can_open_stream:
            number = connection.open_stream(REQUEST, [b"x"]).id
            assert connection.receive(headers(number, OK), 0.0)
    else:
        assert connection.receive(request_frame(7), 0.0) or state == "server, refused"


# ---- costs

LATE = {
    "DATA": data(1, b"x"),
    "DATA, empty": data(1),
    "HEADERS": headers(1, TRAILERS, END),
    "RST_STREAM": frames.reset(1, Code.CANCEL),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "WINDOW_UPDATE": window_update(1, 1),
}
_OVER = ("server, closed", "server, reset by the peer", "client, closed", "client, reset by us",
         "client, reset by the peer")  # fmt: skip


@pytest.mark.parametrize(
    ("state", "kind"),
    [(s, k) for s in _OVER for k in LATE if EXPECTED[s] is not _LOWER or k != "HEADERS"],
)
def test_frames_on_closed_streams_are_charged(state: str, kind: str) -> None:
    connection = STATES[state]()
    connection.take_output()
    paid = b""
    if state.endswith("by us"):  # frames that may have been in flight cost nothing
        paid = data(1, bytes(2**18)) * 4 + headers(1, TRAILERS, END) * 2
    connection.receive(paid, 0.0)
    count, events = 0, []
    while not connection.is_closed:
        events = connection.receive(LATE[kind], 0.0)
        count += 1
    assert failure(events)[0] == Code.ENHANCE_YOUR_CALM
    assert limits.GLITCH_BURST - 5 <= count <= limits.GLITCH_BURST + 10
    assert len(resets(connection)) <= 1, "an error is reported once"


@pytest.mark.parametrize("make", [server, client])
def test_frames_in_flight_after_a_reset_cost_nothing(make: Callable[[], Http2Connection]) -> None:
    """A thousand requests cancelled at once, each with a full window of small frames in flight."""
    connection = make()
    for number in range(1, 2 * 1000, 2):
        if isinstance(connection, Http2ClientConnection):
            stream = connection.open_stream(REQUEST, [b"x"])
        else:
            connection.receive(headers(number), 0.0)
            stream = connection.streams[number]
        connection.reset(stream, Code.CANCEL)
    late = [headers(n, TRAILERS) + data(n, b"x") * 3 + headers(n, TRAILERS, END)
            for n in range(1, 2000, 2)]  # fmt: skip
    assert connection.receive(b"".join(late), 0.0) == []
    assert not connection.is_closed


@pytest.mark.parametrize("state", _OVER)
def test_late_data_counts_on_the_connections_window(state: str) -> None:
    """Otherwise the peer's window would shrink, or more than the announced bytes would be
    accepted."""
    connection = STATES[state]()
    sent(connection)
    pieces = limits.CONNECTION_WINDOW // limits.MAX_FRAME
    for piece in range(2 * pieces):
        connection.receive(data(1, bytes(limits.MAX_FRAME)), piece / 10)
    updates = [each for each in sent(connection) if each[0] == frames.WINDOW_UPDATE]
    assert [each[2] for each in updates] == [0] * len(updates)
    granted = sum(int.from_bytes(each[3]) for each in updates)
    assert granted == 2 * limits.CONNECTION_WINDOW


def test_a_bad_backend_model_does_not_end_the_connection() -> None:
    """Each response is malformed or a reset: at most one error for each request."""
    connection = client()
    for wrong in (lambda n: headers(n, TRAILERS), lambda n: frames.reset(n, 2)):
        numbers = [
            connection.open_stream(REQUEST, [b"x"]).id for _ in range(2 * int(limits.GLITCH_BURST))
        ]
        events = connection.receive(b"".join(map(wrong, numbers)), 0.0)
        assert {type(each) for each in events} == {Reset}
        assert len(events) == len(numbers)
    assert connection.can_open_stream


def test_a_server_may_widen_all_streams_at_once() -> None:
    connection = client()
    numbers = [connection.open_stream(REQUEST, [b"x"]).id for _ in range(1000)]
    wire_bytes = b"".join(window_update(n, 5) + window_update(0, 5) for n in numbers)
    assert not [each for each in connection.receive(wire_bytes, 0.0) if isinstance(each, Failed)]


# ---- streams opened before the client knows the limit (5.1.2, 6.5.3)


def test_streams_before_the_settings_acknowledgement_are_accepted() -> None:
    for acknowledged, expected in ((b"", 10 + limits.EARLY_STREAMS), (frames.SETTINGS_ACK, 10)):
        connection = server(HELLO + acknowledged)
        wire_bytes = b"".join(headers(2 * n + 1) for n in range(expected + 3))
        assert len(connection.receive(wire_bytes, 1.0)) == expected
        assert [code for _, code in resets(connection)] == [Code.REFUSED_STREAM] * 3


def test_early_streams_stay_open_after_the_settings() -> None:
    connection = server(HELLO + b"".join(headers(2 * n + 1) for n in range(15)))
    assert len(connection.receive(frames.SETTINGS_ACK + data(29, b"x"), 0.0)) == 1
    assert connection.receive(headers(101), 0.0) == []
    assert resets(connection) == [(101, Code.REFUSED_STREAM)]


@pytest.mark.parametrize("excess", ["time", "headers"])
def test_early_streams_are_bounded(excess: str) -> None:
    connection = server(HELLO + b"".join(headers(2 * n + 1) for n in range(10)))
    if excess == "time":
        assert connection.receive(headers(101), limits.EARLY_SECONDS)
        assert connection.receive(headers(103), limits.EARLY_SECONDS + 0.1) == []
        return
    block = REQUEST + 2 * (b"\x00\x01a\x7f\x81\x1e" + b"x" * 3968)
    opened = len(connection.receive(
        b"".join(headers(2 * n + 101, block) for n in range(limits.EARLY_STREAMS)), 0.0
    ))  # fmt: skip
    assert 0.9 * limits.EARLY_HEADER_BYTES < opened * 8000 <= limits.EARLY_HEADER_BYTES


# ---- header blocks over the limit (a backend may quote a megabyte in a status)

PIECE = b"\x00\x01a\x7f\x81\x1e" + b"x" * 3968
LONG = {
    "in many frames": headers(1, PIECE, 0)
    + frame(frames.CONTINUATION, 0, 1, PIECE * 2) * 20
    + frame(frames.CONTINUATION, frames.END_HEADERS, 1, PIECE),
    "in too many frames": headers(1, b"", 0)
    + frame(frames.CONTINUATION, 0, 1, b"") * 40
    + frame(frames.CONTINUATION, frames.END_HEADERS, 1),
    "when it is decoded": headers(1, b"\x8f" * 4096),
}


@pytest.mark.parametrize("long", LONG)
@pytest.mark.parametrize("step", [1, 7000, 1_000_000])
@pytest.mark.parametrize("state", ["server, idle", "server, open", "client, open"])
def test_a_header_block_that_is_too_long(state: str, long: str, step: int) -> None:
    """Without a dynamic table its content does not matter to others, and only its stream fails."""
    connection = STATES[state]()
    connection.receive(frames.SETTINGS_ACK, 0.0)
    connection.take_output()
    wire_bytes = LONG[long] + frame(frames.PING, 0, 0, bytes(8))
    for at in range(0, len(wire_bytes), step):
        connection.receive(wire_bytes[at : at + step], 0.0)
    assert [(each[0], each[2]) for each in sent(connection)] == [
        (frames.RST_STREAM, 1), (frames.PING, 0),
    ]  # fmt: skip
    assert not connection.streams
    assert not connection.is_closed


@pytest.mark.parametrize("long", LONG)
def test_a_cacheable_block_while_the_table_may_change(long: str) -> None:
    connection = server()
    connection.receive(LONG[long], 0.0)
    assert connection.is_closed


def test_expensive_blocks_count_against_the_budget() -> None:
    connection = server(HELLO + frames.SETTINGS_ACK)
    endless = headers(1, PIECE, 0) + frame(frames.CONTINUATION, 0, 1, PIECE * 4) * 1000
    assert failure(connection.receive(endless, 0.0))[0] == Code.ENHANCE_YOUR_CALM
    connection, count = server(HELLO + frames.SETTINGS_ACK), 0
    while not connection.is_closed:
        count += 1
        connection.receive(headers(2 * count - 1, b"\x8f" * 4096), 0.0)
    assert count <= limits.GLITCH_BURST + 1


@pytest.mark.parametrize(("number", "code"), [(2, Code.PROTOCOL_ERROR), (1, Code.STREAM_CLOSED)])
def test_a_header_block_in_a_forbidden_position(number: int, code: Code) -> None:
    connection = server(HELLO + frames.SETTINGS_ACK + request_frame(3))
    assert failure(connection.receive(headers(number, b"\x8f" * 4096), 0.0))[0] == code

"""RFC 9113, 5.1: every kind of frame in every state of a stream, at both ends.

An error of one stream ends the shared connection only if the RFC requires it. Frames on closed
streams are limited.
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
    sent_frames,
    server,
)

from infergate.transport.http2 import frames, limits
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Failed, Reset
from infergate.transport.http2.frames import Code, frame, window_update
from infergate.transport.http2.roles import Http2ClientConnection

END = frames.END_HEADERS | frames.END_STREAM


def receiving_response(body: bytes = b"xx", window: int = 65_535) -> Http2ClientConnection:
    """Return a client whose response has begun. With ``window`` 0, ``body`` is not sent yet."""
    connection = Http2ClientConnection(4096)
    connection.receive(frames.settings([(frames.INITIAL_WINDOW_SIZE, window)]), 0.0)
    connection.open_stream(REQUEST, [body])
    connection.receive(headers(1, OK), 0.0)
    return connection


def end_stream(connection: Http2Connection) -> Http2Connection:
    connection.send_headers(connection.streams[1], OK, end=True)
    return connection


def reset_stream(connection: Http2Connection) -> Http2Connection:
    connection.reset(connection.streams[1], Code.CANCEL)
    return connection


def after_receiving(connection: Http2Connection, wire_bytes: bytes) -> Http2Connection:
    connection.receive(wire_bytes, 0.0)
    return connection


def after_goaway() -> Http2Connection:
    connection = server()
    connection.announce_last_stream()
    return after_receiving(connection, headers(1))


# The state of stream 1.
STATES: dict[str, Callable[[], Http2Connection]] = {
    "server, idle": server,
    "server, open": lambda: server(HELLO + headers(1)),
    "server, half-closed (local)": lambda: end_stream(server(HELLO + headers(1))),
    "server, half-closed (remote)": lambda: server(HELLO + request_frame(1)),
    "server, closed": lambda: end_stream(server(HELLO + request_frame(1))),
    "server, reset locally": lambda: reset_stream(server(HELLO + headers(1))),
    "server, reset by the peer": lambda: server(HELLO + headers(1) + frames.reset(1, 8)),
    "server, refused": after_goaway,
    "server, broken": lambda: server(HELLO + headers(1, OK)),
    "server, skipped": lambda: server(HELLO + request_frame(3)),
    "client, idle": client,
    "client, open": lambda: receiving_response(window=0),
    "client, half-closed (local)": receiving_response,
    "client, half-closed (remote)": lambda: after_receiving(
        receiving_response(window=0), headers(1, TRAILERS, END)
    ),
    "client, closed": lambda: after_receiving(receiving_response(), headers(1, TRAILERS, END)),
    "client, reset locally": lambda: reset_stream(receiving_response()),
    "client, reset by the peer": lambda: after_receiving(receiving_response(), frames.reset(1, 8)),
    "client, unprocessed by the peer": lambda: after_receiving(
        receiving_response(), frames.goaway(0, 0, "")
    ),
}

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

_PROTOCOL_ERROR = connection_error(Code.PROTOCOL_ERROR)
_CLOSED_ERROR = stream_error(Code.STREAM_CLOSED)
_PRIORITY_ERROR = stream_error(Code.FRAME_SIZE_ERROR)
_WINDOW_ERROR = stream_error(Code.PROTOCOL_ERROR)
# These tuples have the expected result for each frame of _DEPENDS_ON_STATE, in the same order.
_IDLE = (
    _PROTOCOL_ERROR,
    _PROTOCOL_ERROR,
    connection_error(Code.FRAME_SIZE_ERROR),
    _PROTOCOL_ERROR,
    _PROTOCOL_ERROR,
    _PROTOCOL_ERROR,
)
_OPEN = (EVENT, EVENT, _PRIORITY_ERROR, EVENT, NOTHING, _WINDOW_ERROR)
_HALF_REMOTE = (_CLOSED_ERROR, _CLOSED_ERROR, _PRIORITY_ERROR, EVENT, NOTHING, _WINDOW_ERROR)
_ENDED = (_CLOSED_ERROR, _CLOSED_ERROR, _PRIORITY_ERROR, NOTHING, NOTHING, NOTHING)
_IGNORED = (NOTHING, NOTHING, _PRIORITY_ERROR, NOTHING, NOTHING, NOTHING)
# The server treats all lower stream IDs as closed (5.1.1).
_LOWER_ID = (_CLOSED_ERROR, connection_error(Code.STREAM_CLOSED), *_ENDED[2:])
_DEPENDS_ON_STATE = (
    "DATA", "HEADERS", "PRIORITY, cut short", "RST_STREAM", "WINDOW_UPDATE", "WINDOW_UPDATE by 0",
)  # fmt: skip
_IN_ANY_STATE = {"PRIORITY": NOTHING, "unknown": NOTHING} | dict.fromkeys(
    ("PUSH_PROMISE", "CONTINUATION", "SETTINGS", "PING", "GOAWAY"), _PROTOCOL_ERROR
)
EXPECTED: dict[str, tuple[str, ...]] = {
    "server, idle": (_PROTOCOL_ERROR, EVENT, *_IDLE[2:]),
    "server, open": _OPEN,
    "server, half-closed (local)": _OPEN,
    "server, half-closed (remote)": _HALF_REMOTE,
    "server, closed": _LOWER_ID,
    "server, reset locally": _IGNORED,
    "server, reset by the peer": _ENDED,
    "server, refused": _IGNORED,
    "server, broken": _IGNORED,
    "server, skipped": _LOWER_ID,
    "client, idle": _IDLE,
    "client, open": _OPEN,
    "client, half-closed (local)": _OPEN,
    "client, half-closed (remote)": _HALF_REMOTE,
    "client, closed": _ENDED,
    "client, reset locally": _IGNORED,
    "client, reset by the peer": _ENDED,
    "client, unprocessed by the peer": _ENDED,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", FRAMES)
def test_each_frame_in_each_state_has_the_expected_result(state: str, kind: str) -> None:
    wire_bytes = FRAMES[kind]
    if (state, kind) == ("server, idle", "HEADERS"):
        wire_bytes = headers(1)
    expected = _IN_ANY_STATE.get(kind) or EXPECTED[state][_DEPENDS_ON_STATE.index(kind)]
    connection = STATES[state]()
    connection.take_output()
    events = connection.receive(wire_bytes, 0.0)
    result = EVENT if events else NOTHING
    if connection.is_closed:
        result = connection_error(Code(failure(events)[0]))
    elif reset := resets(connection):
        assert [number for number, _ in reset] == [1]
        result = stream_error(Code(reset[0][1]))
        assert 1 not in connection.streams
    assert result == expected
    if connection.is_closed:
        return
    # After an error, frames in flight are ignored, and other streams continue.
    if result.startswith("stream"):
        connection.take_output()
        assert connection.receive(data(1, b"x") + headers(1, TRAILERS, END), 0.0) == []
        assert not connection.outbound.output
    if isinstance(connection, Http2ClientConnection):
        if connection.can_open_stream:
            number = connection.open_stream(REQUEST, [b"x"]).id
            assert connection.receive(headers(number, OK), 0.0)
    else:
        assert connection.receive(request_frame(7), 0.0) or state == "server, refused"


LATE_FRAMES = {
    "DATA": data(1, b"x"),
    "DATA, empty": data(1),
    "HEADERS": headers(1, TRAILERS, END),
    "RST_STREAM": frames.reset(1, Code.CANCEL),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "WINDOW_UPDATE": window_update(1, 1),
}
_ENDED_STATES = ("server, closed", "server, reset by the peer", "client, closed",
                 "client, reset locally", "client, reset by the peer")  # fmt: skip


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (s, k)
        for s in _ENDED_STATES
        for k in LATE_FRAMES
        if EXPECTED[s] is not _LOWER_ID or k != "HEADERS"
    ],
)
def test_frames_on_closed_streams_are_limited(state: str, kind: str) -> None:
    connection = STATES[state]()
    connection.take_output()
    in_flight = b""
    if state.endswith("locally"):  # frames in flight are not limited
        in_flight = data(1, bytes(2**18)) * 4 + headers(1, TRAILERS, END) * 2
    connection.receive(in_flight, 0.0)
    count, events = 0, []
    while not connection.is_closed:
        events = connection.receive(LATE_FRAMES[kind], 0.0)
        count += 1
    assert failure(events)[0] == Code.ENHANCE_YOUR_CALM
    assert limits.GLITCH_BURST - 5 <= count <= limits.GLITCH_BURST + 10
    assert len(resets(connection)) <= 1, "an error is reported once"


@pytest.mark.parametrize("make_connection", [server, client])
def test_frames_in_flight_after_a_reset_are_not_limited(
    make_connection: Callable[[], Http2Connection],
) -> None:
    """A thousand requests are cancelled, each with frames in flight."""
    connection = make_connection()
    for number in range(1, 2 * 1000, 2):
        if isinstance(connection, Http2ClientConnection):
            stream = connection.open_stream(REQUEST, [b"x"])
        else:
            connection.receive(headers(number), 0.0)
            stream = connection.streams[number]
        connection.reset(stream, Code.CANCEL)
    late_frames = [
        headers(n, TRAILERS) + data(n, b"x") * 3 + headers(n, TRAILERS, END)
        for n in range(1, 2000, 2)
    ]
    assert connection.receive(b"".join(late_frames), 0.0) == []
    assert not connection.is_closed


@pytest.mark.parametrize("state", _ENDED_STATES)
def test_late_data_is_returned_to_the_connections_window(state: str) -> None:
    """If the data were not returned, the connection's window would shrink with each ended
    stream."""
    connection = STATES[state]()
    sent_frames(connection)
    pieces = limits.CONNECTION_WINDOW // limits.MAX_FRAME
    for piece in range(2 * pieces):
        connection.receive(data(1, bytes(limits.MAX_FRAME)), piece / 10)
    updates = [each for each in sent_frames(connection) if each[0] == frames.WINDOW_UPDATE]
    assert [each[2] for each in updates] == [0] * len(updates)
    granted = sum(int.from_bytes(each[3]) for each in updates)
    assert granted == 2 * limits.CONNECTION_WINDOW


def test_stream_errors_by_a_server_do_not_end_the_connection() -> None:
    """A failing model may cause one error for each request."""
    connection = client()
    for response in (lambda n: headers(n, TRAILERS), lambda n: frames.reset(n, 2)):
        numbers = [
            connection.open_stream(REQUEST, [b"x"]).id for _ in range(2 * int(limits.GLITCH_BURST))
        ]
        events = connection.receive(b"".join(map(response, numbers)), 0.0)
        assert {type(each) for each in events} == {Reset}
        assert len(events) == len(numbers)
    assert connection.can_open_stream


def test_a_server_may_update_the_windows_of_all_streams() -> None:
    connection = client()
    numbers = [connection.open_stream(REQUEST, [b"x"]).id for _ in range(1000)]
    wire_bytes = b"".join(window_update(n, 5) + window_update(0, 5) for n in numbers)
    assert not [each for each in connection.receive(wire_bytes, 0.0) if isinstance(each, Failed)]


def test_streams_before_the_settings_acknowledgement_are_accepted() -> None:
    """RFC 9113, 5.1.2 and 6.5.3: the client may not know the limit yet."""
    for acknowledged, expected in ((b"", 10 + limits.EARLY_STREAMS), (frames.SETTINGS_ACK, 10)):
        connection = server(HELLO + acknowledged)
        wire_bytes = b"".join(headers(2 * n + 1) for n in range(expected + 3))
        assert len(connection.receive(wire_bytes, 1.0)) == expected
        assert [code for _, code in resets(connection)] == [Code.REFUSED_STREAM] * 3


def test_early_streams_continue_after_the_settings_acknowledgement() -> None:
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


# Header blocks over the limit; a backend may quote a megabyte in its status message.
PIECE = b"\x00\x01a\x7f\x81\x1e" + b"x" * 3968
LONG_BLOCKS = {
    "in many frames": headers(1, PIECE, 0)
    + frame(frames.CONTINUATION, 0, 1, PIECE * 2) * 20
    + frame(frames.CONTINUATION, frames.END_HEADERS, 1, PIECE),
    "in too many frames": headers(1, b"", 0)
    + frame(frames.CONTINUATION, 0, 1, b"") * 40
    + frame(frames.CONTINUATION, frames.END_HEADERS, 1),
    "when decoded": headers(1, b"\x8f" * 4096),
}


@pytest.mark.parametrize("case", LONG_BLOCKS)
@pytest.mark.parametrize("step", [1, 7000, 1_000_000])
@pytest.mark.parametrize("state", ["server, idle", "server, open", "client, open"])
def test_a_header_block_over_the_limit_ends_only_its_stream(
    state: str, case: str, step: int
) -> None:
    """Without a dynamic table, later blocks do not depend on such a block."""
    connection = STATES[state]()
    connection.receive(frames.SETTINGS_ACK, 0.0)
    connection.take_output()
    wire_bytes = LONG_BLOCKS[case] + frame(frames.PING, 0, 0, bytes(8))
    for start in range(0, len(wire_bytes), step):
        connection.receive(wire_bytes[start : start + step], 0.0)
    assert [(each[0], each[2]) for each in sent_frames(connection)] == [
        (frames.RST_STREAM, 1), (frames.PING, 0),
    ]  # fmt: skip
    assert not connection.streams
    assert not connection.is_closed


@pytest.mark.parametrize("case", LONG_BLOCKS)
def test_a_header_block_over_the_limit_ends_a_connection_with_a_dynamic_table(case: str) -> None:
    connection = server()
    connection.receive(LONG_BLOCKS[case], 0.0)
    assert connection.is_closed


def test_long_header_blocks_are_limited() -> None:
    connection = server(HELLO + frames.SETTINGS_ACK)
    endless = headers(1, PIECE, 0) + frame(frames.CONTINUATION, 0, 1, PIECE * 4) * 1000
    assert failure(connection.receive(endless, 0.0))[0] == Code.ENHANCE_YOUR_CALM
    connection, count = server(HELLO + frames.SETTINGS_ACK), 0
    while not connection.is_closed:
        count += 1
        connection.receive(headers(2 * count - 1, b"\x8f" * 4096), 0.0)
    assert count <= limits.GLITCH_BURST + 1


@pytest.mark.parametrize(("number", "code"), [(2, Code.PROTOCOL_ERROR), (1, Code.STREAM_CLOSED)])
def test_a_long_block_on_an_invalid_stream_is_fatal(number: int, code: Code) -> None:
    connection = server(HELLO + frames.SETTINGS_ACK + request_frame(3))
    assert failure(connection.receive(headers(number, b"\x8f" * 4096), 0.0))[0] == code

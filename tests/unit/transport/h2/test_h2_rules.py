"""Rules of RFC 9113: the errors of forbidden frames, flow control, limits and draining."""

import pytest
from h2_kit import (
    HELLO,
    MAX_STREAMS,
    OK,
    REQUEST,
    TRAILERS,
    client,
    data,
    ended_streams,
    failure,
    headers,
    request_frame,
    resets,
    sent_data,
    sent_frames,
    server,
)

from infergate.transport.http2 import frames, header_blocks, limits
from infergate.transport.http2.events import Data, Goaway, Headers, Ready, Reset, Sent, Trailers
from infergate.transport.http2.frames import Code, frame, window_update
from infergate.transport.http2.header_blocks import encode_block
from infergate.transport.http2.roles import Http2ServerConnection

END = frames.END_HEADERS | frames.END_STREAM
OPEN = headers(1)


def padded(kind: int, flags: int, number: int, payload: bytes, padding: int) -> bytes:
    body = bytes([padding]) + payload + bytes(padding)
    return frame(kind, flags | frames.PADDED, number, body)


def setting(identifier: int, value: int) -> bytes:
    return frames.settings([(identifier, value)])


CONNECTION_ERRORS: dict[str, tuple[bytes, Code]] = {
    "HEADERS before SETTINGS": (frames.PREFACE + OPEN, Code.PROTOCOL_ERROR),
    "DATA before SETTINGS": (frames.PREFACE + data(1), Code.PROTOCOL_ERROR),
    "an ACK before SETTINGS": (frames.PREFACE + frames.SETTINGS_ACK, Code.PROTOCOL_ERROR),
    "HTTP/1": (b"GET / HTTP/1.1\r\n\r\n", Code.PROTOCOL_ERROR),
    "a preface with a wrong last byte": (frames.PREFACE[:-1] + b"x", Code.PROTOCOL_ERROR),
    "SETTINGS on a stream": (HELLO + frame(4, 0, 1), Code.PROTOCOL_ERROR),
    "SETTINGS cut short": (HELLO + frame(4, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "SETTINGS ACK with a payload": (HELLO + frame(4, 1, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "SETTINGS ACK twice": (HELLO + frames.SETTINGS_ACK * 2, Code.PROTOCOL_ERROR),
    "too many settings": (HELLO + frame(4, 0, 0, bytes(6 * 65)), Code.FRAME_SIZE_ERROR),
    "ENABLE_PUSH 2": (HELLO + setting(2, 2), Code.PROTOCOL_ERROR),
    "a window of 2^31": (HELLO + setting(4, 2**31), Code.FLOW_CONTROL_ERROR),
    "a frame size below the minimum": (HELLO + setting(5, 16_383), Code.PROTOCOL_ERROR),
    "a frame size above the maximum": (HELLO + setting(5, 2**24), Code.PROTOCOL_ERROR),
    "PING on a stream": (HELLO + frame(6, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "PING of 7 bytes": (HELLO + frame(6, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (HELLO + frame(7, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (HELLO + frame(7, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "RST_STREAM on stream 0": (HELLO + frame(3, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
    "RST_STREAM, 3 bytes": (HELLO + OPEN + frame(3, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "RST_STREAM on an idle stream": (HELLO + frames.reset(1, 8), Code.PROTOCOL_ERROR),
    "PRIORITY on stream 0": (HELLO + frame(2, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "PUSH_PROMISE": (HELLO + OPEN + frame(5, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 3 bytes": (HELLO + frame(8, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by 0": (HELLO + window_update(0, 0), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond 2^31-1": (HELLO + window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (HELLO + window_update(1, 1), Code.PROTOCOL_ERROR),
    "DATA on stream 0": (HELLO + data(0), Code.PROTOCOL_ERROR),
    "DATA on an idle stream": (HELLO + data(1), Code.PROTOCOL_ERROR),
    "DATA with excess padding": (HELLO + OPEN + frame(0, 8, 1, b"\x05abcd"), Code.PROTOCOL_ERROR),
    "DATA without a padding length": (HELLO + OPEN + frame(0, 8, 1) + b"x", Code.PROTOCOL_ERROR),
    "DATA too long": (HELLO + OPEN + (limits.MAX_FRAME + 1).to_bytes(3) + b"\0" * 6, Code.FRAME_SIZE_ERROR),  # noqa: E501
    "a frame too long": (HELLO + b"\xff\xff\xff\x04" + b"\0" * 5, Code.FRAME_SIZE_ERROR),
    "HEADERS on stream 0": (HELLO + headers(0), Code.PROTOCOL_ERROR),
    "HEADERS on an even stream": (HELLO + headers(2), Code.PROTOCOL_ERROR),
    "HEADERS with excess padding": (HELLO + frame(1, 12, 1, b"\x05abcd"), Code.PROTOCOL_ERROR),
    "HEADERS, empty, padded": (HELLO + frame(1, 12, 1), Code.PROTOCOL_ERROR),
    "HEADERS without their priority": (HELLO + frame(1, 36, 1, b"abcd"), Code.PROTOCOL_ERROR),
    "HEADERS too long": (HELLO + frame(1, 4, 1, bytes(16_385)), Code.ENHANCE_YOUR_CALM),
    "HPACK: no such index": (HELLO + headers(1, b"\xff\x7f"), Code.COMPRESSION_ERROR),
    "HPACK: cut short": (HELLO + headers(1, b"\x00\x05ab"), Code.COMPRESSION_ERROR),
    "HPACK: a table too large": (HELLO + headers(1, b"\x3f\xff\x7f"), Code.COMPRESSION_ERROR),
    "HPACK: a table size over the acknowledged limit": (
        HELLO + frames.SETTINGS_ACK + headers(1, b"\x21" + REQUEST), Code.COMPRESSION_ERROR,
    ),
    "HPACK: too large a table size in a cached block": (
        HELLO + request_frame(1, b"\x3f\xe1\x1f" + REQUEST) + frames.SETTINGS_ACK
        + request_frame(3, b"\x3f\xe1\x1f" + REQUEST), Code.COMPRESSION_ERROR,
    ),
    "HPACK: an entry of the removed table": (
        HELLO + request_frame(1, REQUEST + b"\x40\x01a\x01b") + frames.SETTINGS_ACK
        + request_frame(3, REQUEST + b"\xbe"), Code.COMPRESSION_ERROR,
    ),
    "HPACK: a bomb": (
        HELLO + headers(1, b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 100),
        Code.ENHANCE_YOUR_CALM,
    ),
    "CONTINUATION without HEADERS": (HELLO + frame(9, 4, 1), Code.PROTOCOL_ERROR),
    "CONTINUATION on another stream": (
        HELLO + headers(1, flags=0) + frame(9, 4, 3), Code.PROTOCOL_ERROR,
    ),
    "a PING inside a header block": (
        HELLO + headers(1, flags=0) + frame(6, 0, 0, bytes(8)), Code.PROTOCOL_ERROR,
    ),
    "DATA inside a header block": (HELLO + headers(1, flags=0) + data(1), Code.PROTOCOL_ERROR),
    "an unknown frame inside a header block": (
        HELLO + headers(1, flags=0) + frame(99, 0, 1), Code.PROTOCOL_ERROR,
    ),
    "CONTINUATION without end": (
        HELLO + headers(1, flags=0) + frame(9, 0, 1) * 33, Code.ENHANCE_YOUR_CALM,
    ),
    "CONTINUATION over the size limit": (
        HELLO + headers(1, flags=0) + frame(9, 0, 1, bytes(8000)) * 3, Code.ENHANCE_YOUR_CALM,
    ),
    "DATA beyond the connection's window": (
        HELLO + OPEN + data(1, bytes(2**18)) * 65, Code.FLOW_CONTROL_ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
@pytest.mark.parametrize("step", [1, 10_000_000])
def test_errors_that_end_the_connection(case: str, step: int) -> None:
    wire_bytes, code = CONNECTION_ERRORS[case]
    if step == 1 and len(wire_bytes) > 100_000:
        step = 1000
    connection = Http2ServerConnection(4096, MAX_STREAMS)
    if "beyond the connection's window" in case:
        connection._unreleased = -(2**40)  # so the window is never updated
    connection.take_output()
    events = []
    for start in range(0, len(wire_bytes), step):
        events += connection.receive(wire_bytes[start : start + step], 0.0)
    assert failure(events)[0] == code
    kind, _, _, payload = sent_frames(connection)[-1]
    assert (kind, frames.read_goaway(payload)[1]) == (frames.GOAWAY, code)
    assert connection.is_closed
    assert not connection.streams
    assert connection.receive(HELLO, 0.0) == []
    assert not connection.outbound.output


GET = (":method", "GET"), (":scheme", "http")
WITH_LENGTH = headers(1, REQUEST + encode_block(("content-length", "2")))
INVALID_BLOCKS: dict[str, bytes] = {
    "no path": encode_block(*GET),
    "an empty path": encode_block(*GET, (":path", "")),
    "a space after the path": encode_block(*GET, (":path", "/ ")),
    "an unknown pseudo-header": encode_block(*GET, (":path", "/"), (":x", "y")),
    "a response pseudo-header": encode_block((":status", "200")),
    "a pseudo-header twice": encode_block((":method", "GET")) + REQUEST,
    "a pseudo-header after a field": encode_block(("a", "b")) + REQUEST,
    "an uppercase name": REQUEST + encode_block(("A", "b")),
    "a name with a space": REQUEST + encode_block(("a b", "c")),
    "an empty name": REQUEST + encode_block(("", "c")),
    "a line break in a value": REQUEST + encode_block(("a", "b\r\nc")),
    "connection": REQUEST + encode_block(("connection", "close")),
    "te: gzip": REQUEST + encode_block(("te", "gzip")),
    "an invalid length": REQUEST + encode_block(("content-length", "+1")),
    "two lengths": REQUEST + encode_block(("content-length", "1"), ("content-length", "2")),
}
STREAM_ERRORS: dict[str, tuple[bytes, Code]] = {
    **{case: (headers(1, block), Code.PROTOCOL_ERROR) for case, block in INVALID_BLOCKS.items()},
    "a length and no body": (
        headers(1, REQUEST + encode_block(("content-length", "1")), END), Code.PROTOCOL_ERROR,
    ),
    "less than the length": (WITH_LENGTH + data(1, b"a", 1), Code.PROTOCOL_ERROR),
    "more than the length": (WITH_LENGTH + data(1, b"abc"), Code.PROTOCOL_ERROR),
    "trailers before the length": (WITH_LENGTH + headers(1, TRAILERS, END), Code.PROTOCOL_ERROR),
    "trailers without an end": (OPEN + headers(1, TRAILERS), Code.PROTOCOL_ERROR),
    "pseudo-headers in trailers": (OPEN + headers(1, flags=END), Code.PROTOCOL_ERROR),
    "DATA after the end": (request_frame(1) + data(1, b"x"), Code.STREAM_CLOSED),
    "HEADERS after the end": (request_frame(1) + headers(1, TRAILERS, END), Code.STREAM_CLOSED),
    "a window update by 0": (OPEN + window_update(1, 0), Code.PROTOCOL_ERROR),
    "a window update beyond 2^31-1": (OPEN + window_update(1, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "DATA beyond the stream's window": (OPEN + data(1, bytes(2**18)) * 5, Code.FLOW_CONTROL_ERROR),
    "a PRIORITY of 4 bytes": (OPEN + frame(2, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
}  # fmt: skip


def test_whitespace_around_a_value_is_accepted() -> None:
    """RFC 9113, 8.2.1 forbids it, but Triton sends "… got []. " as a status message."""
    connection = server()
    events = connection.receive(headers(1, REQUEST + encode_block(("a", " b\t"))), 0.0)
    opened = [event for event in events if isinstance(event, Headers)]
    assert [event.fields.pairs[-1] for event in opened] == [("a", " b\t")]


@pytest.mark.parametrize("case", STREAM_ERRORS)
def test_errors_that_end_a_stream(case: str) -> None:
    wire_bytes, code = STREAM_ERRORS[case]
    connection = server()
    events = connection.receive(wire_bytes, 0.0)
    opened = [event.stream.id for event in events if isinstance(event, Headers)]
    assert ended_streams(events) == ([(1, code)] if opened else [])
    assert resets(connection) == [(1, code)]
    assert not connection.streams
    # Frames in flight are ignored, and the connection continues.
    events = connection.receive(data(1, b"x") + headers(1, TRAILERS, END) + request_frame(3), 0.0)
    assert [type(event) for event in events] == [Headers]
    assert list(connection.streams) == [3]


def test_streams_beyond_the_limit_are_refused() -> None:
    connection = server(HELLO + frames.SETTINGS_ACK)
    connection.receive(b"".join(headers(2 * i + 1) for i in range(MAX_STREAMS + 2)), 0.0)
    assert len(connection.streams) == MAX_STREAMS
    assert resets(connection) == [(2 * MAX_STREAMS + 1, 7), (2 * MAX_STREAMS + 3, 7)]


def test_stream_ids_must_increase() -> None:
    connection = server()
    connection.receive(request_frame(5), 0.0)
    assert failure(connection.receive(headers(3), 0.0))[0] == Code.STREAM_CLOSED


def test_a_dynamic_table_is_allowed_until_the_settings_are_acknowledged() -> None:
    """Settings apply from the peer's acknowledgement on (RFC 7541, 4.2)."""
    connection = server(HELLO + request_frame(1, b"\x21\x3f\xe1\x1f" + REQUEST + b"\x40\x01a\x01b"))
    connection.receive(request_frame(3, REQUEST + b"\xbe") + frames.SETTINGS_ACK, 0.0)
    connection.receive(request_frame(5, b"\x20\x20" + REQUEST) + request_frame(7), 0.0)
    assert list(connection.streams) == [1, 3, 5, 7]


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_request_however_it_is_split(step: int) -> None:
    wire_bytes = (
        HELLO
        + frame(2, 0, 9, bytes(5))
        + frame(200, 255, 0, b"unknown")
        + frame(1, frames.WITH_PRIORITY, 1, bytes(5) + REQUEST[:9])
        + frame(9, 0, 1, REQUEST[9:11])
        + frame(9, 4, 1, REQUEST[11:])
        + data(1, b"abc")
        + padded(0, 0, 1, b"de", 9)
        + padded(0, 0, 1, b"", 3)
        + data(1)
        + headers(1, TRAILERS, END)
        + padded(1, END, 3, REQUEST, 255)
    )
    connection = Http2ServerConnection(4096, MAX_STREAMS)
    events = []
    for start in range(0, len(wire_bytes), step):
        events += connection.receive(wire_bytes[start : start + step], 0.0)
    assert isinstance(events[0], Ready)
    opened, *body, trailers, second = events[1:]
    assert isinstance(opened, Headers)
    assert opened.fields.pseudo[":path"] == "/t.T/Echo"
    assert opened.fields.pairs == (("content-type", "application/grpc"), ("te", "trailers"))
    assert b"".join(p for event in body if isinstance(event, Data) for p in event.parts) == b"abcde"
    assert isinstance(trailers, Trailers)
    assert trailers.fields.pairs == (("grpc-status", "0"),)
    assert isinstance(second, Headers)
    assert second.end
    assert not connection.streams[3].remote_open


def test_a_response_waits_for_window_updates() -> None:
    connection = server(frames.PREFACE + setting(4, 10) + request_frame(1))
    stream = connection.streams[1]
    body = bytes(range(200))
    assert not connection.send_data(stream, [body[:5], body[5:]], TRAILERS)
    assert sent_frames(connection) == [(frames.DATA, 0, 1, body[:10])]
    assert connection.receive(window_update(1, 20), 0.0) == []
    assert connection.receive(setting(4, 0), 0.0) == []  # the window shrank by 10
    assert b"".join(sent_data(connection)) == body[10:30]
    assert connection.receive(window_update(1, 10), 0.0) == []
    assert not sent_data(connection)
    (event,) = connection.receive(setting(4, 65_535), 0.0)
    assert isinstance(event, Sent)
    frames_sent = sent_frames(connection)
    assert b"".join(payload for kind, _, _, payload in frames_sent if kind == 0) == body[30:]
    assert frames_sent[-1][:3] == (frames.HEADERS, END, 1)
    assert not connection.streams


@pytest.mark.parametrize("width", [4, 30_000])
def test_settings_are_acknowledged_before_data_that_they_allow(width: int) -> None:
    """RFC 9113, 6.5.3 requires this order. grpc-core ends a connection that sends the data
    first."""
    connection = server(frames.PREFACE + setting(frames.INITIAL_WINDOW_SIZE, 3) + request_frame(1))
    stream = connection.streams[1]
    connection.send_headers(stream, OK)
    connection.send_data(stream, [bytes(3 + width)], TRAILERS)
    sent_frames(connection)
    larger = [(frames.INITIAL_WINDOW_SIZE, 3 + width), (frames.MAX_FRAME_SIZE, 40_000)]
    connection.receive(frames.settings(larger), 0.0)
    kinds = [(kind, len(payload)) for kind, _, _, payload in sent_frames(connection)]
    assert kinds[:2] == [(frames.SETTINGS, 0), (frames.DATA, width)]


def test_the_connections_window_is_shared_fairly() -> None:
    connection = server(frames.PREFACE + setting(4, 2**20))
    connection.receive(request_frame(1) + request_frame(3), 0.0)
    first, second = connection.streams.values()
    assert not connection.send_data(first, [bytes(65_536)], b"")
    assert not connection.send_data(second, [b"ab"], b"")
    assert len(b"".join(sent_data(connection))) == 65_535
    events = connection.receive(window_update(0, 2), 0.0)
    assert [event.stream.id for event in events if isinstance(event, Sent)] == [1]
    events = connection.receive(window_update(0, 100), 0.0)
    assert [event.stream.id for event in events if isinstance(event, Sent)] == [3]
    assert sent_frames(connection)[-1] == (0, 1, 3, b"b")


def test_frames_have_the_peers_maximum_size() -> None:
    larger = frames.settings([(4, 2**20), (5, 20_000)]) + window_update(0, 2**20)
    connection = server(frames.PREFACE + larger + request_frame(1))
    stream = connection.streams[1]
    assert connection.send_data(stream, [bytes(50_000)], b"")
    assert [(len(p), flags) for _, flags, _, p in sent_frames(connection)] == [
        (20_000, 0), (20_000, 0), (10_000, 1),
    ]  # fmt: skip


def test_long_headers_are_continued() -> None:
    connection = server(HELLO + request_frame(1))
    stream = connection.streams[1]
    block = encode_block((":status", "200"), ("a", "x" * 40_000))
    connection.send_headers(stream, block, end=True)
    sent = sent_frames(connection)
    assert [each[:3] for each in sent] == [(1, 1, 1), (9, 0, 1), (9, 4, 1)]
    assert b"".join(each[3] for each in sent) == header_blocks.TABLE_SIZE_ZERO + block


def test_released_data_is_returned_to_the_window() -> None:
    connection = server(HELLO + OPEN)
    stream = connection.streams[1]
    connection.receive(data(1, bytes(2**18)) * 4, 0.0)
    assert not connection.outbound.output
    connection.release(stream, 2**19 - 1)
    assert not connection.outbound.output
    connection.release(stream, 1)
    assert sent_frames(connection) == [(8, 0, 1, (2**19).to_bytes(4))]
    connection.expect(stream, 2**21)
    assert sent_frames(connection) == [(8, 0, 1, (2**21 - 2**19).to_bytes(4))]


def test_each_expected_message_widens_the_window() -> None:
    connection = server(HELLO + OPEN)
    stream, window = connection.streams[1], limits.STREAM_WINDOW
    for _ in range(2):
        connection.expect(stream, 3 * window)
        connection.receive(data(1, bytes(2**18)) * 12, 0.0)
        assert stream.receive_window == 0
        connection.release(stream, 3 * window)
        assert stream.receive_window == window
    granted = [int.from_bytes(each[3]) for each in sent_frames(connection) if each[:3] == (8, 0, 1)]
    assert sum(granted) == 6 * window


def test_the_connections_window_is_refilled() -> None:
    connection = server()
    for number in range(1, 17, 2):
        connection.receive(headers(number) + data(number, bytes(2**18)) * 4, 0.0)
    updates = [each for each in sent_frames(connection) if each[0] == 8]
    assert updates == [(8, 0, 0, (2**23).to_bytes(4))]


FLOODS = {
    "resets": lambda i: headers(2 * i + 1) + frames.reset(2 * i + 1, 8),
    "empty DATA": lambda i: data(1) if i else OPEN,
    "PRIORITY frames": lambda i: frame(2, 0, 1, bytes(5)),
    "window updates": lambda i: window_update(0, 1),
    "frames of unknown types": lambda i: frame(77, 0, 0),
    "streams that break rules": lambda i: headers(2 * i + 1, OK),
    "GOAWAY frames": lambda i: frame(7, 0, 0, bytes(8)),
    "PING acknowledgements": lambda i: frame(6, 1, 0, bytes(8)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_floods_end_the_connection(flood: str) -> None:
    connection = server()
    count = 0
    while not connection.is_closed:
        events = connection.receive(FLOODS[flood](count), 0.0)
        connection.take_output()
        count += 1
    assert failure(events) == (Code.ENHANCE_YOUR_CALM, f"too many {flood}")
    assert limits.GLITCH_BURST - 2 <= count <= limits.GLITCH_BURST + 2


@pytest.mark.parametrize("flood", FLOODS)
def test_occasional_control_frames_are_accepted(flood: str) -> None:
    connection = server()
    for count in range(3000):
        connection.receive(FLOODS[flood](count), count / limits.GLITCH_RATE)
        assert not connection.is_closed


def test_pings_are_acknowledged_up_to_a_limit() -> None:
    connection = server()
    ping = frame(6, 0, 0, b"whatever")
    for _ in range(5):
        assert connection.receive(ping, 0.0) == []
        assert sent_frames(connection) == [(6, 1, 0, b"whatever")]
    assert connection.receive(ping, 0.5) == []
    assert failure(connection.receive(ping, 0.5)) == (Code.ENHANCE_YOUR_CALM, "too_many_pings")


def test_pings_during_responses_are_accepted() -> None:
    connection = server()
    for number in range(1, 200, 2):
        connection.receive(request_frame(number) + frame(6, 0, 0, bytes(8)), 0.0)
        connection.send_headers(connection.streams[number], OK, end=True)
    assert not connection.is_closed


def test_window_updates_for_sent_data_are_accepted() -> None:
    connection = server(frames.PREFACE + setting(4, 1) + request_frame(1))
    connection.send_data(connection.streams[1], [bytes(2000)], b"")
    for _ in range(1999):
        connection.receive(window_update(1, 1) + window_update(0, 1), 0.0)
    assert not connection.is_closed
    assert not connection.streams


def test_a_drain_announces_the_last_stream_and_finishes_open_streams() -> None:
    connection = server()
    connection.receive(request_frame(1), 0.0)
    connection.take_output()
    connection.drain()
    connection.drain()
    (goaway, ping) = sent_frames(connection)
    assert frames.read_goaway(goaway[3])[:2] == (frames.LAST_STREAM, 0)
    connection.receive(request_frame(3), 0.0)  # in flight
    assert sorted(connection.streams) == [1, 3]
    connection.receive(frame(6, 1, 0, ping[3]) + request_frame(5), 0.0)
    goaway, reset = sent_frames(connection)
    assert frames.read_goaway(goaway[3])[:2] == (3, 0)
    assert reset[:3] == (3, 0, 5)
    assert not connection.is_drained
    for stream in tuple(connection.streams.values()):
        connection.send_headers(stream, OK, end=True)
    assert connection.is_drained


def test_a_client_sends_a_request_and_reads_the_response() -> None:
    connection = client()
    stream = connection.open_stream(REQUEST, [b"a", b"b"])
    assert sent_frames(connection) == [
        (1, 4, 1, header_blocks.TABLE_SIZE_ZERO + REQUEST),
        (0, 1, 1, b"ab"),
    ]
    block = encode_block((":status", "103"))
    events = connection.receive(headers(1, block) + headers(1, OK) + data(1, b"hi"), 0.0)
    events += connection.receive(headers(1, TRAILERS, END), 0.0)
    assert [type(event) for event in events] == [Headers, Data, Trailers]
    assert not connection.streams
    assert connection.open_stream(REQUEST, []).id == stream.id + 2
    assert sent_frames(connection) == [(1, 4, 3, REQUEST), (0, 1, 3, b"")]


CLIENT_CONNECTION_ERRORS = {
    "a response on an idle stream": (headers(3, OK), Code.PROTOCOL_ERROR),
    "a stream of the server": (headers(2, OK), Code.PROTOCOL_ERROR),
    "a push": (frame(5, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "a table size over the acknowledged limit": (
        frames.SETTINGS_ACK + headers(1, b"\x21" + OK), Code.COMPRESSION_ERROR,
    ),
    "push enabled": (setting(2, 1), Code.PROTOCOL_ERROR),
    "too many interim responses": (
        headers(1, encode_block((":status", "103"))) * 501, Code.ENHANCE_YOUR_CALM,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLIENT_CONNECTION_ERRORS)
def test_errors_that_end_a_clients_connection(case: str) -> None:
    wire_bytes, code = CLIENT_CONNECTION_ERRORS[case]
    connection = client()
    connection.open_stream(REQUEST, [b"x"])
    assert failure(connection.receive(wire_bytes, 0.0))[0] == code


CLIENT_STREAM_ERRORS = {
    "no status": headers(1, TRAILERS),
    "an invalid status": headers(1, encode_block((":status", "2OO"))),
    "a request": headers(1),
    "101": headers(1, encode_block((":status", "101"))),
    "an interim response with END_STREAM": headers(1, encode_block((":status", "100")), END),
    "DATA before headers": data(1, b"x"),
    "a length and no body": headers(1, OK + encode_block(("content-length", "1")), END),
}


@pytest.mark.parametrize("case", CLIENT_STREAM_ERRORS)
def test_errors_that_end_a_clients_stream(case: str) -> None:
    connection = client()
    connection.open_stream(REQUEST, [b"x"])
    connection.take_output()
    events = connection.receive(CLIENT_STREAM_ERRORS[case], 0.0)
    assert ended_streams(events) == [(1, Code.PROTOCOL_ERROR)]
    assert resets(connection) == [(1, Code.PROTOCOL_ERROR)]


def test_a_goaway_resets_unprocessed_streams() -> None:
    connection = client()
    first, second = [connection.open_stream(REQUEST, [b"x"]) for _ in range(2)]
    events = connection.receive(frames.goaway(1, 0, "bye") + headers(1, OK), 0.0)
    reset, goaway, response = events
    assert reset == Reset(second, 0, is_unprocessed=True)
    assert goaway == Goaway(0, b"bye")
    assert isinstance(response, Headers)
    assert response.stream is first
    assert not connection.can_open_stream


def test_a_refused_stream_is_unprocessed() -> None:
    connection = client()
    stream = connection.open_stream(REQUEST, [b"x"])
    (reset,) = connection.receive(frames.reset(1, 7), 0.0)
    assert reset == Reset(stream, 7, is_unprocessed=True)


def test_the_server_limits_concurrent_streams() -> None:
    connection = client()
    assert connection.can_open_stream
    connection.receive(setting(3, 1), 0.0)
    stream = connection.open_stream(REQUEST, [b"x"])
    assert not connection.can_open_stream
    connection.reset(stream, Code.CANCEL)
    assert connection.can_open_stream
    assert resets(connection) == [(1, 8)]


def test_no_frame_is_sent_on_a_reset_stream() -> None:
    connection = server(HELLO + request_frame(1))
    stream = connection.streams[1]
    connection.receive(frames.reset(1, 8), 0.0)
    connection.take_output()
    connection.send_headers(stream, OK)
    assert connection.send_data(stream, [b"x"], TRAILERS)
    connection.reset(stream, Code.CANCEL)
    connection.release(stream, 2**20)
    assert not connection.outbound.output

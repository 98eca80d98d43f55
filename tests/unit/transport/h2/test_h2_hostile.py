"""Hostile peers have a bounded cost, and unusual frames of legitimate peers are accepted."""

import time

from h2_kit import (
    HELLO,
    OK,
    TRAILERS,
    data,
    ended_streams,
    failure,
    headers,
    resets,
    sent_data,
    sent_frames,
    server,
)

from infergate.transport.http2 import frames, limits
from infergate.transport.http2.events import Data, Headers
from infergate.transport.http2.frames import Code, frame, window_update
from infergate.transport.http2.roles import Http2ServerConnection
from infergate.transport.http2.stream import Stream

SIZE = 100_000


def window(size: int) -> tuple[int, int]:
    return frames.INITIAL_WINDOW_SIZE, size


def with_waiting_responses(streams: int) -> Http2ServerConnection:
    """Return a connection whose ``streams`` responses of SIZE bytes wait for window updates."""
    connection = Http2ServerConnection(4096, streams)
    connection.receive(frames.PREFACE + frames.settings([window(0)]), 0.0)
    connection.receive(window_update(0, 2**30), 0.0)
    for number in range(1, 2 * streams, 2):
        (event,) = connection.receive(headers(number), 0.0)
        assert isinstance(event, Headers)
        connection.send_headers(event.stream, OK)
        connection.send_data(event.stream, [bytes(SIZE)], TRAILERS)
    connection.take_output()
    return connection


def test_window_settings_are_limited() -> None:
    """Each increment of the initial window causes a DATA frame of every waiting response."""
    connection = with_waiting_responses(100)
    count = 0
    while not connection.is_closed:
        steps = [window(64 * count + step + 1) for step in range(64)]
        events = connection.receive(frames.settings(steps), 0.0)
        assert len(sent_data(connection)) <= 100
        count += 1
    assert failure(events) == (Code.ENHANCE_YOUR_CALM, "too many SETTINGS")
    assert count <= limits.SETTINGS_BURST + 1


def test_occasional_settings_are_accepted() -> None:
    connection = server()
    for count in range(1000):
        connection.receive(frames.settings([window(count)]), count / limits.SETTINGS_RATE)
    assert not connection.is_closed


def test_the_last_of_several_window_settings_applies() -> None:
    connection = with_waiting_responses(1)
    connection.receive(frames.settings([window(50), window(2**31 - 1), window(7)]), 0.0)
    assert sent_frames(connection)[1:] == [(frames.DATA, 0, 1, bytes(7))]
    assert failure(connection.receive(frames.settings([window(2**31), window(7)]), 0.0))[0] == 3


def test_a_response_is_sent_in_windows_of_one_byte() -> None:
    connection = with_waiting_responses(1)
    received = b""
    start = time.process_time()
    while connection.streams[1].local_open:
        connection.receive(window_update(1, 1), 0.0)
        assert not connection.is_closed
        received += b"".join(sent_data(connection))
    assert received == bytes(SIZE)
    assert time.process_time() - start < 100 * SIZE / 1e6


def test_a_window_may_become_negative() -> None:
    connection = with_waiting_responses(1)
    connection.receive(frames.settings([window(100)]), 0.0)
    connection.take_output()
    connection.receive(frames.settings([window(10)]), 0.0)  # the window is now -90
    for size, expected in ((89, 0), (1, 0), (1, 1)):
        connection.receive(window_update(1, size), 0.0)
        assert len(b"".join(sent_data(connection))) == expected


def test_stream_errors_are_limited() -> None:
    """The client provokes resets by the server (CVE-2025-8671)."""
    for invalid_frame in (
        lambda number: window_update(number, 0),
        lambda number: window_update(number, 2**31 - 1),
        lambda number: frame(frames.PRIORITY, 0, number, bytes(4)),
        lambda number: headers(number, TRAILERS),
    ):
        connection, number = server(), -1
        while not connection.is_closed:
            number += 2
            events = connection.receive(headers(number) + invalid_frame(number), 0.0)
            assert len(connection.streams) <= 1
            connection.take_output()
        assert number < 2 * limits.GLITCH_BURST + 10
        assert failure(events)[0] == Code.ENHANCE_YOUR_CALM


def test_one_window_update_for_each_stream_is_accepted() -> None:
    """grpcio's clients send a window update with each call, and may have thousands of calls in
    progress."""
    connection = Http2ServerConnection(4096, 3000)
    connection.receive(HELLO, 0.0)
    for number in range(1, 6000, 2):
        wire_bytes = headers(number) + window_update(number, 5) + window_update(0, 5)
        assert len(connection.receive(wire_bytes, 0.0)) == 1
    assert len(connection.streams) == 3000
    count = 0
    while not connection.is_closed:
        events = connection.receive(window_update(1, 1), 0.0)
        count += 1
    assert failure(events) == (Code.ENHANCE_YOUR_CALM, "too many window updates")
    assert count <= limits.GLITCH_BURST + 1


def test_more_streams_may_be_refused_before_the_settings_are_acknowledged() -> None:
    """Envoy may open a thousand streams on a new connection before it receives the limit."""
    for is_acknowledged, expected in (
        (False, limits.EARLY_REFUSED_STREAMS + limits.GLITCH_BURST),
        (True, limits.GLITCH_BURST),
    ):
        connection, number = server(HELLO + frame(4, 1, 0) if is_acknowledged else HELLO), -1
        while not connection.is_closed:
            number += 2
            events = connection.receive(headers(number), 0.0)
            connection.take_output()
            assert len(connection.streams) <= 10 + (0 if is_acknowledged else limits.EARLY_STREAMS)
        assert expected <= number // 2 < expected + 20
        assert failure(events)[0] == Code.ENHANCE_YOUR_CALM


def test_frames_in_flight_after_goaway_are_ignored() -> None:
    connection = server(HELLO + headers(1))
    connection.drain()
    connection.announce_last_stream()
    connection.take_output()
    wire_bytes = headers(3) + data(3, b"x") + window_update(3, 5) + frames.reset(3, 8)
    assert connection.receive(wire_bytes + headers(5) + data(5, b"y", 1), 0.0) == []
    assert resets(connection) == [(3, 7), (5, 7)]
    (event,) = connection.receive(data(1, b"a", 1), 0.0)
    assert isinstance(event, Data)
    connection.fail(Code.INTERNAL_ERROR, "")
    assert frames.read_goaway(sent_frames(connection)[-1][3])[0] == 1, "the last stream ID stays 1"


def test_padding_does_not_use_up_the_window() -> None:
    """A stream's window is sized for the announced message without padding."""
    connection = server(HELLO + headers(1))
    stream: Stream = connection.streams[1]
    size = 3 * limits.STREAM_WINDOW
    connection.expect(stream, size)
    connection.take_output()
    remaining, received = size, 0
    while received < size:
        for kind, _, number, payload in sent_frames(connection):
            if (kind, number) == (frames.WINDOW_UPDATE, 1):
                remaining += int.from_bytes(payload)
        piece = min(1000, size - received)
        assert remaining >= piece, "the window fits the rest of the message"
        if remaining > piece + 200:
            remaining -= piece + 201
            wire_bytes = data(1, b"\xc8" + bytes(piece + 200), frames.PADDED)
        else:
            remaining -= piece
            wire_bytes = data(1, bytes(piece))
        assert ended_streams(connection.receive(wire_bytes, 0.0)) == []
        received += piece

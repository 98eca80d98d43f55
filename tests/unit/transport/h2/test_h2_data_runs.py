"""Consecutive DATA frames are handled together, with the same result as separate frames."""

import weakref

import pytest
from h2_kit import (
    HELLO,
    MAX_STREAMS,
    REQUEST,
    data,
    ended_streams,
    failure,
    headers,
    request_frame,
    resets,
    server,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_h2_fuzz import PHASES, feed, pieces

from infergate.transport.http2 import frames, header_blocks, limits
from infergate.transport.http2.connection import Http2Connection
from infergate.transport.http2.events import Data, Event, Failed, Reset
from infergate.transport.http2.frames import Code, frame
from infergate.transport.http2.roles import Http2ServerConnection
from searching import examples

FRAME_SIZE = 16_384
"""The default of SETTINGS_MAX_FRAME_SIZE."""


def headers_with_length(number: int, length: int) -> bytes:
    return headers(number, REQUEST + header_blocks.encode_block(("content-length", str(length))))


def bodies(events: list[Event]) -> list[Data]:
    return [event for event in events if isinstance(event, Data)]


def test_a_run_is_one_event() -> None:
    connection = server()
    body = [bytes([n]) * FRAME_SIZE for n in range(37)]
    wire_bytes = headers(1) + b"".join(data(1, each) for each in body) + data(1, b"end", 1)
    (event,) = bodies(connection.receive(wire_bytes, 0.0))
    assert (len(event.parts), event.size, event.end) == (38, 37 * FRAME_SIZE + 3, True)
    assert b"".join(event.parts) == b"".join(body) + b"end"


def test_an_idle_connection_does_not_hold_the_bytes_of_its_last_read() -> None:
    connection = server()
    (event,) = bodies(connection.receive(headers(1) + data(1, bytes(5000), 1), 0.0))
    part = weakref.ref(event.parts[0])
    del event
    assert part() is None


def test_data_of_one_stream_in_one_read_is_one_event() -> None:
    """A peer that sends short frames must not cause an event for each frame."""
    connection = server()
    body = [b"x" * (1 + number % 2) for number in range(1000)]
    wire_bytes = headers(1) + b"".join(data(1, each) for each in body) + data(1, b"end", 1)
    (event,) = bodies(connection.receive(wire_bytes, 0.0))
    assert b"".join(event.parts) == b"".join(body) + b"end"
    assert (event.size, event.end) == (1503, True)


INTERRUPTIONS: dict[str, bytes] = {
    "another length": data(1, b"x"),
    "another stream": data(3, bytes(100)),
    "padding": frame(0, frames.PADDED, 1, b"\5" + bytes(99)),
    "an unknown flag": frame(0, 2, 1, bytes(100)),
    "a PING": frame(frames.PING, 0, 0, bytes(8)),
    "an unknown frame": frame(99, 0, 1, bytes(100)),
    "an empty frame": data(1),
}


@pytest.mark.parametrize("case", INTERRUPTIONS)
def test_other_frames_may_interrupt_a_run(case: str) -> None:
    def opened_connection() -> Http2Connection:
        connection = server()
        feed(connection, [headers(1) + headers(3)])
        return connection

    wire_bytes = (
        data(1, bytes(100)) * 5 + INTERRUPTIONS[case] + data(1, bytes(100)) * 5 + data(1, b"e", 1)
    )
    joined, split = opened_connection(), opened_connection()
    events = feed(joined, [wire_bytes])
    assert events == feed(split, [wire_bytes[i : i + 1] for i in range(len(wire_bytes))])
    assert b"".join(map(bytes, joined.take_output())) == b"".join(map(bytes, split.take_output()))
    assert any(len(body) > 1000 for _, body in events)  # type: ignore[misc]


def test_a_run_beyond_the_streams_window_resets_the_stream() -> None:
    connection = server()
    count = limits.STREAM_WINDOW // FRAME_SIZE
    events = connection.receive(
        headers(1) + headers(3) + data(1, bytes(FRAME_SIZE)) * (count + 5), 0.0
    )
    run, *_ = bodies(events)
    assert run.size == limits.STREAM_WINDOW
    assert ended_streams(events) == [(1, Code.FLOW_CONTROL_ERROR)]
    assert resets(connection) == [(1, Code.FLOW_CONTROL_ERROR)]
    assert list(connection.streams) == [3]


def test_a_run_beyond_the_content_length_resets_the_stream() -> None:
    connection = server()
    events = connection.receive(headers_with_length(1, 350) + data(1, bytes(100)) * 9, 0.0)
    assert sum(event.size for event in bodies(events)) == 300
    assert ended_streams(events) == [(1, Code.PROTOCOL_ERROR)]


def test_a_run_of_exactly_the_content_length_is_accepted() -> None:
    connection = server()
    events = connection.receive(
        headers_with_length(1, 300) + data(1, bytes(100)) * 3 + data(1, b"", 1), 0.0
    )
    assert [(event.size, event.end) for event in bodies(events)] == [(300, True)]
    assert not ended_streams(events)


def test_a_run_beyond_the_connections_window_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_WINDOW", 70_000)
    connection = server()
    connection._unreleased = -(2**40)  # so the window is never updated
    events = connection.receive(headers(1) + data(1, bytes(1000)) * 100, 0.0)
    assert failure(events)[0] == Code.FLOW_CONTROL_ERROR
    assert sum(event.size for event in bodies(events)) == 70_000


RUN = data(1, bytes(9)) * 9
FATAL_RUNS: dict[str, tuple[bytes, Code, str]] = {
    "before SETTINGS": (
        frames.PREFACE + RUN, Code.PROTOCOL_ERROR, "the first frame is not SETTINGS",
    ),
    "on stream 0": (
        HELLO + data(0, bytes(9)) * 9, Code.PROTOCOL_ERROR,
        "a DATA frame is on stream 0, or its padding exceeds its length",
    ),
    "on an idle stream": (
        HELLO + RUN, Code.PROTOCOL_ERROR, "DATA on a stream that was never opened",
    ),
    "inside a header block": (
        HELLO + headers(1) + headers(3, flags=0) + RUN, Code.PROTOCOL_ERROR,
        "a header block was interrupted",
    ),
    "of oversized frames": (
        HELLO + headers(1) + data(1, bytes(limits.MAX_FRAME + 1)) * 2, Code.FRAME_SIZE_ERROR,
        "a frame is too long",
    ),
    "of empty frames": (
        HELLO + headers(1) + data(1) * 1000, Code.ENHANCE_YOUR_CALM, "too many empty DATA",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FATAL_RUNS)
def test_an_invalid_run_ends_the_connection(case: str) -> None:
    wire_bytes, code, reason = FATAL_RUNS[case]
    events = Http2ServerConnection(4096, MAX_STREAMS).receive(wire_bytes, 0.0)
    assert failure(events) == (code, reason)
    assert not any(event.size for event in bodies(events))


def test_a_run_on_an_ended_stream_resets_it() -> None:
    events = server().receive(request_frame(1) + RUN, 0.0)
    assert not bodies(events)
    assert ended_streams(events) == [(1, Code.STREAM_CLOSED)]


def test_a_run_on_a_reset_stream_is_discarded() -> None:
    connection = server()
    connection.receive(headers(1), 0.0)
    connection.reset(connection.streams[1], Code.CANCEL)
    before = connection._receive_window
    assert connection.receive(data(1, bytes(100)) * 9, 0.0) == []
    assert connection._receive_window == before - 900  # still counted for flow control


_SIZES = st.sampled_from([0, 1, 2, 99, 100, 499, 500, 501, 1000])
_RUN = st.builds(
    lambda number, size, count: data(number, bytes(size)) * count,
    st.sampled_from([1, 1, 1, 3, 5]), _SIZES, st.integers(1, 12),
)  # fmt: skip
_OTHER_FRAMES = st.sampled_from(
    [
        data(1, b"end", 1),
        data(3, b"", 1),
        frames.reset(1, 8),
        frame(frames.PING, 0, 0, bytes(8)),
        frame(0, frames.PADDED, 1, b"\3abcd" + bytes(3)),
        headers(
            1,
            header_blocks.encode_block(("grpc-status", "0")),
            frames.END_HEADERS | frames.END_STREAM,
        ),
        headers(5),
        data(1, bytes(1001)),
    ]
)
_STEPS = st.lists(st.integers(1, 2000), max_size=30)


@pytest.mark.parametrize("length", [None, 500, 2000, 100_000])
@settings(max_examples=examples(150), deadline=None, phases=PHASES)
@given(wire_bytes=st.lists(_RUN | _RUN | _OTHER_FRAMES, max_size=12).map(b"".join), steps=_STEPS)
def test_runs_may_be_split(length: int | None, wire_bytes: bytes, steps: list[int]) -> None:
    """The windows are so small that they are exhausted and refilled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STREAM_WINDOW", 4000)
        patch.setattr(limits, "CONNECTION_WINDOW", 66_000)
        patch.setattr(limits, "MAX_FRAME", 1000)
        first = headers(1) if length is None else headers_with_length(1, length)

        def opened_connection() -> Http2Connection:
            connection = server()
            feed(connection, [first + headers(3)])
            connection.expect(connection.streams[3], 9000)
            return connection

        unsplit, split, bytewise = opened_connection(), opened_connection(), opened_connection()
        events = feed(unsplit, [wire_bytes])
        output = b"".join(map(bytes, unsplit.take_output()))
        for other, parts in (
            (split, pieces(wire_bytes, steps)),
            (bytewise, [wire_bytes[n : n + 1] for n in range(len(wire_bytes))]),
        ):
            assert feed(other, parts) == events
            assert b"".join(map(bytes, other.take_output())) == output
            assert state(other) == state(unsplit)


def state(connection: Http2Connection) -> object:
    return (
        connection.is_closed,
        connection._receive_window,
        connection._unreleased,
        connection._glitch_budget._tokens,
        {n: (s.receive_window, s.unreleased, s.remaining_length, s.remote_open,
             b"".join(s.owner or ()))
         for n, s in connection.streams.items()},
    )  # fmt: skip


def test_a_run_of_tiny_frames_is_accepted() -> None:
    connection = server()
    wire_bytes = headers(1) + data(1, b"x") * 20_000
    events = connection.receive(wire_bytes, 0.0)
    assert not any(isinstance(event, Failed | Reset) for event in events)
    assert sum(event.size for event in bodies(events)) == 20_000
    assert not connection._unparsed

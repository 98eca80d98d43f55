"""Reading of frames from a stream that is split anywhere, and encoding of their prefixes."""

import pytest
from frame_kit import framed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.transport.framed import frame_reader
from infergate.transport.framed.frame_reader import MAX_READ_AHEAD, FrameReader, encode_prefix

LENGTHS = st.one_of(
    st.integers(0, 20), st.integers(MAX_READ_AHEAD - 9, MAX_READ_AHEAD + 9), st.integers(0, 70_000)
)


def read_frames(stream: bytes, sizes: list[int]) -> list[bytes]:
    frames, bodies, position, reads = FrameReader(), [], 0, 0
    is_open = False
    while True:
        if is_open:
            body = frames.take()
            if body is not None:
                is_open = False
                bodies.append(bytes(body))
                continue
        elif (length := frames.announced_length) is not None:
            frames.open(length)
            is_open = True
            continue
        if position == len(stream):
            assert not is_open
            assert not frames.has_partial_frame
            return bodies
        buffer = frames.get_buffer()
        count = min(len(buffer), sizes[reads % len(sizes)], len(stream) - position)
        assert count
        buffer[:count] = stream[position : position + count]
        frames.buffer_written(count)
        position, reads = position + count, reads + 1


@settings(deadline=None)
@given(st.lists(LENGTHS, max_size=6), st.lists(st.integers(1, 100_000), min_size=1, max_size=5))
@example([3, 0, 1], [1])
def test_frames_are_read_however_they_are_split(lengths: list[int], sizes: list[int]) -> None:
    bodies = [bytes((index + i) % 251 for i in range(each)) for index, each in enumerate(lengths)]
    assert read_frames(b"".join(map(framed, bodies)), sizes) == bodies


def test_reading_ahead_is_limited() -> None:
    frames = FrameReader()
    frames.buffer_written(len(frames.get_buffer()))
    assert frames.is_full
    assert len(frames.get_buffer()) == 0
    frames.skip(0)
    assert not frames.is_full
    assert len(frames.get_buffer()) == 4


def test_discarding_frees_the_buffer() -> None:
    frames = FrameReader()
    frames.buffer_written(len(frames.get_buffer()))
    frames.discard()
    assert len(frames.get_buffer()) == MAX_READ_AHEAD
    assert not frames.has_partial_frame
    frames.get_buffer()[:5] = framed(b"ab")[:5]
    frames.buffer_written(5)
    frames.open(2)
    frames.discard()
    assert frames.take() is None
    assert len(frames.get_buffer()) == MAX_READ_AHEAD


def test_a_long_frame_is_received_into_its_own_buffer() -> None:
    frames = FrameReader()
    head = framed(b"x" * 100_000)[:10]
    frames.get_buffer()[:10] = head
    frames.buffer_written(10)
    frames.open(100_000)
    buffer = frames.get_buffer()
    assert len(buffer) == 100_000 - 6 + 1  # the extra byte detects excess bytes
    buffer[:-1] = b"y" * (100_000 - 6)
    frames.buffer_written(100_000 - 6)
    body = frames.take()
    assert body is not None
    assert body == b"x" * 6 + b"y" * (100_000 - 6)
    assert body.obj is buffer.obj


def test_frame_prefixes_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert frame_reader.MAX_LENGTH == 2**32 - 1
    monkeypatch.setattr(frame_reader, "MAX_LENGTH", 3)
    assert encode_prefix([b"ab", memoryview(b"c")]) == b"\3\0\0\0"
    with raises_kind(Kind.TOO_LARGE):
        encode_prefix([b"ab", b"cd"])

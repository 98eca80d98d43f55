"""The reset streams of an HTTP/2 connection, and the frames that may still arrive on them."""

from __future__ import annotations

from collections import OrderedDict

from infergate.transport.http2 import limits
from infergate.transport.http2.frames import Code, Http2StreamError


class ClosedStreams:
    """The most recently reset streams. Frames that were in flight when the gateway reset a stream
    are not charged to the peer's budget."""

    def __init__(self) -> None:
        self._allowed: OrderedDict[int, tuple[int, int] | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._allowed)

    def __contains__(self, number: int) -> bool:
        return number in self._allowed

    def add(self, number: int, allowed: tuple[int, int] | None) -> None:
        """Add a stream. `allowed` has the bytes of DATA and the number of header blocks that may
        still arrive after a reset by the gateway. It is None if the peer reset the stream."""
        self._allowed[number] = allowed
        if len(self._allowed) > limits.MAX_CLOSED_STREAMS:
            self._allowed.popitem(last=False)

    def accept_data(self, number: int, size: int) -> bool:
        """Return whether `size` bytes of DATA were in flight. Raises Http2StreamError unless the
        gateway has recently reset the stream."""
        remaining_bytes, remaining_blocks = self._in_flight(number)
        if not 0 < size <= remaining_bytes:
            return False
        self._allowed[number] = remaining_bytes - size, remaining_blocks
        return True

    def accept_headers(self, number: int) -> bool:
        """Return whether a header block was in flight. Raises Http2StreamError unless the gateway
        has recently reset the stream."""
        remaining_bytes, remaining_blocks = self._in_flight(number)
        if not remaining_blocks:
            return False
        self._allowed[number] = remaining_bytes, remaining_blocks - 1
        return True

    def _in_flight(self, number: int) -> tuple[int, int]:
        allowed = self._allowed.get(number)
        if allowed is None:
            raise Http2StreamError(number, Code.STREAM_CLOSED)
        return allowed

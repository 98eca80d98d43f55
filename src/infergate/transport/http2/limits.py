"""Limits on the demands of one HTTP/2 peer, in addition to :class:`~infergate.core.limits.Limits`
(docs/limits.md). A limit with a rate is a token bucket (`FrameBudget`): each frame uses one
token. Tokens are refilled over time, and for some limits also when the gateway sends frames."""

from __future__ import annotations

from typing import Final

from infergate.core.limits import KIB, MIB

STREAM_WINDOW: Final = 1 * MIB
"""Number of bytes that a peer may send on a stream before the application has consumed them. For a
longer message, the window is raised when the length is announced, within the body limits."""
CONNECTION_WINDOW: Final = 16 * MIB
"""Number of bytes that a peer may send on all streams before the gateway reads the bytes from the
socket."""
MAX_FRAME: Final = 256 * KIB
"""The longest accepted frame. DATA is passed on as it arrives, and is not held until
the frame is complete."""
HEADER_BLOCK_FACTOR: Final = 4
"""The maximum size of a header block as a multiple of the header limit. A call whose block exceeds
the header limit is refused with an error. A block larger than this maximum is skipped and its
stream is reset. Until the peer has acknowledged the SETTINGS, a block may change the dynamic table
of HPACK and cannot be skipped, so the connection ends."""
MAX_CONTINUATIONS: Final = 32  # CONTINUATION frames per header block
MAX_SETTINGS: Final = 64  # settings per SETTINGS frame
MAX_GOAWAY: Final = 16 * KIB  # the longest GOAWAY frame, in bytes
GLITCH_BURST: Final = 500.0
"""Bucket size for frames that advance no request (nghttp2: 1000). Examples are resets, empty DATA,
priorities, window updates that no DATA from the gateway has caused, refused streams, and unknown
frames. Each HEADERS or DATA frame that the gateway sends adds two tokens."""
GLITCH_RATE: Final = 50.0  # tokens per second for frames that advance no request (nghttp2: 33)
SETTINGS_BURST: Final = 100.0
"""Bucket size for SETTINGS frames. Frames that the gateway sends do not refill this bucket, because
a SETTINGS frame may enlarge the windows of all streams, and so cause many frames to be sent."""
SETTINGS_RATE: Final = 10.0
"""Tokens per second for SETTINGS. Clients that adapt their windows to the bandwidth send fewer."""
EARLY_STREAMS: Final = 1024
"""Streams beyond `limits.streams` that a client may open before it has acknowledged the SETTINGS;
RFC 9113 sets no limit until then. (Envoy starts a connection with all queued calls, at most
1024.)"""
EARLY_HEADER_BYTES: Final = 4 * MIB
"""Total header bytes of a connection's early streams, with 32 bytes added per field."""
EARLY_SECONDS: Final = 10.0
"""Seconds after a client's SETTINGS during which it may open early streams."""
EARLY_REFUSED_STREAMS: Final = 4096
"""Number of first streams of a connection whose refusal is not charged to the budget, until the
client has acknowledged the SETTINGS."""
PING_BURST: Final = 5.0
"""Bucket size for PING frames (grpc: 2). The bucket is full again after the gateway has sent
HEADERS or DATA."""
PING_RATE: Final = 2.0  # tokens per second for PINGs, twice the rate of a reasonable client
MAX_CLOSED_STREAMS: Final = 1024
"""Closed streams per connection on which late frames are still recognized."""
MAX_CACHED_BLOCKS: Final = 512  # cached header blocks per connection
MAX_CACHED_BLOCK_BYTES: Final = 4 * KIB
"""The largest cached block, encoded or decoded (with 32 bytes per field)."""
MAX_CACHE_BYTES: Final = 256 * KIB
"""Total size of a connection's cached blocks. They use up to four times that much memory."""
MAX_HEADER_TEMPLATES: Final = 16  # header templates per connection, each from a cached block

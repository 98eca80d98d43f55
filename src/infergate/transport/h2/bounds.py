"""Bounds on what one HTTP/2 peer may ask of us, beside :class:`~infergate.core.limits.Limits`.

Where a bound is a budget, each frame of the kind costs one; it fills up with time, and with each
frame of ours that gave the peer a reason to send some (docs/limits.md).
"""

from __future__ import annotations

from typing import Final

from infergate.core.limits import KIB, MIB

STREAM_WINDOW: Final = 1 * MIB
"""What a peer may send on a stream before anybody has looked at it. A message that is announced
longer is let in as far as the limits on bodies go."""
CONNECTION_WINDOW: Final = 16 * MIB
"""What a peer may send on all streams before it is read from the socket."""
FRAME: Final = 256 * KIB
"""The longest frame taken. DATA is handed on as it comes, so none is ever held whole."""
BLOCK_TIMES: Final = 4
"""How many times the limit on headers a header block may have: up to there the call is told so,
beyond it the block is not read and the stream is reset, once the peer has acknowledged our
SETTINGS (until then it may use a table, and the connection ends)."""
CONTINUATIONS: Final = 32
"""CONTINUATION frames of one header block."""
SETTINGS_ENTRIES: Final = 64
"""Settings in one frame."""
LONGEST_GOAWAY: Final = 16 * KIB
"""Bytes of a GOAWAY."""
CALM: Final = 500.0
"""Frames that serve nobody and are put up with at once: resets, empty DATA, priorities,
window updates that no DATA of ours asked for, refused streams, unknown frames (nghttp2: 1000)."""
CALM_RATE: Final = 50.0
"""How many more of them a second (nghttp2: 33)."""
CHANGES: Final = 100.0
"""SETTINGS that are put up with at once. Each may let every stream send a little more, so what we
send does not pay for them."""
CHANGES_RATE: Final = 10.0
"""How many more of them a second: a client that measures its line changes its windows less."""
EARLY_STREAMS: Final = 1024
"""Streams beyond ``limits.streams`` that a client may open before it has acknowledged our SETTINGS
(Envoy begins a connection with all calls that wait, 1024 at most): until then RFC 9113 sets no
bound."""
EARLY_HEADERS: Final = 4 * MIB
"""What the headers of those may come to on a connection, 32 bytes counted for each field."""
EARLY_TIME: Final = 10.0
"""Seconds after a client's SETTINGS in which it has to acknowledge ours to open that many."""
EARLY_REFUSALS: Final = 4096
"""Streams of such a client beyond that, which are refused without being counted as a flood."""
PINGS: Final = 5.0
"""PINGs at once, without DATA or headers of ours between (grpc: 2)."""
PINGS_RATE: Final = 2.0
"""How many more of them a second: half of the shortest interval that clients sensibly choose."""
REMEMBERED_RESETS: Final = 1024
"""Streams that we reset, of which more may be on its way."""
REMEMBERED_BLOCKS: Final = 512
"""Header blocks of a connection whose meaning is remembered."""
LONGEST_REMEMBERED: Final = 4 * KIB
"""What such a block may come to, 32 bytes counted for each field; and its bytes."""
REMEMBERED_BYTES: Final = 256 * KIB
"""What all of them may, so counted; what they take is up to four times that."""

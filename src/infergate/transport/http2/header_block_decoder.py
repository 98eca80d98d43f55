"""Decodes and caches the header blocks of a connection.

The gateway announces a dynamic table of size 0. A block that neither reads nor changes the table
always has the same meaning, so its parsed form is cached; if only some values differ from an
earlier block, only these values are decoded (`header_templates`). Encoders that ignore the table's
size (grpcio) add every field to the table, which has no effect if the size is 0 (RFC 7541, 4.4).

A decoding error ends the connection, but an invalid field concerns only one stream. A block is
therefore decoded completely before it is validated.

Once a peer acknowledges the SETTINGS, its table is empty, and an update to a size other than 0 is
an error (RFC 7541, 4.2). The required update to size 0 may be missing: some peers that never use a
table omit it.
"""

from __future__ import annotations

from typing import Final

from infergate.core.bounded_cache import GenerationalCache
from infergate.transport.http2 import limits
from infergate.transport.http2.header_blocks import HeaderBlock
from infergate.transport.http2.header_templates import HeaderTemplates
from infergate.transport.http2.hpack_decoder import HpackDecoder


class HeaderBlockDecoder:
    """Decodes header blocks of at most `max_size` decoded bytes. `cache` holds the most recently
    used blocks. Callers look in `cache` first to save a call."""

    def __init__(self, max_size: int) -> None:
        self._decoder: Final = HpackDecoder(max_size)
        self.cache: Final = GenerationalCache[bytes, HeaderBlock](
            limits.MAX_CACHED_BLOCKS, limits.MAX_CACHE_BYTES
        )
        self._templates: Final = HeaderTemplates(max_size)

    def disable_table(self) -> None:
        """Drop the peer's dynamic table, because the peer acknowledged the SETTINGS. Cached blocks
        are also dropped, because a cached block may set the table to a size that is now invalid."""
        self._decoder.disable_table()
        self._forget()

    def _forget(self) -> None:
        self.cache.clear()
        self._templates.clear()

    def decode(self, block: bytes) -> HeaderBlock:
        """Return the fields of `block`. Raises Http2ConnectionError if decoding fails."""
        cache = self.cache
        return (
            cache.get(block)
            or self._templates.read(block)
            or cache.revive(block)
            or self._read(block)
        )

    def _read(self, block: bytes) -> HeaderBlock:
        decoder = self._decoder
        fields = HeaderBlock(decoder.decode(block))
        if decoder.is_stateless:
            # One byte can encode a complete field, and many bytes can encode no field.
            weight = max(fields.size, len(block))
            if weight <= limits.MAX_CACHED_BLOCK_BYTES:
                self.cache.add(block, fields, weight)
                self._templates.add(block, fields)
        elif decoder.is_resized:  # a cached block may set the table back to its previous size
            self._forget()
        return fields

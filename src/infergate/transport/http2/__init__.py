"""HTTP/2 (RFC 9113) without sockets: both ends of a connection. Each end converts received bytes to
events, and method calls to bytes to send.

The entry points are `Http2ServerConnection` and `Http2ClientConnection` in `roles`. Read `frames`
(the wire format), `frame_reader` (bytes to frames), `stream`, `events`, `connection` (the rules
that both ends share), `roles`, `closed_streams`, `outbound` (flow control and output), `huffman`,
`hpack_decoder`, `header_blocks`, `header_templates` and `header_block_decoder` (header
compression), then `limits` and `frame_budget` (protection from abusive peers).
"""

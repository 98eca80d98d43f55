"""HTTP/2 (RFC 9113) without sockets: bytes in, events and bytes out. For gRPC, both ends of it."""

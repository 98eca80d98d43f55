"""HTTP/1.1 without sockets: bytes in, messages out."""

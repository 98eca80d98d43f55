"""HTTP/1.1 without sockets: bytes in, requests out."""

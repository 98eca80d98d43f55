"""HTTP servers that tests run in place of other servers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """Handles HTTP/1.1 requests with ``get`` and ``post``, and writes no log lines. Without
    ``post``, ``get`` handles POST requests as well."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def get(self) -> None:
        self.respond(404)

    def post(self) -> None:
        self.get()

    def body(self) -> bytes:
        """Read the body of the request."""
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def respond(
        self, status: int, body: Any = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a response. A body that is not bytes is sent as JSON."""
        all_headers = {"content-type": "application/json", **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**all_headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


class StandInServer(ThreadingHTTPServer):
    """A server at ``address`` (``host:port``). A thread serves from ``start`` to ``stop``."""

    request_queue_size = 1000

    def __init__(
        self,
        handler: Callable[..., BaseHTTPRequestHandler],
        context: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), handler)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server_port}"
        self._thread = Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

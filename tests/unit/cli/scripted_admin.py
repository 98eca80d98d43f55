"""An admin listener with scripted JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@contextmanager
def scripted_admin(respond: Callable[[str], Any]) -> Iterator[str]:
    """Yield ``host:port`` of a server that sends ``respond(path)`` as JSON, and 404 for None."""

    class Admin(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fields = respond(self.path)
            body = b"no" if fields is None else json.dumps(fields).encode()
            self.send_response(404 if fields is None else 200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Admin)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

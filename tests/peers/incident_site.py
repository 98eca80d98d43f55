"""A gateway with backends that tests can slow down, break and stop."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.running import Infergate, started_infergate
from http_stand_in import QuietHandler, StandInServer
from peers.console_site import LISTENERS

CONFIG = """
log: {{access: false}}
reload: {{watch: false}}
backends:
  good: {{protocol: v2-rest, endpoints: ["http://{good}"], health: {{checks: never}}}}
  slow: {{protocol: v2-rest, endpoints: ["http://{slow}"], health: {{checks: never}}}}
  failing: {{protocol: v2-rest, endpoints: ["http://{failing}"], health: {{checks: never}}}}
  flapping:
    protocol: v2-rest
    endpoints: ["http://{good}", "http://{flapping}"]
    balance: {{policy: round-robin}}
    health: {{checks: never}}
    outliers: {{consecutive_errors: 2}}
routes:
  - {{model: good, backend: good}}
  - {{model: slow, backend: slow}}
  - {{model: failing, backend: failing, timeout: 3s}}
  - {{model: flapping, backend: flapping}}
"""
BODY = json.dumps(
    {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]}
).encode()


class StubServer:
    """A V2 server that responds to inferences after ``delay`` seconds or, if it ``is_broken``, not
    at all. If ``rejects`` is not empty, a body that contains it gets status 400. ``requests``
    counts the inferences."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.is_broken = False
        self.rejects = b""
        self.requests = 0
        stub = self

        class Handler(QuietHandler):
            def get(self) -> None:  # readiness
                self.close_connection = stub.is_broken
                if not stub.is_broken:
                    self._respond(200, b"")

            def post(self) -> None:
                stub.requests += 1
                body = self.body()
                if stub.is_broken:
                    self.close_connection = True
                    return
                time.sleep(stub.delay)
                if stub.rejects and stub.rejects in body:
                    self._respond(400, {"error": "unexpected input"})
                    return
                outputs = [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}]
                self._respond(200, {"model_name": "m", "outputs": outputs})

            def _respond(self, status: int, body: Any) -> None:
                # Connections are closed so that a closed server gets no requests.
                with contextlib.suppress(ConnectionError):  # the gateway no longer waits
                    self.respond(status, body, {"connection": "close"})

        self._handler = Handler
        self._port = 0
        self.open()

    def open(self) -> None:
        """Accept connections from now on."""
        self._server = StandInServer(self._handler, port=self._port)
        self._port, self.address = self._server.server_port, self._server.address
        self._is_open = True
        self._server.start()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._is_open:
            self._is_open = False
            self._server.stop()


@dataclass
class Incident:
    """A running gateway, its configuration ``file``, and its backends."""

    gateway: Infergate
    file: Path
    servers: dict[str, StubServer]

    @property
    def url(self) -> str:
        return f"http://{self.gateway.admin}/console/"

    def infer(self, model: str, body: bytes = BODY) -> int:
        """Send an inference request, and return its status."""
        url = f"http://{self.gateway.http}/v2/models/{model}/infer"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body)) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    def history(self, query: str = "") -> Any:
        with urllib.request.urlopen(f"{self.url}history?{query}") as response:
            return json.load(response)

    def reload(self) -> None:
        headers = {"x-infergate-console": "1"}
        url = f"http://{self.gateway.admin}/reload"
        request = urllib.request.Request(url, headers=headers, method="POST")
        with contextlib.suppress(urllib.error.HTTPError):  # a rejected configuration
            urllib.request.urlopen(request).close()


@contextmanager
def run_incident(config: str = CONFIG) -> Iterator[Incident]:
    """Run a gateway with ``config``, a format string with a field for each server's address."""
    with ExitStack() as stack:
        servers = {name: StubServer() for name in ("good", "slow", "failing", "flapping")}
        for server in servers.values():
            stack.callback(server.close)
        addresses = {name: server.address for name, server in servers.items()}
        gateway = stack.enter_context(started_infergate(config.format(**addresses), LISTENERS))
        yield Incident(gateway, gateway.log.parent / "routes.yaml", servers)

"""Scripts of faulty HTTP and gRPC backends, and a gateway in front of two scripted backends."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import grpc
import pytest

from e2e.running import ENGINE, Infergate, started_infergate
from faults import h2
from faults.low_limits import good
from faults.payloads import document, tensor
from faults.peer import Answer, Backend, Connection, Script, good_http, post, scripted
from faults.rpc import Status, call, channel, infer_message, ok_response
from faults.watch import MIB, assert_healthy, counted, rises, until

REQUESTS = "infergate_requests_total"
TIMEOUT = 0.2
"""Seconds after which a request to one of the routes ``….late`` times out."""
BODY = 8 * MIB
CONFIG = """
backends:
  shop: {{protocol: v2-rest, endpoints: ["http://{rest}"], profile: infergate}}
  depot: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
  nobody-http: {{protocol: v2-rest, endpoints: ["http://{nobody}"], profile: infergate}}
  nobody-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{nobody}"]}}
  hole-http: {{protocol: v2-rest, endpoints: ["http://{hole}"], profile: infergate,
    connect_time: 100ms}}
  hole-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{hole}"], connect_time: 100ms}}
  ours: {{protocol: builtin}}
routes:
  - {{model: rest.fwd, backend: shop, timeout: 1s, rewrite: &fwd {{model: m}}}}
  - {{model: rest.tr, backend: shop, timeout: 1s, rewrite: &tr {{model: m, inputs: {{no: none}}}}}}
  - {{model: grpc.fwd, backend: depot, timeout: 1s, rewrite: *fwd}}
  - {{model: grpc.tr, backend: depot, timeout: 1s, rewrite: *tr}}
  - {{model: rest.fwd.late, backend: shop, timeout: {timeout}s, rewrite: *fwd}}
  - {{model: rest.tr.late, backend: shop, timeout: {timeout}s, rewrite: *tr}}
  - {{model: grpc.fwd.late, backend: depot, timeout: {timeout}s, rewrite: *fwd}}
  - {{model: grpc.tr.late, backend: depot, timeout: {timeout}s, rewrite: *tr}}
  - {{model: nobody.rest, backend: nobody-http}}
  - {{model: nobody.grpc, backend: nobody-grpc}}
  - {{model: hole.rest, backend: hole-http}}
  - {{model: hole.grpc, backend: hole-grpc}}
  - {{model: identity, backend: ours}}
limits: {{body: 8MiB, connect_time: 20s}}
readiness: lenient
"""
EXPECTED = {
    "connect": (502, "UNAVAILABLE"),
    "timeout": (504, "DEADLINE_EXCEEDED"),
    "backend_garbage": (502, "INTERNAL"),
    "backend_error": (500, "INTERNAL"),
    "too_large": (413, "RESOURCE_EXHAUSTED"),
    "no_backend": (503, "UNAVAILABLE"),
    "overloaded": (503, "UNAVAILABLE"),
    "rate_limited": (429, "RESOURCE_EXHAUSTED"),
    "bad_request": (400, "INVALID_ARGUMENT"),
    "not_found": (404, "NOT_FOUND"),
    "unsupported": (501, "UNIMPLEMENTED"),
    "cancelled": (499, "CANCELLED"),
}
"""The HTTP status and the gRPC code of each outcome."""
RELAYED = re.compile("it broke|busy|full|no such|SHAPE|HTTP 5|http2 header with status")
"""The backends' own error texts, which are passed on."""


@dataclass(frozen=True)
class Harness:
    gateway: Infergate
    rest: Backend
    rpc: Backend
    channel: grpc.Channel
    nobody: str

    def send_rest(self, model: str, body: bytes | None = None, binary: int = 0) -> Answer:
        """Send a request with ``binary`` bytes after its JSON ``body``. Return the response."""
        request = document(tensor()) if body is None else body
        headers = {"Inference-Header-Content-Length": str(len(request))} if binary else {}
        path = f"/v2/models/{model}/infer"
        return post(self.gateway.http, path, request + bytes(binary), headers)

    def send_grpc(self, model: str) -> Status:
        return call(self.channel, infer_message(model))

    def good(self, model: str) -> None:
        """Check that ``model`` is served through both frontends. On a busy machine, any request may
        take longer than the timeout, and is then sent again."""
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        with self.serves(model, 2):
            statuses = (self.send_rest(model).status for _ in range(10))
            assert next((each for each in statuses if each != 504), 504) == 200
            codes = (self.send_grpc(model).code for _ in range(10))
            assert next((each for each in codes if each is not late), late) is grpc.StatusCode.OK

    def serves(self, model: str, times: int = 1) -> AbstractContextManager[None]:
        """Check that ``model`` is served ``times`` times within the block, according to the
        metric."""
        return rises(self.gateway, REQUESTS, by=times, route=model, outcome="ok")

    def restore(self) -> None:
        """Restore the valid responses of both backends, even if a test left them failing."""
        if self.rest.script is not good_http:
            self.rest.use(good_http)
        if self.rpc.script is not good_rpc:
            self.rpc.use(good_rpc)
        until(lambda: self.send_rest("grpc.fwd").status == 200, "the gateway is connected again")
        self.good("rest.fwd")

    def others(self) -> None:
        good(self.gateway)

    def fails(self, model: str, backend: str, kind: str) -> None:
        """Check that requests for ``model`` have the outcome ``kind`` through both frontends."""
        http_status, grpc_code = EXPECTED[kind]
        for _ in range(10):  # on a busy machine, any request may take longer than the timeout
            before = counted(self.gateway, backend=backend, outcome=kind)
            response, status = self.send_rest(model), self.send_grpc(model)
            is_late = response.status == 504 or status.code is grpc.StatusCode.DEADLINE_EXCEEDED
            if kind == "timeout" or not is_late:
                break
        assert response.status == http_status, response
        self._check_error(response.error, backend)
        assert status.code is grpc.StatusCode[grpc_code], status
        self._check_error(status.details, backend)
        assert counted(self.gateway, backend=backend, outcome=kind) == before + 2
        self.others()

    def _check_error(self, error_text: str, backend: str) -> None:
        assert f"backend '{backend}'" in error_text or RELAYED.search(error_text), error_text
        for address in (self.rest.address, self.rpc.address, self.nobody):
            host, _, port = address.rpartition(":")
            assert host not in error_text
            assert port not in error_text
        assert "Traceback" not in error_text
        assert "File " not in error_text


def good_rpc(connection: Connection, backend: Backend) -> None:
    """Record every call, and respond to it."""
    server = h2.Server(connection)
    while True:
        stream = server.call()
        backend.requests.append(stream)
        server.send(h2.answer(stream, ok_response()))


@contextmanager
def black_hole() -> Iterator[str]:
    """Return an address at which connections get no reply: the backlog of its listener is full, so
    Linux drops further packets."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def started_harness() -> Iterator[Harness]:
    with (
        socket.socket() as unused,
        black_hole() as hole,
        scripted(good_http) as rest,
        scripted(good_rpc) as rpc,
    ):
        unused.bind(("127.0.0.1", 0))  # never listens
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        config = CONFIG.format(
            rest=rest.address, grpc=rpc.address, nobody=nobody, hole=hole, timeout=TIMEOUT
        )
        with started_infergate(config) as gateway, channel(gateway.grpc) as rpc_channel:
            harness = Harness(gateway, rest, rpc, rpc_channel, nobody)
            for model in ("rest.fwd", "rest.tr", "grpc.fwd", "grpc.tr"):
                harness.good(model)
            yield harness
            assert_healthy(gateway)


Faults = Mapping[str, tuple[str, Script]]
"""The outcome of requests and the script of the backend, by case id."""


def over_http(faults: Faults) -> Callable[..., None]:
    """Return a test of all ``faults`` over HTTP, with and without translation of the request."""

    @pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
    @pytest.mark.parametrize("fault", faults)
    def test_over_http(harness: Harness, model: str, fault: str) -> None:
        kind, script = faults[fault]
        harness.rest.use(script)
        check_failure(harness, model, "shop", kind)
        harness.rest.use(good_http)
        harness.good(model)

    return test_over_http


def over_grpc(faults: Faults, own_engine: Mapping[str, str] | None = None) -> Callable[..., None]:
    """Return a test of all ``faults`` over gRPC. ``own_engine`` has the outcomes that differ with
    infergate's own engine."""
    own_outcomes = own_engine if own_engine and ENGINE == "own" else {}

    @pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
    @pytest.mark.parametrize("fault", faults)
    def test_over_grpc(harness: Harness, model: str, fault: str) -> None:
        kind, script = faults[fault]
        harness.rpc.use(script)
        check_failure(harness, model, "depot", own_outcomes.get(fault, kind))
        harness.rpc.use(good_rpc)
        until(lambda: harness.send_rest(model).status == 200, "the gateway is connected again")
        harness.good(model)

    return test_over_grpc


def check_failure(harness: Harness, model: str, backend: str, kind: str) -> None:
    began = time.monotonic()
    if kind == "timeout":
        harness.fails(f"{model}.late", backend, kind)
        assert time.monotonic() - began >= 2 * TIMEOUT
    else:
        harness.fails(model, backend, kind)


# ---- over HTTP


def write_once(*parts: bytes, then: Callable[[Connection], None] | None = None) -> Script:
    """Return a script that reads a request, writes ``parts``, and then closes or runs ``then``."""

    def script(connection: Connection, backend: Backend) -> None:
        connection.request()
        for each in parts:
            connection.write(each)
        if then is not None:
            then(connection)

    return script


def respond_with(response: bytes) -> Script:
    """Return a script that writes ``response`` to each request, on a persistent connection."""

    def script(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            connection.write(response)

    return script


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


# ---- over gRPC


def send_frames(*make: Callable[[int], bytes], wait: bool = True) -> Script:
    """Return a script that sends frames for each call. Without ``wait``, it closes after a call."""

    def script(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        server.send(*_frames_of(server.call()))
        while wait:
            server.send(*_frames_of(server.call()))

    def _frames_of(stream: int) -> list[bytes]:
        return [each(stream) for each in make]

    return script


def data_frame(payload: bytes) -> Callable[[int], bytes]:
    return lambda stream: h2.data(stream, payload)


def trailers(*pairs: tuple[str, str]) -> Callable[[int], bytes]:
    return lambda stream: h2.trailers(stream, *pairs)


END = trailers(("grpc-status", "0"))
MESSAGE = h2.message(ok_response())

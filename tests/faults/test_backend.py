"""Backends that fail in every way, over both protocols: the client learns what happened and whose
fault it was, but no address and no traceback; it is counted; the next good request works."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import ENGINE, Infergate, started_infergate
from faults import h2
from faults.payloads import document, tensor
from faults.peer import (
    GOOD_BODY,
    Answer,
    Backend,
    Connection,
    Script,
    good_http,
    http_answer,
    post,
    scripted,
)
from faults.rpc import Status, call, channel, good_answer, infer_message
from faults.watch import alive, complaints, counted, descriptors_come_back, until

TIMEOUT = 0.5
BODY = 128 * 1024
CONFIG = """
backends:
  shop: {{protocol: v2-rest, endpoints: ["http://{rest}"], profile: infergate}}
  depot: {{protocol: v2-grpc, endpoints: ["grpc://{grpc}"]}}
  nobody-http: {{protocol: v2-rest, endpoints: ["http://{nobody}"], profile: infergate}}
  nobody-grpc: {{protocol: v2-grpc, endpoints: ["grpc://{nobody}"]}}
  ours: {{protocol: builtin}}
routes:
  - {{model: rest.fwd, backend: shop, timeout: 500ms, rewrite: {{model: m}}}}
  - {{model: rest.tr, backend: shop, timeout: 500ms, rewrite: {{model: m, inputs: {{no: none}}}}}}
  - {{model: grpc.fwd, backend: depot, timeout: 500ms, rewrite: {{model: m}}}}
  - {{model: grpc.tr, backend: depot, timeout: 500ms, rewrite: {{model: m, inputs: {{no: none}}}}}}
  - {{model: nobody.rest, backend: nobody-http}}
  - {{model: nobody.grpc, backend: nobody-grpc}}
  - {{model: identity, backend: ours}}
limits: {{body: 128KiB}}
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
"""The statuses of each outcome."""
RELAYED = re.compile("it broke|busy|full|no such|SHAPE|HTTP 5|http2 header with status")
"""What the backends below say themselves: told as it is."""


@dataclass(frozen=True)
class Site:
    gateway: Infergate
    rest: Backend
    rpc: Backend
    channel: grpc.Channel
    nobody: str

    def ask_rest(self, model: str, body: bytes | None = None) -> Answer:
        asked = document(tensor()) if body is None else body
        return post(self.gateway.http, f"/v2/models/{model}/infer", asked)

    def ask_grpc(self, model: str) -> Status:
        return call(self.channel, infer_message(model))

    def good(self, model: str) -> None:
        assert self.ask_rest(model).status == 200
        assert self.ask_grpc(model).code is grpc.StatusCode.OK

    def others(self) -> None:
        asked = document(tensor(), tensor(name="INPUT1"))
        assert self.ask_rest("identity", asked).status == 200

    def fails(self, model: str, backend: str, kind: str) -> None:
        """``model`` fails so through both frontends."""
        http_status, grpc_code = EXPECTED[kind]
        before = counted(self.gateway, backend=backend, outcome=kind)
        told = self.ask_rest(model)
        assert told.status == http_status, told
        self._words(told.error, backend)
        status = self.ask_grpc(model)
        assert status.code is grpc.StatusCode[grpc_code], status
        self._words(status.details, backend)
        assert counted(self.gateway, backend=backend, outcome=kind) == before + 2
        self.others()

    def _words(self, said: str, backend: str) -> None:
        assert f"backend '{backend}'" in said or RELAYED.search(said), said
        for address in (self.rest.address, self.rpc.address, self.nobody):
            host, _, port = address.rpartition(":")
            assert host not in said
            assert port not in said
        assert "Traceback" not in said
        assert "File " not in said


def good_rpc(connection: Connection, backend: Backend) -> None:
    server = h2.Server(connection)
    while True:
        server.send(h2.answer(server.call(), good_answer()))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with socket.socket() as unused, scripted(good_http) as rest, scripted(good_rpc) as rpc:
        unused.bind(("127.0.0.1", 0))  # never listens
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        config = CONFIG.format(rest=rest.address, grpc=rpc.address, nobody=nobody)
        with started_infergate(config) as gateway, channel(gateway.grpc) as made:
            site = Site(gateway, rest, rpc, made, nobody)
            for model in ("rest.fwd", "rest.tr", "grpc.fwd", "grpc.tr"):
                site.good(model)
            yield site
            assert alive(gateway)
            assert complaints(gateway) == ""
            assert counted(gateway, outcome="internal") == 0


# ---- V2 REST ---------------------------------------------------------------------------------


def says(*written: bytes, then: Callable[[Connection], None] | None = None) -> Script:
    """Reads one request, writes, and closes, or does ``then``."""

    def script(connection: Connection, backend: Backend) -> None:
        connection.request()
        for each in written:
            connection.write(each)
        if then is not None:
            then(connection)

    return script


def answers(whole: bytes) -> Script:
    """``whole`` to each request, on a connection that stays."""

    def script(connection: Connection, backend: Backend) -> None:
        while True:
            connection.request()
            connection.write(whole)

    return script


def _changed(**members: object) -> bytes:
    told = json.loads(GOOD_BODY)
    told["outputs"][0].update(members)
    return http_answer(json.dumps(told).encode())


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
HALF = http_answer(GOOD_BODY)[:-9]
CHUNK = b"%x\r\n%b\r\n" % (60_000, b" " * 60_000)
TRACEBACK = (
    b'Traceback (most recent call last):\n  File "/srv/x.py", line 3\nValueError: it broke\n'
)
HTTP: dict[str, tuple[str, Script]] = {
    "silence": ("timeout", says(then=Connection.gone)),
    "half a head, then silence": ("timeout", says(HEAD, then=Connection.gone)),
    "half a body, then silence": ("timeout", says(HALF, then=Connection.gone)),
    "interim answers only": ("timeout", says(b"HTTP/1.1 102 P\r\n\r\n" * 9, then=Connection.gone)),
    "closed before an answer": ("backend_garbage", says()),
    "reset before an answer": ("backend_garbage", says(then=Connection.reset)),
    "closed in the status line": ("backend_garbage", says(b"HTTP/1.1 2")),
    "closed in the headers": ("backend_garbage", says(HEAD + b"Content-Le")),
    "closed in the body": ("backend_garbage", says(HALF)),
    "closed in a chunk": ("backend_garbage", says(CHUNKED + b"5\r\nab")),
    "a length too short": (
        "backend_garbage",
        says(HEAD + b"Content-Length: 20\r\n\r\n" + GOOD_BODY, then=Connection.gone),
    ),
    "a length that is none": (
        "backend_garbage", says(HEAD + b"Content-Length: x\r\n\r\n" + GOOD_BODY),
    ),
    "another protocol": ("backend_garbage", says(b"SSH-2.0-OpenSSH_9.2\r\n")),
    "HTTP/2": ("backend_garbage", says(h2.frame(h2.SETTINGS, 0, 0))),
    "zeros": ("backend_garbage", says(bytes(1000))),
    "endless headers": ("backend_garbage", says(HEAD + b"A: " + b"x" * 70_000)),
    "very many headers": ("backend_garbage", says(HEAD + b"A: b\r\n" * 300 + b"\r\n")),
    "HTML": ("backend_garbage", answers(http_answer(b"<html><title>Hi</title></html>"))),
    "nothing": ("backend_garbage", answers(http_answer(b""))),
    "an array": ("backend_garbage", answers(http_answer(b"[]"))),
    "no outputs": ("backend_garbage", answers(http_answer(b'{"model_name":"m"}'))),
    "204": ("backend_garbage", answers(b"HTTP/1.1 204 No Content\r\n\r\n")),
    "a redirect": ("backend_garbage", answers(http_answer(b"", "302 Found", "Location: http://x/\r\n"))),
    "gzip that is none": (
        "backend_garbage", answers(http_answer(GOOD_BODY, headers="Content-Encoding: gzip\r\n")),
    ),
    "a gzip bomb": (
        "backend_garbage",
        answers(http_answer(gzip.compress(bytes(1 << 20)), headers="Content-Encoding: gzip\r\n")),
    ),
    "an unknown encoding": (
        "backend_garbage", answers(http_answer(GOOD_BODY, headers="Content-Encoding: br\r\n")),
    ),
    "a JSON length past the end": (
        "backend_garbage",
        answers(http_answer(GOOD_BODY, headers="Inference-Header-Content-Length: 5000\r\n")),
    ),
    "an announced answer too large": (
        "too_large", says(HEAD + b"Content-Length: %d\r\n\r\n" % (BODY + 1), then=Connection.gone),
    ),
    "chunks too large": (
        "too_large",
        says(CHUNKED + CHUNK * 4, then=Connection.gone),
    ),
    "an error under 200": ("backend_error", answers(http_answer(b'{"error":"it broke"}'))),
    "500": ("backend_error", answers(http_answer(b'{"error":"it broke"}', "500 X"))),
    "500 with a traceback": ("backend_error", answers(http_answer(TRACEBACK, "500 X"))),
    "500 with nothing": ("backend_error", answers(http_answer(b"", "500 X"))),
    "503 with HTML": ("no_backend", answers(http_answer(b"<html><title>busy</title>", "503 X"))),
    "429": ("rate_limited", answers(http_answer(b"full", "429 X", "Retry-After: 7\r\n"))),
    "404": ("not_found", answers(http_answer(b'{"error":"no such model"}', "404 X"))),
    "422 of FastAPI": ("bad_request", answers(http_answer(b'{"detail":"SHAPE"}', "422 X"))),
}  # fmt: skip


@pytest.mark.parametrize("model", ["rest.fwd", "rest.tr"])
@pytest.mark.parametrize("fault", HTTP)
def test_http(site: Site, model: str, fault: str) -> None:
    kind, script = HTTP[fault]
    with descriptors_come_back(site.gateway.pid):
        site.rest.use(script)
        began = time.monotonic()
        site.fails(model, "shop", kind)
        if kind == "timeout":
            assert time.monotonic() - began >= 2 * TIMEOUT
        site.rest.use(good_http)
    site.good(model)


WRONG_OUTPUTS: dict[str, bytes] = {
    "too few elements": _changed(shape=[2]),
    "too many elements": _changed(data=[7, 8]),
    "an unknown datatype": _changed(datatype="FLOAT"),
    "a value out of range": _changed(data=[2**40]),
    "a negative dimension": _changed(shape=[-1]),
    "no data": _changed(data=None),
    "a size and no bytes": _changed(data=None, parameters={"binary_data_size": 4}),
}


@pytest.mark.parametrize("wrong", WRONG_OUTPUTS)
def test_http_outputs_that_do_not_fit(site: Site, wrong: str) -> None:
    site.rest.use(answers(WRONG_OUTPUTS[wrong]))
    site.fails("rest.tr", "shop", "backend_garbage")
    site.rest.use(good_http)
    site.good("rest.tr")


def test_http_a_forwarded_answer_is_the_backends_word(site: Site) -> None:
    """Its tensors are not read, as if there were no gateway."""
    site.rest.use(answers(WRONG_OUTPUTS["too few elements"]))
    told = json.loads(site.ask_rest("rest.fwd").body)
    assert (told["model_name"], told["outputs"][0]["shape"]) == ("rest.fwd", [2])
    site.rest.use(good_http)


def test_http_an_output_that_was_asked_for_is_missing(site: Site) -> None:
    told = site.ask_rest("rest.tr", document(tensor(), outputs=[{"name": "OTHER"}]))
    assert told.status == 502
    assert "OTHER" in told.error


def test_http_bytes_after_the_answer_end_the_connection(site: Site) -> None:
    """The answer is whole; what follows must never be read as the next one."""
    evil = http_answer(b'{"error":"it broke"}')
    site.rest.use(says(http_answer(GOOD_BODY) + evil, then=Connection.gone))
    for _ in range(3):
        before = site.rest.connections
        site.good("rest.fwd")
        assert site.rest.connections == before + 2
    site.rest.use(good_http)


def test_http_a_connection_that_grew_stale_is_not_used(site: Site) -> None:
    def once(connection: Connection, backend: Backend) -> None:
        connection.request()
        connection.write(http_answer(GOOD_BODY))
        connection.half_close()
        connection.gone()  # the gateway has noticed
        backend.requests.append("gone")

    site.rest.use(once)
    for _ in range(3):
        before = site.rest.requests.count("gone")
        assert site.ask_rest("rest.fwd").status == 200
        until(lambda n=before: site.rest.requests.count("gone") > n, "the gateway lets go")  # type: ignore[misc]
    site.rest.use(good_http)


def test_http_interim_answers_are_passed_over(site: Site) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    site.rest.use(answers(interim + http_answer(GOOD_BODY)))
    site.good("rest.fwd")
    site.rest.use(good_http)


def test_http_headers_of_the_connection_stay_there(site: Site) -> None:
    own = (
        "Connection: keep-alive, X-Secret\r\nKeep-Alive: timeout=5\r\nX-Secret: 1\r\n"
        "Set-Cookie: a=b\r\nServer: shop\r\nProxy-Authenticate: Basic\r\nTrailer: X-End\r\n"
        "Upgrade: h2c\r\nX-Own: 1\r\nEndpoint-Load-Metrics: cpu=1\r\n"
    )
    site.rest.use(answers(http_answer(GOOD_BODY, headers=own)))
    for model in ("rest.fwd", "rest.tr"):
        told = site.ask_rest(model)
        assert told.status == 200
        assert set(told.headers) <= {
            "server", "date", "content-type", "content-length", "endpoint-load-metrics",
        }  # fmt: skip
        assert told.headers["server"] == "infergate"
        assert told.headers["endpoint-load-metrics"] == "cpu=1"  # by the default rule
    site.rest.use(good_http)


# ---- V2 gRPC ---------------------------------------------------------------------------------


def sends(*make: Callable[[int], bytes], wait: bool = True) -> Script:
    """These frames for each call, on its stream; or for one, and closes."""

    def script(connection: Connection, backend: Backend) -> None:
        server = h2.Server(connection)
        server.send(*_made(server.call()))
        while wait:
            server.send(*_made(server.call()))

    def _made(stream: int) -> list[bytes]:
        return [each(stream) for each in make]

    return script


def _data(payload: bytes) -> Callable[[int], bytes]:
    return lambda stream: h2.data(stream, payload)


def _ends(*pairs: tuple[str, str]) -> Callable[[int], bytes]:
    return lambda stream: h2.trailers(stream, *pairs)


def _status(code: int, words: str) -> Script:
    return sends(h2.headers, _ends(("grpc-status", str(code)), ("grpc-message", words)))


def _only(status: int, kind: str) -> Script:
    block = h2.fields((":status", str(status)), ("content-type", kind))
    return sends(
        lambda stream: h2.headers(stream, block),
        lambda stream: h2.frame(h2.DATA, h2.END_STREAM, stream, b"<html>"),
    )


_OK = _ends(("grpc-status", "0"))
_GOOD = h2.message(good_answer())
RPC: dict[str, tuple[str, Script]] = {
    "silence": ("timeout", sends()),
    "headers, then silence": ("timeout", sends(h2.headers)),
    "half a message, then silence": ("timeout", sends(h2.headers, _data(_GOOD[:9]))),
    "closed before an answer": ("backend_garbage", sends(wait=False)),
    "closed after the headers": ("backend_garbage", sends(h2.headers, wait=False)),
    "closed in a message": ("backend_garbage", sends(h2.headers, _data(_GOOD[:9]), wait=False)),
    "closed before the status": ("backend_garbage", sends(h2.headers, _data(_GOOD), wait=False)),
    "GOAWAY": (
        "backend_garbage",
        sends(lambda _: h2.frame(h2.GOAWAY, 0, 0, bytes(8)), wait=False),
    ),
    "no grpc-status": ("backend_garbage", sends(h2.headers, _data(_GOOD), _ends(("x", "y")))),
    "a grpc-status that is none": (
        "backend_garbage", sends(h2.headers, _data(_GOOD), _ends(("grpc-status", "fine"))),
    ),
    "HTML under 200": ("backend_garbage", _only(200, "text/html")),
    "HTML under 404": ("unsupported", _only(404, "text/html")),  # gRPC's table of HTTP statuses
    "HTML under 503": ("no_backend", _only(503, "text/html")),
    "a message cut short": ("backend_garbage", sends(h2.headers, _data(_GOOD[:-3]), _OK)),
    "no message": ("backend_garbage", sends(h2.headers, _OK)),
    # grpcio reads one message and then waits for a status that stands behind what it does not read
    "two messages": ("timeout", sends(h2.headers, _data(_GOOD * 2), _OK)),
    "bytes after the message": ("timeout", sends(h2.headers, _data(_GOOD + b"x"), _OK)),
    "compressed without saying how": (
        "backend_garbage", sends(h2.headers, _data(b"\1" + _GOOD[1:]), _OK),
    ),
    "no protobuf": ("backend_garbage", sends(h2.headers, _data(h2.message(b"\x0b\xff")), _OK)),
    "an answer too large": (
        "too_large", sends(h2.headers, _data(b"\0\x00\x10\0\0" + b"x" * 10_000)),
    ),
    "INTERNAL": ("backend_error", _status(13, "it broke")),
    "UNKNOWN": ("backend_error", _status(2, "it broke")),
    "a status that is none": ("backend_error", _status(99, "it broke")),
    "UNAVAILABLE": ("no_backend", _status(14, "busy")),
    "INVALID_ARGUMENT": ("bad_request", _status(3, "SHAPE")),
    "NOT_FOUND": ("not_found", _status(5, "no such model")),
    "UNIMPLEMENTED": ("unsupported", _status(12, "no such method")),
}  # fmt: skip


OWN = {
    # The calls it leaves out were not looked at.
    "GOAWAY": "connect",
    # What comes is read as it comes, so what is too much is seen at once.
    "two messages": "backend_garbage",
    "bytes after the message": "backend_garbage",
}
"""What infergate's own engine tells apart better."""


@pytest.mark.parametrize("model", ["grpc.fwd", "grpc.tr"])
@pytest.mark.parametrize("fault", RPC)
def test_grpc(site: Site, model: str, fault: str) -> None:
    kind, script = RPC[fault]
    if ENGINE == "own":
        kind = OWN.get(fault, kind)
    site.rpc.use(script)
    began = time.monotonic()
    site.fails(model, "depot", kind)
    if kind == "timeout":
        assert time.monotonic() - began >= 2 * TIMEOUT
    site.rpc.use(good_rpc)
    until(lambda: site.ask_rest(model).status == 200, "it is connected again")
    site.good(model)


def _answer(*outputs: tuple[str, list[int], bytes | None]) -> Script:
    told = pb.ModelInferResponse(model_name="m")
    for datatype, shape, raw in outputs:
        told.outputs.add(name=f"O{len(told.outputs)}", datatype=datatype, shape=shape)
        if raw is not None:
            told.raw_output_contents.append(raw)
    return sends(h2.headers, _data(h2.message(told.SerializeToString())), _OK)


@pytest.mark.parametrize(
    "script",
    [
        _answer(("INT32", [1], b"\7\0\0")),
        _answer(("INT32", [1], b"\7\0\0\0\0")),
        _answer(("INT32", [1], b"\7\0\0\0"), ("INT32", [1], None), ("INT32", [1], None)),
        _answer(("INT32", [1], None)),
        _answer(("FLOAT", [1], b"\7\0\0\0")),
        _answer(("INT32", [-1], b"\7\0\0\0")),
        _answer(("BYTES", [1], b"\x09\0\0\0abc")),
    ],
    ids=["short", "long", "too few", "none", "datatype", "negative", "string"],
)
def test_grpc_outputs_that_do_not_fit(site: Site, script: Script) -> None:
    site.rpc.use(script)
    site.fails("grpc.tr", "depot", "backend_garbage")
    site.rpc.use(good_rpc)
    until(lambda: site.ask_rest("grpc.tr").status == 200, "it is connected again")


# ---- nobody there ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "backend"), [("nobody.rest", "nobody-http"), ("nobody.grpc", "nobody-grpc")]
)
def test_refused(site: Site, model: str, backend: str) -> None:
    for _ in range(3):
        site.fails(model, backend, "connect")

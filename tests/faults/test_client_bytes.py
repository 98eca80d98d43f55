"""HTTP/1 clients that are slow, broken or hostile: each gets its right answer or none, others are
served meanwhile, and what it cost is given back."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import zlib
from collections.abc import Iterator

import pytest

from e2e.running import ENGINE, Infergate, started_infergate
from faults.h2 import PREFACE
from faults.peer import Client, post
from faults.watch import (
    SECONDS,
    alive,
    children,
    complaints,
    counted,
    descriptors_come_back,
    growing_at_most,
    until,
)

HEADERS = 4096
COUNT = 20
MIB = 1 << 20
CONFIG = f"""
backends:
  ours: {{protocol: builtin}}
routes:
  - {{model: "*", backend: ours}}
limits:
  headers: {HEADERS}
  header_count: {COUNT}
  header_time: 1s
  idle_body_time: 1s
  keepalive_time: 1s
  body: 8MiB
"""
PATH = "/v2/models/identity/infer"


def body(identity: str = "", elements: int = 1) -> bytes:
    inputs = [
        {"name": name, "datatype": "UINT8", "shape": [elements], "data": [7] * elements}
        for name in ("INPUT0", "INPUT1")
    ]
    return json.dumps({"id": identity, "inputs": inputs}).encode()


def _dear(elements: int) -> bytes:
    told = {"name": "INPUT0", "datatype": "FP32", "shape": [elements], "data": []}
    data = "[" + "0," * (elements - 1) + "NaN]"
    return json.dumps({"inputs": [told]}).replace("[]", data).encode()


GOOD = body()
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)


def head(*lines: str, length: int | None = len(GOOD), path: str = PATH) -> bytes:
    own = ["Host: x"] if length is None else ["Host: x", f"Content-Length: {length}"]
    return "".join(f"{line}\r\n" for line in (f"POST {path} HTTP/1.1", *own, *lines, "")).encode()


DEAR = _dear(2 * MIB)
"""Long to read: floats with a NaN among them are read one by one."""


@pytest.fixture(scope="module")
def running() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as gateway:
        assert post(gateway.http, PATH, GOOD).status == 200  # what it opens once is open now
        assert post(gateway.http, PATH, body(elements=200_000)).status == 200
        yield gateway
        assert alive(gateway)
        assert complaints(gateway) == ""
        assert counted(gateway, outcome="internal") == 0


@pytest.fixture
def gateway(running: Infergate) -> Iterator[Infergate]:
    """Afterwards nothing is left open, and nothing in flight."""
    with descriptors_come_back(running.pid):
        yield running
        assert post(running.http, PATH, GOOD).status == 200
    until(lambda: "infergate_in_flight_requests 0.0" in running.metrics(), "nothing in flight")
    assert "infergate_in_flight_bytes 0.0" in running.metrics()


def good(gateway: Infergate) -> None:
    assert post(gateway.http, PATH, GOOD).status == 200


# ---- slow ------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing(gateway: Infergate) -> None:
    with Client(gateway.http) as client:
        good(gateway)
        assert client.rest() == b""


def test_a_connection_that_stays_idle_after_a_request(gateway: Infergate) -> None:
    with Client(gateway.http) as client:
        client.send(head() + GOOD)
        assert client.answer().status == 200
        good(gateway)
        assert client.rest() == b""


@pytest.mark.parametrize(
    "begin",
    [
        b"P",
        head()[:-2],
        head(),
        head() + GOOD[:-1],
        head("Transfer-Encoding: chunked", length=None),
    ],
    ids=["first byte", "header", "no body", "body", "no chunk"],
)
def test_what_stalls_is_told_so(gateway: Infergate, begin: bytes) -> None:
    with Client(gateway.http) as client:
        client.send(begin)
        good(gateway)
        answer = client.answer()
        assert answer.status == 408
        assert "in time" in answer.error
        assert client.rest() == b""


@pytest.mark.parametrize(
    ("begin", "drip"),
    [(b"POST / HTTP/1.1\r\n", b"A: b\r\n"), (head(length=MIB), b" ")],
    ids=["header", "body"],
)
def test_what_drips_is_ended(gateway: Infergate, begin: bytes, drip: bytes) -> None:
    before = counted(gateway, outcome="timeout")
    with Client(gateway.http) as client:
        client.send(begin)
        client.socket.setblocking(False)
        said = b""
        while not said:
            client.send(drip)
            time.sleep(0.1)  # the drip itself: less often than the limits allow a pause
            try:
                said = client.socket.recv(65536)
            except BlockingIOError:
                continue
        assert said.startswith(b"HTTP/1.1 408 ")
        good(gateway)
    assert counted(gateway, outcome="timeout") == before + 1


def test_a_reader_that_takes_nothing(gateway: Infergate) -> None:
    """Disconnected, so that the answer does not stay in memory."""
    told = [
        {"name": f"INPUT{i}", "datatype": "UINT8", "shape": [3 * MIB],
         "parameters": {"binary_data_size": 3 * MIB}} for i in (0, 1)
    ]  # fmt: skip
    document = json.dumps({"inputs": told, "parameters": {"binary_data_output": True}}).encode()
    whole = document + bytes(6 * MIB)
    with Client(gateway.http) as client:
        length = f"Inference-Header-Content-Length: {len(document)}"
        with descriptors_come_back(gateway.pid):
            client.socket.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF
            client.send(head(length, length=len(whole)) + whole)
            until(lambda: counted(gateway, operation="infer", outcome="ok") > 0, "it is answered")
            good(gateway)
            until(lambda: "ESTABLISHED" not in states(client, gateway), "it is cut off")


_STATES = {"01": "ESTABLISHED", "04": "FIN_WAIT1", "05": "FIN_WAIT2"}


def states(client: Client, gateway: Infergate) -> list[str]:
    """The state of the gateway's end of this connection."""
    theirs = int(gateway.http.rpartition(":")[2])
    ours = client.socket.getsockname()[1]
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - a file of the kernel's
        rows = [row.split() for row in table.readlines()[1:]]
    ends = f"0100007F:{theirs:04X}", f"0100007F:{ours:04X}"
    return [_STATES.get(row[3], row[3]) for row in rows if (row[1], row[2]) == ends]


# ---- gone ------------------------------------------------------------------------------------

_PLACES = {
    "in the line": b"POST /v2",
    "in the header": head()[:-9],
    "before the body": head(),
    "in the body": head() + GOOD[:9],
    "in a chunk": head("Transfer-Encoding: chunked", length=None) + CHUNKED[:9],
    "after the request": head() + GOOD,
}


@pytest.mark.parametrize("place", _PLACES)
def test_a_reset(gateway: Infergate, place: str) -> None:
    with Client(gateway.http) as client:
        client.send(_PLACES[place])
        good(gateway)
        client.reset()


@pytest.mark.parametrize("place", [p for p in _PLACES if p != "after the request"])
def test_a_half_close(gateway: Infergate, place: str) -> None:
    """An end of file is a client that left: TCP cannot tell the two apart."""
    with Client(gateway.http) as client:
        client.send(_PLACES[place])
        client.socket.shutdown(1)
        assert client.rest() == b""
        good(gateway)


# ---- one after another -----------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(gateway: Infergate) -> None:
    bodies = [body(str(i), 1 + i) for i in range(30)]
    with Client(gateway.http) as client:
        client.send(b"".join(head(length=len(each)) + each for each in bodies))
        good(gateway)
        told = [json.loads(client.answer().body)["id"] for _ in bodies]
    assert told == [str(i) for i in range(30)]


def test_a_bad_request_among_pipelined_ones_costs_only_itself(gateway: Infergate) -> None:
    with Client(gateway.http) as client:
        client.send(head() + GOOD + head(length=1) + b"{" + head() + GOOD)
        assert [client.answer().status for _ in range(3)] == [200, 400, 200]


def test_what_could_be_smuggled_behind_a_refused_request_is_not_served(gateway: Infergate) -> None:
    before = counted(gateway, outcome="ok")
    with Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked") + b"0\r\n\r\n" + head() + GOOD)
        assert client.answer().status == 400
        assert client.rest() == b""
    assert counted(gateway, outcome="ok") == before


# ---- not HTTP --------------------------------------------------------------------------------

_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(193)
_BROKEN = {
    "TE and CL": head("Transfer-Encoding: chunked") + CHUNKED,
    "two lengths": head("Content-Length: 4") + GOOD,
    "two equal lengths": head(f"Content-Length: {len(GOOD)}") + GOOD,
    "a list of lengths": head(f"Content-Length: {len(GOOD)}, 4", length=None) + GOOD,
    "length +5": head("Content-Length: +5", length=None) + b"12345",
    "length -5": head("Content-Length: -5", length=None),
    "length 5_0": head("Content-Length: 5_0", length=None) + GOOD,
    "length 0x5": head("Content-Length: 0x5", length=None) + b"12345",
    "no length": head("Content-Length:", length=None),
    "a length of 2^64": head(f"Content-Length: {2**64 + 5}", length=None),
    "chunked twice": head("Transfer-Encoding: chunked, chunked", length=None) + CHUNKED,
    "an unknown coding": head("Transfer-Encoding: xchunked", length=None) + CHUNKED,
    "chunked in the middle": head("Transfer-Encoding: chunked, gzip", length=None) + CHUNKED,
    "obs-fold": head("A: b\r\n c") + GOOD,
    "a space before the colon": head("A : b") + GOOD,
    "NUL in a field": head("A: b\0c") + GOOD,
    "a bare CR": head("A: b\rc") + GOOD,
    "a field without colon": head("nonsense") + GOOD,
    "a field without name": head(": b") + GOOD,
    "a name in brackets": head("A[]: b") + GOOD,
    "TLS": _HELLO,
    "HTTP/2": PREFACE + b"\0\0\0\x04\0\0\0\0\0",
    "HTTP/0.9": b"GET /v2/health/live\r\n\r\n",
    "HTTP/3.7": b"GET /v2/health/live HTTP/3.7\r\nHost: x\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target with a space": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "no Host": b"GET /v2/health/live HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "zeros": bytes(100),
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
}


@pytest.mark.parametrize("case", _BROKEN)
def test_what_is_not_http_is_400_and_the_end(gateway: Infergate, case: str) -> None:
    before = counted(gateway, outcome="bad_request")
    with Client(gateway.http) as client:
        client.send(_BROKEN[case])
        good(gateway)
        answer = client.answer()
        assert answer.status == 400
        assert answer.error
        assert client.rest() == b""
    assert counted(gateway, outcome="bad_request") == before + 1


@pytest.mark.parametrize("host", ["a/b", "a, b", "user@a", "a:b", "\u00e9"])
def test_a_host_that_is_none(gateway: Infergate, host: str) -> None:
    with Client(gateway.http) as client:
        client.send(f"GET /v2/health/live HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        good(gateway)
        answer = client.answer()
        assert answer.status == 400
        assert "Host" in answer.error


_CHUNKS = {
    "a size that is none": b"xyz\r\n",
    "a negative size": b"-1\r\n",
    "a size of 2^64": b"10000000000000000\r\n",
    "a chunk longer than said": b"1\r\nabc\r\n0\r\n\r\n",
    "a bare LF": b"1\nx\n0\n\n",
}


@pytest.mark.parametrize("case", _CHUNKS)
def test_chunks_that_are_none(gateway: Infergate, case: str) -> None:
    with Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked", length=None) + _CHUNKS[case])
        good(gateway)
        assert client.answer().status == 400
        assert client.rest() == b""


def test_a_chunk_extension_that_never_ends(gateway: Infergate) -> None:
    """It is no body, so it buys no time. Our own engine bounds it."""
    with growing_at_most(gateway.pid, 16 * MIB), Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked", length=None) + b"1;" + b"x" * (4 * MIB))
        good(gateway)
        assert client.answer().status == {"own": 400, "compat": 408}[ENGINE]


def test_chunk_extensions_and_trailers_are_ignored(gateway: Infergate) -> None:
    whole = b'%x;a=b;c="d"\r\n%b\r\n0\r\nX-Trailer: y\r\n\r\n' % (len(GOOD), GOOD)
    with Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked", length=None) + whole)
        assert client.answer().status == 200


def test_very_many_very_small_chunks_cost_no_memory(gateway: Infergate) -> None:
    many = b"1\r\n \r\n" * 300_000 + CHUNKED
    with growing_at_most(gateway.pid, 16 * MIB), Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked", length=None) + many)
        good(gateway)
        assert client.answer().status == 200


def test_chunks_over_the_limit_are_refused_on_the_way(gateway: Infergate) -> None:
    chunk = b"%x\r\n%b\r\n" % (MIB, bytes(MIB))
    with growing_at_most(gateway.pid, 24 * MIB), Client(gateway.http) as client:
        client.send(head("Transfer-Encoding: chunked", length=None))
        for _ in range(9):
            client.send(chunk)
        answer = client.answer()
        assert answer.status == 413
        assert str(8 * MIB) in answer.error
        good(gateway)


def test_an_announced_body_over_the_limit_is_refused_before_it_comes(gateway: Infergate) -> None:
    with Client(gateway.http) as client:
        client.send(head(length=8 * MIB + 1))
        assert client.answer().status == 413
        good(gateway)


# ---- one under and one over ------------------------------------------------------------------


@pytest.mark.parametrize("over", [0, 1])
def test_the_number_of_headers(gateway: Infergate, over: int) -> None:
    lines = [f"A{i}: b" for i in range(COUNT - 2 + over)]
    with Client(gateway.http) as client:
        client.send(head(*lines) + GOOD)
        answer = client.answer()
        assert answer.status == (431 if over else 200)
        assert not over or str(COUNT) in answer.error
        good(gateway)


@pytest.mark.parametrize("over", [0, 1])
def test_the_bytes_of_headers(gateway: Infergate, over: int) -> None:
    others = len(head(*["A" + str(i) + ": " for i in range(4)])) - len(
        f"POST {PATH} HTTP/1.1\r\n\r\n"
    )
    each, left = divmod(HEADERS - others + over, 4)
    lines = [f"A{i}: " + "x" * (each + (left if i == 0 else 0)) for i in range(4)]
    with Client(gateway.http) as client:
        client.send(head(*lines) + GOOD)
        answer = client.answer()
        assert answer.status == (431 if over else 200)
        assert not over or str(HEADERS) in answer.error
        good(gateway)


@pytest.mark.parametrize("over", [0, 1])
def test_the_length_of_the_target(gateway: Infergate, over: int) -> None:
    """Found too long, or not found."""
    path = "/" + "x" * (HEADERS - 1 + over)
    with Client(gateway.http) as client:
        client.send(head(path=path) + GOOD)
        assert client.answer().status == (414 if over else 404)
        good(gateway)


def test_headers_that_never_end(gateway: Infergate) -> None:
    with growing_at_most(gateway.pid, 16 * MIB), Client(gateway.http) as client:
        client.send(b"GET / HTTP/1.1\r\nA: " + b"x" * 60_000)
        assert client.answer().status == 431
        good(gateway)


# ---- bombs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("encoding", "window"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_a_bomb_is_refused_and_never_inflated(
    gateway: Infergate, encoding: str, window: int
) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, window)
    bomb = b"".join(deflater.compress(bytes(MIB)) for _ in range(200)) + deflater.flush()
    assert len(bomb) < MIB
    with growing_at_most(gateway.pid, 32 * MIB):
        answer = post(gateway.http, PATH, bomb, {"Content-Encoding": encoding})
        good(gateway)
    assert answer.status == 413
    assert str(8 * MIB) in answer.error


def test_json_that_takes_long_to_read_keeps_nobody_waiting(gateway: Infergate) -> None:
    with Client(gateway.http) as client:
        client.send(head(length=len(DEAR)) + DEAR)
        for _ in range(3):
            good(gateway)
        client.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.socket.recv(1)
        client.socket.settimeout(SECONDS)
        answer = client.answer()
    assert answer.status == 200
    assert answer.body.rstrip(b"]}").endswith(b",NaN")


def test_a_helper_that_dies_takes_its_one_request_along() -> None:
    with started_infergate(CONFIG) as gateway:
        # Killed before it took the request, a helper was never there: 503, come again.
        while (status := _helper_killed(gateway)) == b"503":
            pass
        assert status == b"500"
        until(lambda: post(gateway.http, PATH, DEAR).status == 200, "another helper serves")
        assert 1 <= counted(gateway, outcome="internal") <= 3
        assert "a process beside ended with -9" in gateway.log.read_text()


def _helper_killed(gateway: Infergate) -> bytes:
    """The status of a request that no helper lives to read."""
    with Client(gateway.http) as client:
        client.send(head(length=len(DEAR)) + DEAR)
        client.socket.setblocking(False)
        while not (began := _received(client)):
            for helper in children(gateway.pid):
                os.kill(helper, signal.SIGKILL)
            good(gateway)
        return began.split(b" ")[1]


def _received(client: Client) -> bytes:
    try:
        return client.socket.recv(4096)
    except BlockingIOError:
        return b""


def test_deep_json_and_many_brackets(gateway: Infergate) -> None:
    with growing_at_most(gateway.pid, 64 * MIB):
        for whole in (b"[" * (4 * MIB), b"[]" * MIB, b'{"a":' * MIB, b"[[],[]," * MIB):
            answer = post(gateway.http, PATH, whole)
            assert answer.status in {400, 413}
            assert re.search("nested|character|arrays", answer.error)
            good(gateway)

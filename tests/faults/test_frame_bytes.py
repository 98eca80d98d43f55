"""Clients of a raw socket that are slow, broken or hostile: each gets its right answer or none,
others are served meanwhile, and what it cost is given back."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from e2e.running import LISTENERS, Infergate, started_infergate
from faults.peer import Client, post
from faults.watch import alive, complaints, counted, descriptors_come_back, growing_at_most, until
from infergate.codecs.base import Profile
from infergate.codecs.graphpipe import PLUGIN
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import Answer, InferRequest, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor
from infergate.core.wire import HttpResponse, joined
from peers.support.process import free_ports

MIB = 1 << 20
CONFIG = """
backends:
  ours: {protocol: builtin}
routes:
  - {model: "*", backend: ours}
limits:
  header_time: 1s
  idle_body_time: 1s
  keepalive_time: 1s
  body: 8MiB
"""
CODEC = PLUGIN.make({})
MODEL = ModelMetadata(
    "identity",
    inputs=(TensorMetadata("INPUT0", "UINT8", (-1,)),),
    outputs=(TensorMetadata("OUTPUT0", "UINT8", (-1,)),),
)


def asking(elements: int) -> tuple[InferRequest, bytes]:
    """An inference of so many bytes, and its frame."""
    tensor = Tensor("INPUT0", Datatype.UINT8, (elements,), bytes(elements))
    request = InferRequest("identity", inputs=(tensor,))
    body = bytes(joined(CODEC.build_request(request, Profile("any"), MODEL).body))
    return request, struct.pack("<I", len(body)) + body


REQUEST, GOOD = asking(3)
LONG, LONG_FRAME = asking(6 * MIB)


@dataclass(frozen=True)
class Site:
    gateway: Infergate
    raw: str

    def good(self) -> None:
        """A request on another connection is served."""
        with Client(self.raw) as client:
            client.send(GOOD)
            assert error_in(client) == ""

    def timeouts(self) -> float:
        return counted(self.gateway, protocol="graphpipe", outcome="timeout")


def answer(client: Client, request: InferRequest = REQUEST) -> Answer:
    (length,) = struct.unpack("<I", client.exactly(4))
    wire = HttpResponse(200, {}, [client.exactly(length)])
    return CODEC.parse_response(wire, request, DEFAULT_LIMITS, MODEL)


def error_in(client: Client) -> str:
    """What the next answer tells of an error."""
    try:
        answer(client)
    except GatewayError as error:
        return error.public
    return ""


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    (port,) = free_ports(1)
    listeners = f"""{LISTENERS}  graphpipe:
    - {{{{address: "tcp://127.0.0.1:{port}", model: identity, framing: size-prefixed}}}}
"""
    with started_infergate(CONFIG, listeners) as gateway:
        site = Site(gateway, f"127.0.0.1:{port}")
        with Client(site.raw) as client:  # what it opens once is open now
            client.send(LONG_FRAME)
            answer(client, LONG)
        yield site
        assert alive(gateway)
        assert complaints(gateway) == ""
        assert counted(gateway, outcome="internal") == 0


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """Afterwards nothing is left open, and nothing in flight."""
    with descriptors_come_back(running.gateway.pid):
        yield running
        running.good()
    metrics = running.gateway.metrics
    until(lambda: "infergate_in_flight_requests 0.0" in metrics(), "nothing in flight")
    assert "infergate_in_flight_bytes 0.0" in metrics()


@pytest.mark.parametrize("after", [b"", GOOD])
def test_a_connection_that_stays_idle(site: Site, after: bytes) -> None:
    with Client(site.raw) as client:
        client.send(after)
        site.good()
        if after:
            assert error_in(client) == ""
        assert client.rest() == b""


@pytest.mark.parametrize("count", [1, 4, 5, len(GOOD) - 1])
def test_what_stalls_is_told_so(site: Site, count: int) -> None:
    before = site.timeouts()
    with Client(site.raw) as client:
        client.send(GOOD[:count])
        site.good()
        assert "in time" in error_in(client)
        assert client.rest() == b""
    assert site.timeouts() == before + 1


def test_a_body_that_drips_is_ended(site: Site) -> None:
    before = site.timeouts()
    with Client(site.raw) as client:
        client.send(struct.pack("<I", MIB))
        client.socket.setblocking(False)
        said = b""
        while not said:
            client.send(b"x")
            time.sleep(0.1)  # the drip itself: less often than the limits allow a pause
            try:
                said = client.socket.recv(65536)
            except BlockingIOError:
                continue
        assert b"in time" in said
        site.good()
    assert site.timeouts() == before + 1


@pytest.mark.parametrize("length", [8 * MIB + 1, 2**31, 2**32 - 1])
def test_a_body_over_the_limit_is_refused_before_it_comes(site: Site, length: int) -> None:
    before = counted(site.gateway, outcome="too_large")
    with growing_at_most(site.gateway.pid, 2 * MIB), Client(site.raw) as client:
        client.send(struct.pack("<I", length))
        assert "the limit is 8388608" in error_in(client)
        site.good()
    assert counted(site.gateway, outcome="too_large") == before + 1


@pytest.mark.parametrize("sent", [20_000, 5_000_000])
def test_a_body_over_the_limit_that_comes_all_the_same(site: Site, sent: int) -> None:
    """It is read away, so that the answer arrives."""
    with growing_at_most(site.gateway.pid, 2 * MIB), Client(site.raw) as client:
        client.send(struct.pack("<I", 100 * MIB) + bytes(sent))
        assert "the limit is 8388608" in error_in(client)
        client.send(bytes(sent))
        site.good()


def test_announcing_much_costs_little(site: Site) -> None:
    """Memory is not filled before bytes come."""
    with growing_at_most(site.gateway.pid, 16 * MIB), ExitStack() as stack:
        clients = [stack.enter_context(Client(site.raw)) for _ in range(50)]
        for client in clients:
            client.send(struct.pack("<I", 8 * MIB) + b"x")
        site.good()
        for client in clients:
            assert "in time" in error_in(client)


def test_nonsense_is_an_error_and_the_connection_goes_on(site: Site) -> None:
    with Client(site.raw) as client:
        for body in (b"", b"\0", b"nonsense", bytes(64), b"\xff" * 1000):
            client.send(struct.pack("<I", len(body)) + body)
            assert error_in(client) != ""
        client.send(GOOD)
        assert error_in(client) == ""


def test_http_on_a_raw_socket(site: Site) -> None:
    """``GET `` is a length of half a gigabyte."""
    with Client(site.raw) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert "the limit is" in error_in(client)


def test_frames_on_the_http_port(site: Site) -> None:
    with Client(site.gateway.http) as client:
        client.send(GOOD)
        assert client.answer().status == 400
    assert post(site.gateway.http, "/graphpipe/identity", GOOD[4:]).status == 200


def test_thousands_pipelined(site: Site) -> None:
    with growing_at_most(site.gateway.pid, 16 * MIB), Client(site.raw) as client:
        count = 2000
        client.send(GOOD * count)
        site.good()
        for _ in range(count):
            assert error_in(client) == ""


def test_a_reader_that_takes_nothing(site: Site) -> None:
    """Disconnected, so that the answer does not stay in memory."""
    with Client(site.raw) as client, descriptors_come_back(site.gateway.pid):
        client.socket.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF
        client.send(LONG_FRAME)
        site.good()
        until(lambda: gone(client, site), "it is cut off")


def gone(client: Client, site: Site) -> bool:
    """Whether the gateway's end of this connection is closed."""
    theirs, ours = int(site.raw.rpartition(":")[2]), client.socket.getsockname()[1]
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - a file of the kernel's
        rows = [row.split() for row in table.readlines()[1:]]
    ends = f"0100007F:{theirs:04X}", f"0100007F:{ours:04X}"
    established = "01"
    return all(row[3] != established for row in rows if (row[1], row[2]) == ends)


@pytest.mark.parametrize("sent", [b"", GOOD[:2], GOOD[:4], GOOD[:9], GOOD])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_goes_away(site: Site, sent: bytes, how: str) -> None:
    with Client(site.raw) as client:
        client.send(sent)
        if how == "reset":
            client.reset()
    site.good()

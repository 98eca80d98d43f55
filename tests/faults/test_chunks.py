"""Tests chunked bodies: invalid sizes, extensions, trailers, many chunks, and the body limit."""

from __future__ import annotations

import pytest

from e2e.running import ENGINE
from faults.low_limits import BODY, CHUNKED, VALID_BODY, LimitedGateway, head
from faults.peer import Client
from faults.watch import MIB, counted, limited_growth, refused_by, rises

REQUESTS = "infergate_requests_total"
BEGUN = head("Transfer-Encoding: chunked", length=None)
_CHUNKS = {
    "a size that is not hexadecimal": b"xyz\r\n",
    "a negative size": b"-1\r\n",
    "a size of 2^64": b"10000000000000000\r\n",
    "a chunk longer than its size": b"1\r\nabc\r\n0\r\n\r\n",
    "a bare LF": b"1\nx\n0\n\n",
}


@pytest.mark.parametrize("case", _CHUNKS)
def test_invalid_chunks_are_rejected(gateway: LimitedGateway, case: str) -> None:
    before = counted(gateway, outcome="bad_request")
    with Client(gateway.http) as client:
        client.send(BEGUN + _CHUNKS[case])
        assert client.answer().status == 400
        assert client.read_to_end() == b""
    assert counted(gateway, outcome="bad_request") == before + 1


def test_an_endless_extension_is_rejected(gateway: LimitedGateway) -> None:
    """Extensions are not part of the body, so they do not extend its deadline. Only infergate's own
    engine limits them."""
    status, outcome = {"own": (400, "bad_request"), "compat": (408, "timeout")}[ENGINE]
    before = counted(gateway, outcome=outcome)
    with limited_growth(gateway.pid, 16 * MIB), Client(gateway.http) as client:
        client.send(BEGUN + b"1;" + b"x" * (4 * MIB))
        assert client.answer().status == status
    assert counted(gateway, outcome=outcome) == before + 1


def test_extensions_and_trailers_are_ignored(gateway: LimitedGateway) -> None:
    chunks = b'%x;a=b;c="d"\r\n%b\r\n0\r\nX-Trailer: y\r\n\r\n' % (len(VALID_BODY), VALID_BODY)
    with rises(gateway, REQUESTS, outcome="ok"), Client(gateway.http) as client:
        client.send(BEGUN + chunks)
        assert client.answer().status == 200


CHUNK_COUNTS = [300_000, pytest.param(2_000_000, marks=pytest.mark.peers)]
"""Numbers of chunks. Parsing so many chunks takes seconds of CPU time, in which other clients must
be served."""


@pytest.mark.parametrize("count", CHUNK_COUNTS)
def test_one_byte_chunks_cost_no_memory(gateway: LimitedGateway, count: int) -> None:
    chunks = b"1\r\n \r\n" * 100_000
    bounded_memory = limited_growth(gateway.pid, 24 * MIB)
    with rises(gateway, REQUESTS, outcome="ok"), bounded_memory, Client(gateway.http) as client:
        client.send(BEGUN)
        for _ in range(count // 100_000):
            client.send(chunks)
        client.send(CHUNKED)
        assert client.answer().status == 200


def test_a_chunked_body_over_the_limit_is_rejected_before_its_end(gateway: LimitedGateway) -> None:
    chunk = b"%x\r\n%b\r\n" % (MIB, bytes(MIB))
    bounded_memory = limited_growth(gateway.pid, 24 * MIB)
    with refused_by(gateway, "body"), bounded_memory, Client(gateway.http) as client:
        client.send(BEGUN)
        for _ in range(9):
            client.send(chunk)
        response = client.answer()
        assert response.status == 413
        assert str(BODY) in response.error

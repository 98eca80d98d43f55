"""Requests that a proxy could split differently are refused, and the bytes after them discarded."""

import pytest
from transport_kit import HttpHarness, Peer

START = b"POST /first HTTP/1.1\r\nHost: x\r\n"
CHUNKS = b"2\r\nhi\r\n0\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

_HEADS = {
    "CL and TE": b"Content-Length: 2\r\nTransfer-Encoding: chunked",
    "TE and CL": b"Transfer-Encoding: chunked\r\nContent-Length: 2",
    "two lengths that differ": b"Content-Length: 2\r\nContent-Length: 12",
    "the same length twice": b"Content-Length: 12\r\nContent-Length: 12",
    "a list of lengths": b"Content-Length: 2, 12",
    "+2": b"Content-Length: +2",
    "-2": b"Content-Length: -2",
    "0x2": b"Content-Length: 0x2",
    "1_2": b"Content-Length: 1_2",
    "2.0": b"Content-Length: 2.0",
    "a space in the length": b"Content-Length: 1 2",
    "a vertical tab before the length": b"Content-Length: \x0b2",
    "an empty length": b"Content-Length: ",
    "a length of 2^64": b"Content-Length: 18446744073709551616",
    "a length of 40 digits": b"Content-Length: " + b"1" * 40,
    "a space before the colon of CL": b"Content-Length : 2",
    "a space before the colon of TE": b"Transfer-Encoding : chunked",
    "TE twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "chunked twice": b"Transfer-Encoding: chunked, chunked",
    "xchunked": b"Transfer-Encoding: xchunked",
    "chunked, identity": b"Transfer-Encoding: chunked, identity",
    "chunked with a parameter": b"Transfer-Encoding: chunked;a=b",
    "chunked in quotes": b'Transfer-Encoding: "chunked"',
    "a vertical tab before chunked": b"Transfer-Encoding: \x0bchunked",
    "TE folded": b"Transfer-Encoding:\r\n chunked",
    "CL folded": b"Content-Length:\r\n 2",
    "obs-fold": b"A: b\r\n c",
    "a continuation line before the first field": b" A: b",
    "a bare LF": b"A: b\nTransfer-Encoding: chunked",
    "a bare CR": b"A: b\rTransfer-Encoding: chunked",
    "CR CR LF": b"A: b\r\r\nTransfer-Encoding: chunked",
    "NUL in a value": b"A: b\0c",
    "NUL in a name": b"A\0: b",
    "a control character in a value": b"A: b\x01c",
    "an empty field name": b": b",
    "no colon": b"Transfer-Encoding chunked",
    "an invalid name": b"Content-Length\xa0: 2",
    "Host twice": b"Host: y",
}
_BODIES = {
    "a lone LF after a size": b"2\nhi\r\n0\r\n\r\n",
    "a lone LF after a chunk": b"2\r\nhi\n0\r\n\r\n",
    "a lone CR after a size": b"2\rhi\r\n0\r\n\r\n",
    "a lone LF in an extension": b"2;a\nhi\r\n0\r\n\r\n",
    "a size too small": b"1\r\nhi\r\n0\r\n\r\n",
    "a size that overflows 64 bits": b"10000000000000002\r\nhi\r\n0\r\n\r\n",
    "a negative size": b"-2\r\nhi\r\n0\r\n\r\n",
    "0x2 as a size": b"0x2\r\nhi\r\n0\r\n\r\n",
    "a space before a size": b" 2\r\nhi\r\n0\r\n\r\n",
    "a space after a size": b"2 \r\nhi\r\n0\r\n\r\n",
    "no size": b"\r\nhi\r\n0\r\n\r\n",
    "a lone LF after the last size": b"2\r\nhi\r\n0\n\r\n",
    "a trailer without a colon": b"2\r\nhi\r\n0\r\nA\r\n\r\n",
    "a folded trailer": b"2\r\nhi\r\n0\r\nA: b\r\n c\r\n\r\n",
    "a lone LF in a trailer": b"2\r\nhi\r\n0\r\nA: b\n\r\n\r\n",
}


async def assert_refused(harness: HttpHarness, wire: bytes) -> None:
    peer = await harness.connect()
    response = await peer.request(wire + SMUGGLED)
    assert response.status in {400, 413, 501}
    assert response.headers["connection"] == "close"
    assert response.headers["content-type"] == "refusal"
    assert await peer.reads_eof()
    assert harness.app.requests == []


@pytest.mark.parametrize("case", _HEADS)
async def test_ambiguous_heads_are_refused(harness: HttpHarness, case: str) -> None:
    await assert_refused(harness, START + _HEADS[case] + b"\r\n\r\n" + CHUNKS)


@pytest.mark.parametrize("case", _BODIES)
async def test_ambiguous_chunked_bodies_are_refused(harness: HttpHarness, case: str) -> None:
    await assert_refused(harness, START + b"Transfer-Encoding: chunked\r\n\r\n" + _BODIES[case])


async def test_a_chunked_body_over_http_1_0_is_refused(harness: HttpHarness) -> None:
    await assert_refused(harness, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS)


async def test_http_2_over_http_1_1_is_refused(peer: Peer) -> None:
    assert (await peer.request(b"GET / HTTP/2.0\r\nHost: x\r\n\r\n")).status == 505


async def test_requests_with_the_same_head_have_their_own_bodies(peer: Peer) -> None:
    """Heads may be cached, but not bodies."""
    head = START + b"Content-Length: 2\r\n\r\n"
    for body in (b"ab", b"cd", b"ef"):
        assert (await peer.request(head + body)).body == b"POST " + body
    chunked = START + b"Transfer-Encoding: chunked\r\n\r\n"
    for size in (1, 3, 2):
        await peer.send(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size))
        assert (await peer.read_response()).body == b"POST " + b"x" * size

"""Clients of the gRPC port that are broken or hostile. What the answer is, is the gRPC library's
business in this version; that the process lives, others are served and nothing stays, is ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from e2e.running import Infergate, started_infergate
from faults import h2
from faults.peer import Client
from faults.rpc import INFER, call, channel
from faults.test_client_bytes import _HELLO, CONFIG, HEADERS, MIB
from faults.watch import alive, complaints, descriptors_come_back, growing_at_most, until


def message(size: int = 1) -> bytes:
    told = pb.ModelInferRequest(model_name="identity")
    for name in ("INPUT0", "INPUT1"):
        told.inputs.add(name=name, datatype="UINT8", shape=[size])
        told.raw_input_contents.append(bytes(size))
    return bytes(told.SerializeToString())


@pytest.fixture(scope="module")
def running() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as gateway:
        good(gateway)
        yield gateway
        assert alive(gateway)
        assert complaints(gateway) == ""


@pytest.fixture
def gateway(running: Infergate) -> Iterator[Infergate]:
    with descriptors_come_back(running.pid):
        yield running
        good(running)
    until(lambda: "infergate_in_flight_requests 0.0" in running.metrics(), "nothing in flight")


def good(gateway: Infergate) -> None:
    with channel(gateway.grpc) as made:
        assert call(made, message()).code is grpc.StatusCode.OK


def hello(client: Client) -> None:
    client.send(h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0))


@pytest.mark.parametrize(
    "wire",
    [
        b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        _HELLO,
        bytes(1000),
        h2.PREFACE[:-1] + b"x",
        h2.PREFACE + h2.frame(h2.DATA, 0, 1, b"before any headers"),
        h2.PREFACE + b"\xff\xff\xff\x04\0\0\0\0\0",
        h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, 5, 1, b"\xff" * 20),
        h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, 5, 2, h2.asking(INFER)),
    ],
    ids=["HTTP/1", "TLS", "zeros", "preface", "data", "frame of 16 MiB", "HPACK", "even stream"],
)
def test_what_is_not_grpc_ends_the_connection(gateway: Infergate, wire: bytes) -> None:
    with Client(gateway.grpc) as client:
        client.send(wire)
        good(gateway)
        client.socket.shutdown(1)
        client.rest()


@pytest.mark.parametrize(
    "value", ["abc", "-5S", "", "5", "5x", "999999999999S", "1e3S", "99999999H"]
)
def test_a_bad_timeout(gateway: Infergate, value: str) -> None:
    """Answered, well or not, and soon: what cannot be read sets no deadline."""
    asked = h2.asking(INFER, ("grpc-timeout", value))
    with Client(gateway.grpc) as client:
        hello(client)
        client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, asked))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, h2.message(message())))
        for frame in h2.frames(client.exactly):
            if frame.kind == h2.RST_STREAM or (frame.stream == 1 and frame.flags & h2.END_STREAM):
                break
        good(gateway)


@pytest.mark.parametrize("header", [("content-type", "text/html"), ("te", "gzip"), ("x", "\r\n")])
def test_headers_that_are_not_grpc(gateway: Infergate, header: tuple[str, str]) -> None:
    with Client(gateway.grpc) as client:
        hello(client)
        client.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.asking(INFER, header)))
        client.send(h2.frame(h2.DATA, h2.END_STREAM, 1, h2.message(message())))
        good(gateway)
        client.socket.shutdown(1)
        client.rest()


_STREAM = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.asking(INFER))
_FLOODS = {
    "rapid reset": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * i + 1, h2.asking(INFER))
        + h2.frame(h2.RST_STREAM, 0, 2 * i + 1, b"\0\0\0\x08")
        for i in range(3000)
    ),
    "CONTINUATION": h2.frame(h2.HEADERS, 0, 1, h2.asking(INFER))
    + h2.frame(h2.CONTINUATION, 0, 1, h2.fields(("a", "b" * 100))) * 20_000,
    "PING": h2.frame(h2.PING, 0, 0, bytes(8)) * 50_000,
    "SETTINGS": h2.frame(h2.SETTINGS, 0, 0) * 50_000,
    "WINDOW_UPDATE": _STREAM + h2.frame(h2.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff") * 1000,
    "empty DATA": _STREAM + h2.frame(h2.DATA, 0, 1) * 50_000,
    "streams without end": b"".join(
        h2.frame(h2.HEADERS, h2.END_HEADERS, 2 * i + 1, h2.asking(INFER)) for i in range(3000)
    ),
}


@pytest.mark.parametrize("flood", _FLOODS)
def test_floods(gateway: Infergate, flood: str) -> None:
    with growing_at_most(gateway.pid, 64 * MIB), Client(gateway.grpc) as client:
        hello(client)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it had enough
            client.send(_FLOODS[flood])
        good(gateway)


def test_a_bomb_is_refused_and_never_inflated(gateway: Infergate) -> None:
    with channel(gateway.grpc) as made, growing_at_most(gateway.pid, 40 * MIB):
        status = call(made, message(60 * MIB), compression=grpc.Compression.Gzip)
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert re.search("larger than max", status.details)
        good(gateway)


@pytest.mark.parametrize(("value", "code"), [(1000, "OK"), (2 * HEADERS, "RESOURCE_EXHAUSTED")])
def test_the_bytes_of_metadata(gateway: Infergate, value: int, code: str) -> None:
    with channel(gateway.grpc) as made:
        status = call(made, message(), metadata=[("x-much", "x" * value)])
    assert status.code is grpc.StatusCode[code]


@pytest.mark.parametrize("stage", ["headers", "half a message", "whole"])
def test_a_reset(gateway: Infergate, stage: str) -> None:
    whole = h2.message(message(1000))
    with Client(gateway.grpc) as client:
        hello(client)
        client.send(_STREAM)
        if stage != "headers":
            client.send(h2.frame(h2.DATA, 0, 1, whole[:9] if stage != "whole" else whole))
        good(gateway)
        client.reset()


@pytest.mark.parametrize(
    "data",
    [h2.message(b"") * 2, b"\1\0\0\0\1a"],
    ids=["two", "compressed without encoding"],
)
def test_what_is_no_one_message(gateway: Infergate, data: bytes) -> None:
    with Client(gateway.grpc) as client:
        hello(client)
        client.send(_STREAM + h2.frame(h2.DATA, h2.END_STREAM, 1, data))
        for frame in h2.frames(client.exactly):
            if frame.kind == h2.RST_STREAM or (frame.stream == 1 and frame.flags & h2.END_STREAM):
                break
        good(gateway)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\0\0\0\0\x09abc", b"\2\0\0\0\1a"],
    ids=["none", "cut", "short", "flag 2"],
)
def test_what_grpcio_leaves_unanswered_is_given_up_with_its_connection(
    gateway: Infergate, data: bytes
) -> None:
    """grpcio takes a message that ends too early for a call cancelled at once and sends no status,
    nor always for a flag that there is not; clients that keep to gRPC never send either. All that
    it holds is a stream of its own connection."""
    with Client(gateway.grpc) as client:
        hello(client)
        client.send(_STREAM + h2.frame(h2.DATA, h2.END_STREAM, 1, data))
        good(gateway)

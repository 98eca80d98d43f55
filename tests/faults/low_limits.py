"""A gateway with low limits on each listener, for tests of faulty clients, and valid requests over
HTTP, gRPC and a raw socket."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from e2e.running import LISTENERS, Infergate, started_infergate
from faults import frames
from faults.peer import Client, post
from faults.rpc import call, channel
from faults.watch import MIB, assert_healthy

HEADERS = 4096
COUNT = 20
BODY = 8 * MIB
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
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(frozen=True)
class LimitedGateway(Infergate):
    """A running gateway. ``raw`` is the ``host:port`` of a raw socket for ``identity``."""

    raw: str


@contextmanager
def started_limited_gateway(engine: str) -> Iterator[LimitedGateway]:
    listener, raw = frames.raw_listener()
    with started_infergate(CONFIG, LISTENERS + listener, engine) as each:
        gateway = LimitedGateway(each.http, each.grpc, each.admin, each.pid, each.log, raw)
        good(gateway)  # opens files that stay open
        good_call(gateway)
        good_frame(gateway)
        assert post(gateway.http, PATH, body(elements=200_000)).status == 200
        with Client(gateway.raw) as client:
            client.send(frames.LONG_FRAME)
            assert frames.error_in(client, frames.LONG) == ""
        yield gateway
        assert_healthy(gateway)


# ---- over HTTP


def body(identity: str = "", elements: int = 1) -> bytes:
    inputs = [
        {"name": name, "datatype": "UINT8", "shape": [elements], "data": [7] * elements}
        for name in ("INPUT0", "INPUT1")
    ]
    return json.dumps({"id": identity, "inputs": inputs}).encode()


VALID_BODY = body()
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(VALID_BODY), VALID_BODY)


def head(*lines: str, length: int | None = len(VALID_BODY), path: str = PATH) -> bytes:
    base = ["Host: x"] if length is None else ["Host: x", f"Content-Length: {length}"]
    return "".join(f"{line}\r\n" for line in (f"POST {path} HTTP/1.1", *base, *lines, "")).encode()


ATTEMPTS = 20
"""Number of times that a valid request is sent, because on a busy machine a client may be slower
than the limits allow."""


def good(gateway: Infergate) -> None:
    """Check that a valid request is served."""
    status = 0
    for _ in range(ATTEMPTS):
        with Client(gateway.http) as client, suppress(EOFError, ConnectionError):
            client.send(head() + VALID_BODY)
            status = client.answer().status
        if status not in (0, 408):
            break
    assert status == 200


# ---- over gRPC


def message(size: int = 1, model: str = "identity", **more: Any) -> bytes:
    request = pb.ModelInferRequest(model_name=model, **more)
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="UINT8", shape=[size])
        request.raw_input_contents.append(bytes(size))
    return bytes(request.SerializeToString())


def good_call(gateway: Infergate) -> None:
    with channel(gateway.grpc) as rpc_channel:
        assert call(rpc_channel, message()).code is grpc.StatusCode.OK


# ---- over a raw socket


def good_frame(gateway: LimitedGateway) -> None:
    error = "closed"
    for _ in range(ATTEMPTS):
        with Client(gateway.raw) as client, suppress(EOFError, ConnectionError):
            client.send(frames.FRAME)
            error = frames.error_in(client)
        if not error:
            break
    assert error == ""


def frame(length: int) -> bytes:
    return struct.pack("<I", length)

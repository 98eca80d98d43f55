"""Tests that clients that announce long bodies and send them slowly hold the memory budget only
until other clients need it."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from e2e.running import ENGINE, LISTENERS, Infergate, started_infergate
from faults import frames, h2
from faults.low_limits import LimitedGateway, good, head
from faults.peer import Client
from faults.rpc import INFER
from faults.watch import MIB, assert_healthy, metric, refused_by, unharmed, until

BUDGET = 16 * MIB
SIZE = MIB
CROWD = 20
CONFIG = f"""
backends:
  ours: {{protocol: builtin}}
routes:
  - {{model: "*", backend: ours}}
limits: {{body: 4MiB, in_flight_bytes: {BUDGET}B}}
"""
SECONDS = 15.0
"""Seconds until memory is available again. The check for slow clients runs twice a second, and a
sender may pause for two seconds."""
STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")


def grpc(method: str, sent: int) -> bytes:
    """Return a call whose message announces SIZE bytes, and the first ``sent`` of these bytes."""
    data_frames = b"".join(
        h2.frame(h2.DATA, 0, 1, bytes(min(16384, sent - at))) for at in range(0, sent, 16384)
    )
    announced = h2.frame(h2.DATA, 0, 1, b"\0" + struct.pack(">I", SIZE))
    opened = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_headers(method))
    return h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + opened + announced + data_frames


DATA = h2.frame(h2.DATA, 0, 1, b"x")
SLOW_REQUESTS: dict[str, tuple[str, bytes, bytes]] = {
    "a length": ("http", head(length=SIZE), b"x"),
    "all but a KiB": ("http", head(length=SIZE) + bytes(SIZE - 1024), b"x"),
    "a chunk": (
        "http",
        head("Transfer-Encoding: chunked", length=None) + b"%x\r\n" % (4 * MIB) + bytes(SIZE),
        b"x",
    ),
    "a frame": ("raw", struct.pack("<I", SIZE), b"x"),
    "a message": ("grpc", grpc(INFER, 1000), DATA),
    "a message of a stream": ("grpc", grpc(STREAM, 1000), DATA),
}  # fmt: skip
if ENGINE == "compat":  # grpcio delivers only complete messages
    SLOW_REQUESTS = {
        name: request for name, request in SLOW_REQUESTS.items() if request[0] != "grpc"
    }
REJECTIONS = {"http": b"HTTP/1.1 503 ", "grpc": b"memory was short", "raw": b"memory was short"}


@pytest.fixture(scope="module")
def harness() -> Iterator[LimitedGateway]:
    listener, raw = frames.raw_listener()
    with started_infergate(CONFIG, LISTENERS + listener) as each:
        assert send_request(each) == 200
        yield LimitedGateway(each.http, each.grpc, each.admin, each.pid, each.log, raw)
        assert_healthy(each)


def send_request(
    gateway: Infergate, size: int = 2 * SIZE, pieces: int = 1, pause: float = 0.0
) -> int:
    """Return the status of an inference of ``size`` bytes that is sent in ``pieces`` pieces."""
    tensor = {"name": "INPUT0", "datatype": "UINT8", "shape": [size]}
    inputs = [tensor | {"parameters": {"binary_data_size": size}}]
    document = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    with Client(gateway.http) as client:
        split = f"Inference-Header-Content-Length: {len(document)}"
        client.send(head(split, length=len(document) + size) + document)
        for _ in range(pieces):
            with suppress(ConnectionError):  # rejected; the response has the reason
                client.send(bytes(size // pieces))
            time.sleep(pause)  # this pause determines the sender's rate
        return client.answer().status


def held(gateway: Infergate) -> float:
    return metric(gateway, "infergate_in_flight_bytes")


class SlowSenders:
    """Clients that send slowly until ``stack`` is closed. ``responses`` has the received bytes."""

    def __init__(self, address: str, begin: bytes, piece: bytes, stack: ExitStack) -> None:
        self._piece = piece
        self._clients = [stack.enter_context(Client(address)) for _ in range(CROWD)]
        self.responses: list[bytes] = [b""] * CROWD
        self._over = threading.Event()
        for client in self._clients:
            with suppress(ConnectionError):
                client.send(begin)
            client.socket.setblocking(False)
        thread = threading.Thread(target=self._trickle)
        thread.start()
        stack.callback(thread.join)
        stack.callback(self._over.set)

    def _trickle(self) -> None:
        while not self._over.wait(0.3):
            for number, client in enumerate(self._clients):
                with suppress(BlockingIOError, ConnectionError):
                    self.responses[number] += client.socket.recv(65536)
                with suppress(BlockingIOError, ConnectionError):
                    client.socket.send(self._piece)


@pytest.mark.parametrize("name", SLOW_REQUESTS)
def test_slow_senders_do_not_keep_the_memory_budget(harness: LimitedGateway, name: str) -> None:
    """A new client is rejected at first, then served within seconds. A client that sends at a
    steady rate is not disconnected."""
    kind, begin, piece = SLOW_REQUESTS[name]
    address = {"http": harness.http, "grpc": harness.grpc, "raw": harness.raw}[kind]
    with (
        unharmed(harness, lambda: good(harness), max_growth=4 * BUDGET),
        ThreadPoolExecutor(1) as steady_sender,
        ExitStack() as stack,
    ):
        steady = steady_sender.submit(send_request, harness, SIZE, 64, 0.08)
        until(lambda: held(harness) >= SIZE, "the steady client sends")
        with refused_by(harness, "in_flight_bytes"):
            slow_senders = SlowSenders(address, begin, piece, stack)
            until(lambda: held(harness) > BUDGET * 3 // 4, "slow senders hold most of the memory")
            began = time.monotonic()
            until(lambda: send_request(harness) == 200, "requests are accepted again")
            assert time.monotonic() - began < SECONDS
        assert [send_request(harness) for _ in range(20)] == [200] * 20
        assert steady.result() == 200
        until(
            lambda: any(REJECTIONS[kind] in response for response in slow_senders.responses),
            "at least one client receives the reason",
        )
    until(lambda: held(harness) == 0, "the memory is released")

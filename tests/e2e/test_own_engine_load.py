"""Tests that ``engine: own`` ends all calls and releases their resources: with many streams and
connections, with long messages, and when servers stop and restart."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from e2e.running import Infergate, started_infergate
from faults import h2, watch
from faults.low_limits import message
from faults.peer import Client
from faults.rpc import INFER, RpcBackend, call, channel, infer_message, rpc_backend
from peers.support.process import free_ports

STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")
CONFIG = """
backends:
  embedded: {{protocol: builtin}}
  scripted: {{protocol: v2-grpc, endpoints: ["grpc://{rpc}"], profile: triton}}
  unreachable: {{protocol: v2-grpc, endpoints: ["grpc://127.0.0.1:9"], profile: triton}}
routes:
  - {{model: scripted, backend: scripted}}
  - {{model: unreachable, backend: unreachable}}
  - {{model: "*", backend: embedded}}
limits: {{streams: 4000, in_flight: 4000, keepalive_time: 5s}}
log: {{access: false}}
readiness: lenient
"""
UNARY, STREAMS = 2000, 500


@pytest.fixture(scope="module")
def gateway(rpc: RpcBackend) -> Iterator[Infergate]:
    with started_infergate(CONFIG.format(rpc=rpc.address), engine="own") as running:
        yield running
        assert watch.alive(running)
        assert watch.logged_bugs(running) == ""


def test_thousands_of_streams_on_a_connection(gateway: Infergate, rpc: RpcBackend) -> None:
    respond, rpc.respond = rpc.respond, rpc.wait
    with channel(gateway.grpc) as rpc_channel:
        assert call(rpc_channel, message()).code is grpc.StatusCode.OK
        before = watch.descriptors(gateway.pid), watch.metric(gateway, "infergate_tasks")
        with watch.limited_growth(gateway.pid, 200 * watch.MIB):
            proceed = threading.Event()
            streams = [
                rpc_channel.stream_stream(STREAM)(two_messages(proceed), timeout=5 * watch.SECONDS)
                for _ in range(STREAMS)
            ]
            for each in streams:
                next(each)
            request = rpc_channel.unary_unary(INFER)
            pending = [
                request.future(infer_message("scripted"), timeout=5 * watch.SECONDS)
                for _ in range(UNARY)
            ]
            watch.until(
                lambda: watch.metric(gateway, "infergate_in_flight_requests") >= UNARY,
                "all requests are in progress",
                3 * watch.SECONDS,
            )
            assert watch.metric(gateway, "infergate_open_streams") == STREAMS
            rpc.release.set()
            assert len({each.result() for each in pending}) == 1
            proceed.set()
            assert [len(list(each)) for each in streams] == [1] * STREAMS
    rpc.respond = respond
    watch.until(
        lambda: (
            watch.descriptors(gateway.pid) <= before[0] + 8  # connections to the backend may stay
            and watch.metric(gateway, "infergate_tasks") <= before[1]
            and watch.metric(gateway, "infergate_in_flight_requests") == 0
            and watch.metric(gateway, "infergate_open_streams") == 0
        ),
        "all resources are released",
    )


def two_messages(proceed: threading.Event) -> Iterator[bytes]:
    """Yield a message, and another message after ``proceed`` is set."""
    yield message()
    proceed.wait(5 * watch.SECONDS)
    yield message()


def test_a_thousand_connections_are_released(gateway: Infergate) -> None:
    """Every third client resets its connection instead of reading the response."""
    hello = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0)
    request = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_headers(INFER))
    request += h2.frame(h2.DATA, h2.END_STREAM, 1, h2.message(message()))
    before = watch.descriptors(gateway.pid)

    def complete_call(number: int) -> bool:
        with Client(gateway.grpc) as client:
            client.send(hello + request)
            if number % 3 == 0:
                client.reset()
                return True
            return any(
                each.kind == h2.HEADERS and each.flags & h2.END_STREAM
                for each in h2.frames(client.exactly)
            )

    with watch.limited_growth(gateway.pid, 64 * watch.MIB), ThreadPoolExecutor(20) as threads:
        assert all(threads.map(complete_call, range(1000)))
    watch.until(lambda: watch.descriptors(gateway.pid) <= before, "all connections are closed")
    watch.until(
        lambda: watch.metric(gateway, "infergate_in_flight_requests") == 0,
        "no request is in progress",
    )


# ---- servers that stop and restart


class Callers:
    """Threads that make sequential calls until the block ends. ``outcomes`` counts the calls by
    status code."""

    def __init__(self, address: str, request: bytes) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address = address
        self._request = request
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(6)]

    def _run(self) -> None:
        with channel(self._address) as rpc_channel:
            while not self._stop.is_set():
                status = call(rpc_channel, self._request)
                self.outcomes[status.code.name] += 1
                if status.code is not grpc.StatusCode.OK:
                    time.sleep(0.01)

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(2 * watch.SECONDS)
        assert not any(each.is_alive() for each in self._threads), "a call did not end"


def test_calls_succeed_after_each_restart_of_a_backend() -> None:
    (port,) = free_ports(1)
    config = CONFIG.format(rpc=f"127.0.0.1:{port}")
    with started_infergate(config, engine="own") as gateway:
        with Callers(gateway.grpc, infer_message("scripted")) as callers:
            for count in range(1, 6):
                with rpc_backend(port):
                    watch.until(lambda: callers.outcomes["OK"] >= 50 * count, "calls succeed again")  # noqa: B023
        # grpcio's server returns CANCELLED for calls in progress. INTERNAL means a reset.
        assert callers.outcomes.keys() <= {"OK", "UNAVAILABLE", "CANCELLED", "INTERNAL"}
        in_progress = callers.outcomes["INTERNAL"] + callers.outcomes["CANCELLED"]
        assert in_progress <= 5 * 6, "more calls failed than were in progress"
        assert watch.logged_bugs(gateway) == ""


def test_a_shutdown_ends_all_calls(rpc: RpcBackend) -> None:
    """Requests in progress are completed, streams end, new calls are rejected, and the process
    exits in time."""
    respond, rpc.respond = rpc.respond, rpc.wait
    rpc.entered.clear()
    rpc.release.clear()
    with (
        started_infergate(CONFIG.format(rpc=rpc.address), engine="own") as gateway,
        channel(gateway.grpc) as rpc_channel,
        Callers(gateway.grpc, message()) as callers,
    ):
        proceed = threading.Event()
        streams = [
            rpc_channel.stream_stream(STREAM)(two_messages(proceed), timeout=watch.SECONDS)
            for _ in range(20)
        ]
        for each in streams:
            next(each)
        pending = [
            rpc_channel.unary_unary(INFER).future(infer_message("scripted")) for _ in range(10)
        ]
        assert rpc.entered.wait(watch.SECONDS)
        watch.until(
            lambda: watch.metric(gateway, "infergate_in_flight_requests") >= 10,
            "the requests are in progress",
        )
        os.kill(gateway.pid, signal.SIGTERM)
        watch.until(lambda: callers.outcomes["UNAVAILABLE"] > 0, "new connections are refused")
        rpc.release.set()
        assert len({each.result() for each in pending}) == 1
        for each in streams:
            with contextlib.suppress(grpc.RpcError):
                list(each)
            assert each.code() in {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        proceed.set()
        watch.until(lambda: not watch.alive(gateway), "the process has ended")
        assert watch.logged_bugs(gateway) == ""
    rpc.respond = respond
    assert callers.outcomes.keys() == {"OK", "UNAVAILABLE"}


# ---- long messages


@pytest.mark.parametrize("transport", ["grpc", "http"])
@pytest.mark.parametrize("model", ["identity", "scripted", "unreachable", "nothing"])
def test_long_messages_are_released(
    gateway: Infergate, rpc: RpcBackend, transport: str, model: str
) -> None:
    """After the first of nine calls, memory grows by less than the size of four messages."""
    size = 16 * watch.MIB
    module: Any = tritonclient.grpc if transport == "grpc" else tritonclient.http
    tensor = module.InferInput("INPUT0", [size // 4], "FP32")
    tensor.set_data_from_numpy(np.zeros(size // 4, np.float32))
    respond = rpc.respond
    rpc.respond = lambda message, context: context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
    before = 0
    with module.InferenceServerClient(getattr(gateway, transport)) as client:
        for _ in range(9):
            with contextlib.suppress(InferenceServerException):
                client.infer(model, [tensor])
            before = before or watch.resident(gateway.pid)  # after all modules are loaded
    rpc.respond = respond
    watch.until(lambda: watch.resident(gateway.pid) < before + 4 * size, "everything is released")

"""Tests clients whose requests arrive while the event loop is blocked for longer than the time
limits, because the process is stopped or a read is slow. They are served, and none times out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import grpc
import pytest

from e2e.running import ENGINE
from faults import frames, h2
from faults.low_limits import (
    LIVE,
    VALID_BODY,
    LimitedGateway,
    good,
    good_call,
    good_frame,
    head,
    message,
)
from faults.peer import Client
from faults.replicas import QUIET
from faults.rpc import INFER, call, channel
from faults.watch import SECONDS, metric, rises, unharmed
from infergate.assembly.engines import load_engine
from infergate.config.schema import Config
from infergate.runtime.assemble import assemble

BLOCKED_SECONDS = "infergate_loop_held_up_seconds_total"
BLOCKED = 1.6
"""Seconds for which the process is stopped. They exceed every limit of the gateway, so that all of
its timers expire."""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(BLOCKED)  # the fault lasts this long
    finally:
        os.kill(pid, signal.SIGCONT)


def at_http(address: str, begin: bytes, rest: bytes) -> Iterator[None]:
    with Client(address) as client:
        client.send(begin)
        yield
        client.send(rest)
        yield
        assert client.answer().status == 200


def after_a_request(address: str, request: bytes = LIVE) -> Iterator[None]:
    with Client(address) as client:
        client.send(request)
        assert client.answer().status == 200
        yield
        client.send(request)
        yield
        assert client.answer().status == 200


def in_a_frame(address: str, cut: int) -> Iterator[None]:
    with Client(address) as client:
        client.send(frames.FRAME[:cut])
        yield
        client.send(frames.FRAME[cut:])
        yield
        assert frames.error_in(client) == ""


def in_a_call(address: str, cut: int) -> Iterator[None]:
    whole = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.request_headers(INFER)) + h2.frame(
        h2.DATA, h2.END_STREAM, 1, h2.message(message())
    )
    with Client(address) as client:
        begun = h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + whole
        client.send(begun[:cut])
        yield
        client.send(begun[cut:])
        yield
        ends = [
            each
            for each in _until_the_end(client)
            if each.stream == 1 and each.flags & h2.END_STREAM
        ]
        assert b"grpc-status" in ends[0].payload or ends[0].kind == h2.HEADERS


def _until_the_end(client: Client) -> Iterator[h2.Frame]:
    for each in h2.frames(client.exactly):
        yield each
        if each.stream == 1 and (each.flags & h2.END_STREAM or each.kind == h2.RST_STREAM):
            return


CLIENTS: dict[str, Callable[[LimitedGateway], Iterator[None]]] = {
    "new": lambda gateway: at_http(gateway.http, b"", head() + VALID_BODY),
    "in a head": lambda gateway: at_http(gateway.http, head()[:9], head()[9:] + VALID_BODY),
    "in a body": lambda gateway: at_http(gateway.http, head() + VALID_BODY[:9], VALID_BODY[9:]),
    "after a request": lambda gateway: after_a_request(gateway.http),
    "at the admin listener": lambda gateway: after_a_request(
        gateway.admin, LIVE.replace(b"/v2/health/live", b"/healthz")
    ),
    "with a frame": lambda gateway: in_a_frame(gateway.raw, 0),
    "in a prefix": lambda gateway: in_a_frame(gateway.raw, 2),
    "in a frame": lambda gateway: in_a_frame(gateway.raw, 30),
}
CALLS: dict[str, Callable[[LimitedGateway], Iterator[None]]] = {
    "before the preface": lambda gateway: in_a_call(gateway.grpc, 0),
    "in the preface": lambda gateway: in_a_call(gateway.grpc, 9),
    "in a call's headers": lambda gateway: in_a_call(gateway.grpc, len(h2.PREFACE) + 30),
    "in a message": lambda gateway: in_a_call(gateway.grpc, -9),
}
"""Clients of infergate's own engine. (grpcio reads in its own threads and has its own limits.)"""


@pytest.fixture
def gateway(limited_gateway: LimitedGateway) -> Iterator[LimitedGateway]:
    """Run the gateway without another client, because a stopped process serves no requests."""
    with unharmed(limited_gateway, lambda: None):
        yield limited_gateway


def test_clients_of_a_stopped_process_are_served(gateway: LimitedGateway) -> None:
    senders = CLIENTS if ENGINE == "compat" else CLIENTS | CALLS
    timeouts = metric(gateway, "infergate_requests_total", outcome="timeout")
    with rises(gateway, BLOCKED_SECONDS, by=BLOCKED / 2):
        clients = [each(gateway) for each in senders.values()]
        with channel(gateway.grpc) as rpc_channel:
            assert call(rpc_channel, message()).code is grpc.StatusCode.OK
            for each in clients:
                next(each)
            with stopped(gateway.pid):
                for each in clients:
                    next(each)
                request = rpc_channel.unary_unary(INFER).future(message(), timeout=60)
            for each in clients:
                assert next(each, "served") == "served"
            assert request.result()
    assert metric(gateway, "infergate_requests_total", outcome="timeout") == timeouts
    for send_request in (good, good_call, good_frame):
        send_request(gateway)


# ---- blocking each reader of the event loop


class BlockingProtocol(asyncio.Protocol):
    """A protocol that blocks the loop while it reads, as an overly expensive message would."""

    begun = threading.Event()

    def data_received(self, data: bytes) -> None:
        self.begun.set()
        time.sleep(BLOCKED)


SHORT_LIMITS = {"header_time": "1s", "idle_body_time": "1s", "keepalive_time": "1s"}


@contextlib.contextmanager
def in_this_process(engine: str) -> Iterator[tuple[LimitedGateway, str]]:
    """Run a gateway in a thread. Return it, and an address at which a byte blocks its loop."""
    anywhere = {"address": "127.0.0.1:0"}
    raw = {"address": "tcp://127.0.0.1:0", "model": "identity", "framing": "size-prefixed"}
    config = Config.model_validate(
        {
            **QUIET,
            "engine": engine,
            "listeners": {
                **dict.fromkeys(("http", "grpc", "admin"), anywhere),
                "graphpipe": (raw,),
            },
            "backends": {"ours": {"protocol": "builtin"}},
            "routes": ({"model": "*", "backend": "ours"},),
            "limits": SHORT_LIMITS,
        }
    )
    result: Future[tuple[LimitedGateway, str]] = Future()
    loop, over = (load_engine(engine).make_loop or asyncio.new_event_loop)(), asyncio.Event()

    async def serve() -> None:
        running = assemble(config)
        await running.start()
        blocking = await loop.create_server(BlockingProtocol, "127.0.0.1", 0)
        addresses = {key: str(each.address) for key, each in running.listeners.items()}
        raw = addresses.pop("graphpipe[0]")
        port = blocking.sockets[0].getsockname()[1]
        result.set_result(
            (LimitedGateway(**addresses, pid=os.getpid(), log=Path(), raw=raw), f"127.0.0.1:{port}")
        )
        await over.wait()
        blocking.close()
        await running.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield result.result(SECONDS)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize("engine", ["own", "compat"])
def test_clients_are_served_after_a_read_that_blocks_the_loop(engine: str) -> None:
    with in_this_process(engine) as (gateway, blocking):
        good(gateway)
        good_call(gateway)
        held_up = rises(gateway, BLOCKED_SECONDS, by=BLOCKED / 2)
        with unharmed(gateway, lambda: None), held_up:  # a blocked loop serves no request
            senders = (CLIENTS if engine == "compat" else CLIENTS | CALLS).values()
            clients = [each(gateway) for each in senders]
            BlockingProtocol.begun.clear()
            for each in clients:
                next(each)
            with Client(blocking) as client:
                client.send(b"x")
                assert BlockingProtocol.begun.wait(SECONDS)
                for each in clients:
                    next(each)
                for each in clients:
                    assert next(each, "served") == "served"

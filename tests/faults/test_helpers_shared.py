"""Tests that helper processes are shared fairly. A client's long messages delay another client by
at most a few messages. The queue is limited, and a caller that disconnects or times out stops
waiting."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from e2e.running import Infergate, started_infergate
from faults.low_limits import PATH, good, head
from faults.peer import Client, post
from faults.watch import MIB, assert_healthy, counted, metric, rises, unharmed, until

CONFIG = """
backends:
  ours: {protocol: builtin}
routes:
  - {model: hasty, backend: ours, rewrite: {model: identity}, timeout: 1s}
  - {model: "*", backend: ours}
helpers: 1
"""
QUEUE = "infergate_helper_queue_jobs"
ATTACKS = 40


def _document(elements: int) -> bytes:
    fields = {"name": "INPUT0", "datatype": "UINT8", "shape": [elements], "data": []}
    return (
        json.dumps({"inputs": [fields]}).replace("[]", "[" + "0," * (elements - 1) + "0]").encode()
    )


ATTACK = gzip.compress(_document(4 * MIB), 9)
"""9 KB that inflate to 8 MiB of JSON."""
SHORT_REQUEST = _document(200_000)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as gateway:
        good(gateway)
        assert post(gateway.http, PATH, SHORT_REQUEST).status == 200
        yield gateway
        assert_healthy(gateway)


@contextmanager
def attacked(gateway: Infergate) -> Iterator[list[Client]]:
    """Send ATTACK on many connections at once, and then disconnect."""
    # Freed memory is kept up to the trim threshold (``runtime.memory``). All attacks together hold
    # 320 MiB.
    limits = {"max_growth": 256 * MIB, "max_retained": 64 * MIB}
    with unharmed(gateway, lambda: good(gateway), **limits), ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.http)) for _ in range(ATTACKS)]
        for client in clients:
            client.send(head("Content-Encoding: gzip", length=len(ATTACK)) + ATTACK)
        until(lambda: metric(gateway, QUEUE) >= ATTACKS // 2, "the attacks wait for the helper")
        yield clients
    until(lambda: metric(gateway, QUEUE) == 0, "no request waits")


def test_long_messages_of_a_client_delay_another_client_briefly(gateway: Infergate) -> None:
    with attacked(gateway), rises(gateway, "infergate_helper_queue_seconds_count"):
        before = metric(gateway, QUEUE)
        assert post(gateway.http, PATH, SHORT_REQUEST).status == 200
        assert metric(gateway, QUEUE) >= before - 4


def test_a_deadline_ends_the_wait_for_a_helper(gateway: Infergate) -> None:
    path = PATH.replace("identity", "hasty")
    with (
        attacked(gateway),
        rises(gateway, "infergate_helper_queue_refusals_total", 1, reason="expired"),
    ):
        assert post(gateway.http, path, ATTACK, {"Content-Encoding": "gzip"}).status == 504


def test_disconnected_callers_do_not_wait_for_a_helper(gateway: Infergate) -> None:
    before = counted(gateway, outcome="ok")
    with attacked(gateway) as clients:
        for client in clients:
            client.reset()
        until(lambda: metric(gateway, QUEUE) == 0, "no request waits")
        assert post(gateway.http, PATH, SHORT_REQUEST).status == 200
    assert counted(gateway, outcome="ok") >= before + 1

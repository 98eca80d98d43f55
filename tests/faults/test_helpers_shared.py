"""Tests that helper processes are shared fairly. A client's long messages delay another client's by
a few messages at most. The queue is limited, and a caller that disconnects or times out stops
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
MODEST = _document(200_000)


@pytest.fixture(scope="module")
def one() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as gateway:
        good(gateway)
        assert post(gateway.http, PATH, MODEST).status == 200
        yield gateway
        assert_healthy(gateway)


@contextmanager
def attacked(gateway: Infergate) -> Iterator[list[Client]]:
    """Send the attack on ``connections`` connections at once, and then disconnect."""
    # Freed memory is kept up to the trim threshold (``runtime.memory``). All attacks together hold
    # 320 MiB.
    kept = {"max_growth": 256 * MIB, "max_retained": 64 * MIB}
    with unharmed(gateway, lambda: good(gateway), **kept), ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.http)) for _ in range(ATTACKS)]
        for client in clients:
            client.send(head("Content-Encoding: gzip", length=len(ATTACK)) + ATTACK)
        until(lambda: metric(gateway, QUEUE) >= ATTACKS // 2, "they wait for the helper")
        yield clients
    until(lambda: metric(gateway, QUEUE) == 0, "no request waits")


def test_long_messages_of_a_client_delay_another_client_briefly(one: Infergate) -> None:
    with attacked(one), rises(one, "infergate_helper_queue_seconds_count"):
        waiting = metric(one, QUEUE)
        assert post(one.http, PATH, MODEST).status == 200
        assert metric(one, QUEUE) >= waiting - 4


def test_a_deadline_ends_the_wait_for_a_helper(one: Infergate) -> None:
    path = PATH.replace("identity", "hasty")
    with attacked(one), rises(one, "infergate_helper_queue_refusals_total", 1, reason="expired"):
        assert post(one.http, path, ATTACK, {"Content-Encoding": "gzip"}).status == 504


def test_disconnected_callers_do_not_wait_for_a_helper(one: Infergate) -> None:
    handled = counted(one, outcome="ok")
    with attacked(one) as clients:
        for client in clients:
            client.reset()
        until(lambda: metric(one, QUEUE) == 0, "no request waits")
        assert post(one.http, PATH, MODEST).status == 200
    assert counted(one, outcome="ok") >= handled + 1

"""The messages of relayed requests are freed when they are no longer needed, without waiting for
the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from relay_kit import Pair, Stack, patches, request_message

from infergate.core.wire import RpcRequest

SIZE = 150_000


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    pair = Pair(endpoints=2)
    for target, name, value in patches(lambda: pair.loop.now):
        monkeypatch.setattr(target, name, value)
    pair.run()
    gc.collect()
    gc.disable()
    yield pair
    gc.enable()
    pair.close()


def held_requests(pair: Pair) -> int:
    """Return the number of long request messages in memory."""
    for stack in pair.stacks:
        stack.contexts.clear()
        stack.requests.clear()
    return sum(
        1
        for each in gc.get_objects()
        if isinstance(each, RpcRequest) and sum(map(len, each.message)) > SIZE
    )


def close_window(stack: Stack) -> None:
    stack.connection.engine.outbound.window = 0


def call(pair: Pair, key: str = "k") -> None:
    pair.run(lambda stack: stack.call(key, request_message("m", SIZE)))


def answer(pair: Pair, key: str, kind: str) -> None:
    pair.run(lambda stack: stack.answer(key, kind))


@pytest.mark.parametrize(
    "answers",
    [["ok"], ["garbage"], ["refused", "ok"], ["refused", "refused", "ok"], ["refused"] * 4],
    ids="-".join,
)
def test_messages_are_freed_after_the_response(pair: Pair, answers: list[str]) -> None:
    call(pair, "first")
    answer(pair, "first", "ok")
    assert not held_requests(pair)
    call(pair)
    for kind in answers:
        answer(pair, "k", kind)
    assert not held_requests(pair)


@pytest.mark.parametrize("earlier_calls", [0, 2])
def test_messages_are_freed_while_the_client_does_not_read(pair: Pair, earlier_calls: int) -> None:
    """The first request to each endpoint waits for a connection in a task."""

    for number in range(earlier_calls):
        call(pair, str(number))
        answer(pair, str(number), "ok")
    call(pair)
    pair.run(close_window)
    answer(pair, "k", "ok")
    # Only the response is still held.
    assert all(0 < stack.admission.bytes < SIZE for stack in pair.stacks)
    assert not held_requests(pair)


def test_a_served_request_is_not_active(pair: Pair) -> None:
    """A reload does not wait for the client to read the response."""
    for number in range(2):
        call(pair, str(number))
        answer(pair, str(number), "ok")
    call(pair)
    active = [next(iter(stack.listener.active_requests())) for stack in pair.stacks]
    for _ in range(2):  # the relayed request continues in a task, on the other endpoint
        answer(pair, "k", "refused")
    pair.run(close_window)
    assert not any(future.done() for future in active)
    answer(pair, "k", "ok")
    assert all(future.done() for future in active)

"""Relayed requests produce the same bytes, statuses, metrics and log lines as requests in tasks,
for any interleaving of frames, resets, deadlines, server failures, drains and reloads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from relay_kit import (
    HttpStack,
    Pair,
    TranslatedStack,
    legacy_request,
    patches,
    request_message,
    rest_request,
)

from infergate.core.errors import GatewayError, Kind
from searching import examples

ANSWERS = (
    "ok",
    "ok",
    "ok",
    "garbage",
    "empty",
    "two",
    "invalid",
    "unavailable",
    "cancelled",
    "late",
    "http",
    "partial",
    "oversize",
    "reset",
    "refused",
    "refused",
    "lost",
    "goaway",
)
HTTP_ANSWERS = (
    "ok",
    "ok",
    "ok",
    "ok, then closed",
    "garbage",
    "invalid",
    "unavailable",
    "compressed",
    "no HTTP",
    "oversize",
    "lost",
    "partial",
)
MODELS = ("m", "m", "renamed", "quick", "trusted", "once", "again", "unknown", "bad\nname")
KINDS = ("raw", "raw", "raw", "typed", "sequence", "wrong", "garbage", "classes", "many", "binary")
TRANSLATED_ANSWERS = (*ANSWERS, "long", "many", "wrong")
_PAUSE = 0.002
"""Seconds between two calls."""
TIMEOUTS = ("", "", "", "1S", "200m", "0m")


class Relayed(RuleBasedStateMachine):
    """The steps of a client, its servers and an operator."""

    pair: Pair
    calls = 0
    is_http = False
    is_legacy = False
    http_stack: type[HttpStack] = HttpStack
    has_helpers = False
    answers: tuple[str, ...] = ANSWERS

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._keys: list[str] = []

    @initialize(
        endpoints=st.integers(1, 2),
        max_requests=st.sampled_from((0, 0, 1, 2)),
        is_legacy=st.sampled_from((False, False, True)),
        is_warm=st.sampled_from((True, True, False)),
    )
    def build(self, endpoints: int, max_requests: int, is_legacy: bool, is_warm: bool) -> None:
        options = {"endpoints": endpoints, "max_requests": max_requests}
        # If one read has several calls, the relaying stack begins those that need a task last.
        # The order affects endpoints, free slots and the IDs of the legacy API.
        self.is_order_relevant = endpoints > 1 or max_requests > 0 or is_legacy
        self.is_legacy = is_legacy
        if self.is_http:
            self.make_message = rest_request
            self.pair = Pair(self.http_stack, has_helpers=self.has_helpers, **options)
        else:
            self.make_message = legacy_request if is_legacy else request_message
            self.pair = Pair(is_legacy=is_legacy, **options)
        for target, name, value in patches(lambda: self.pair.loop.now):
            self._patch.setattr(target, name, value)
        self.pair.run()
        for key in ("w1", "w2") if is_warm else ():  # a connection to each endpoint
            self._on_stacks("call", key, self.make_message("m"))
            self._on_stacks("answer", key, "ok")

    def _on_stacks(self, name: str, *arguments: Any) -> None:
        self.pair.run(lambda stack: getattr(stack, name)(*arguments))

    @rule(
        model=st.sampled_from(MODELS),
        kind=st.sampled_from(KINDS),
        size=st.sampled_from((1, 4, 4, 100, 70_000, 190_000, 300_000)),
        timeout=st.sampled_from(TIMEOUTS),
        cut=st.sampled_from((-1, -1, -1, -1, 5, 60, 150, 220, 260)),
    )
    def call(self, model: str, kind: str, size: int, timeout: str, cut: int) -> None:
        self.calls += 1
        key = f"k{self.calls}"
        self._keys.append(key)
        cut = -1 if self.is_order_relevant else cut
        headers = [("grpc-timeout", timeout)] if timeout and not self.is_http else []
        if self.is_http:
            model, size = model.replace("\n", "%20"), min(size, 1000)
        message = self.make_message(model, size if kind == "raw" else 4, kind)
        for stack in self.pair.stacks:
            stack.has_cut = cut >= 0
        self._on_stacks("call", key, message, headers, cut)
        # asyncio runs timers of equal time in any order, so no two calls may end at the same time.
        self.pair.advance(_PAUSE)

    @rule(count=st.sampled_from((1, 9, 40, -1)))
    def send_more(self, count: int) -> None:
        """Send more of the bytes that were held back."""
        assume(self.pair.stacks[0].unsent)
        for stack in self.pair.stacks:
            stack.has_cut = count >= 0
        self._on_stacks("write", count)

    @precondition(lambda self: self._keys and not self.is_http)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._keys))
        self._keys.remove(key)
        for stack in self.pair.stacks:
            stack.has_cut = False
        self._on_stacks("reset", key)

    @precondition(lambda self: not self.is_http)
    @rule(model=st.sampled_from(MODELS))
    def call_and_reset(self, model: str) -> None:
        """A call and its reset arrive together."""
        self.calls += 1
        key = f"k{self.calls}"

        def call_then_reset(stack: Any) -> None:
            stack.has_cut = False
            stack.call(key, self.make_message(model), (), 0)
            stack.reset(key)

        self.pair.run(call_then_reset)

    @precondition(lambda self: self.pair.stacks[0].pending)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(self.answers))
        pending = sorted(self.pair.stacks[0].pending)
        # If several calls end at once, those in a task get the last IDs of the legacy API.
        assume(not (self.is_legacy and kind in {"lost", "goaway"} and len(pending) > 1))
        key = data.draw(st.sampled_from(pending))
        self._on_stacks("answer", key, kind)

    @rule(seconds=st.sampled_from((0.06, 0.3, 0.6, 2.0, 6.0)))
    def advance(self, seconds: float) -> None:
        self.pair.advance(seconds)

    @rule(is_refusing=st.booleans())
    def refuse_connections(self, is_refusing: bool) -> None:
        for stack in self.pair.stacks:
            stack.refuses_connections = is_refusing

    @rule(count=st.sampled_from((1, 2, 100)))
    def limit_streams(self, count: int) -> None:
        """Limit the number of streams on later connections of the servers."""
        for stack in self.pair.stacks:
            stack.max_server_streams = count

    @rule()
    def reload(self) -> None:
        self.pair.run(lambda stack: stack.listener.set_app(stack.make_app(), stack.limits))

    @rule(event=st.sampled_from(("drain", "abort", "disconnect")), delay=st.integers(0, 4))
    def end(self, event: str, delay: int) -> None:
        if delay:  # so that most runs take many steps first
            return
        for stack in self.pair.stacks:
            stack.listener.is_stopping = event != "disconnect"
        match event:
            case "drain":
                self.pair.run(lambda stack: stack.connection.close_when_idle())
            case "abort":
                error = GatewayError(Kind.OVERLOADED, "the gateway is shutting down")
                self.pair.run(lambda stack: stack.connection.cancel_with(error))
            case _:
                self.pair.run(lambda stack: stack.transport.close())

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.close()
        self._patch.undo()


class RelayedHttp(Relayed):
    """The same steps over HTTP/1.1."""

    is_http = True
    answers = HTTP_ANSWERS


class RelayedTranslations(RelayedHttp):
    """The same steps with HTTP/1.1 clients and gRPC servers."""

    http_stack = TranslatedStack
    has_helpers = True
    answers = TRANSLATED_ANSWERS


_SETTINGS = settings(
    max_examples=examples(120),
    stateful_step_count=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestRelayed = Relayed.TestCase
TestRelayed.settings = _SETTINGS
TestRelayedHttp = RelayedHttp.TestCase
TestRelayedHttp.settings = _SETTINGS
TestRelayedTranslations = RelayedTranslations.TestCase
TestRelayedTranslations.settings = _SETTINGS

"""The memory and the exceptions of functions that daemon threads run."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import pytest

from infergate.core.daemon_threads import to_daemon_thread


class Referent:
    pass


async def test_the_function_and_its_arguments_are_freed_before_the_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, may_end = asyncio.get_running_loop(), threading.Event()
    report = loop.call_soon_threadsafe

    def report_and_wait(*arguments: Any) -> None:
        report(*arguments)
        assert may_end.wait(60)

    monkeypatch.setattr(loop, "call_soon_threadsafe", report_and_wait)
    captured, argument = Referent(), Referent()
    references = weakref.ref(captured), weakref.ref(argument)

    def use(_: Referent, value: Referent = captured) -> str:
        return type(value).__name__

    try:
        call = to_daemon_thread(use, argument)
        del use, captured, argument
        assert await call == "Referent"
        del call
        assert [reference() for reference in references] == [None, None]
    finally:
        may_end.set()


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(3), KeyError(3)], ids=repr)
async def test_the_caller_receives_every_exception(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises((RuntimeError, KeyError), match="3"):
        await asyncio.wait_for(to_daemon_thread(fail), 60)

"""Runs the methods of a plug-in outside the gateway's event loop.

Each plug-in has its own event loop, in its own thread, for its asynchronous methods, and threads
for its synchronous methods. A blocked plug-in therefore delays only its own calls. A call that does
not end in time is abandoned: the caller gets an error that names the plug-in, and the memory of the
call stays charged until the call ends. Threads cannot be stopped, so a plug-in with too many such
calls receives no further calls until some of them end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from infergate.core.counters import PluginCounters
from infergate.core.errors import GatewayError, Kind, Origin
from infergate.core.log_events import PLUGIN_FAILED, PLUGIN_HANGS
from infergate.core.memory import (
    MIN_ACCOUNTED_BYTES,
    UNLIMITED,
    DetachedMemoryAccount,
    MemoryAccount,
)
from infergate.plugin_host.loading import describe_exception
from infergate.plugin_host.results import InvalidResultError
from infergate.plugin_host.threads import JobThreads, LoopThread
from infergate.plugins.base import Plugin

MAX_HANGING: Final = 64
"""If this many abandoned calls are still running, further calls are refused."""
HANGING_GRACE: Final = 1.0
"""Seconds for which ``MAX_HANGING`` or more abandoned calls are tolerated. Abandoned asynchronous
calls are cancelled, and usually end within this time."""
CLOSE_SECONDS: Final = 5.0
"""Maximum duration of ``Plugin.close``."""
_LOG_SECONDS: Final = 10.0
"""Minimum seconds between two log lines about failures of one plug-in."""
_log: Final = logging.getLogger(__name__)

Step = Callable[[], Any]
"""A synchronous or asynchronous function without arguments, which calls the plug-in."""


class PluginCallError(GatewayError):
    """A plug-in failed, hung, or returned an invalid result, rather than rejecting the request on
    purpose."""


class FailureKinds(NamedTuple):
    """The kinds and the origin of errors that clients receive when a plug-in fails."""

    error: Kind
    """The plug-in raised an exception, or the call was refused."""
    invalid: Kind
    """The plug-in returned an invalid result."""
    origin: Origin


class _Outcome(NamedTuple):
    value: Any
    error: BaseException | None


class _Call:
    """A call in progress. Only the gateway's event loop changes its attributes, except ``task``,
    which only the plug-in's loop uses."""

    __slots__ = ("account", "is_abandoned", "is_finished", "loop", "on_end", "task", "waiter")

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self.waiter: Final[asyncio.Future[_Outcome]] = self.loop.create_future()
        self.on_end: Final = on_end
        self.task: asyncio.Task[None] | None = None
        self.account: DetachedMemoryAccount | None = None
        self.is_abandoned = False
        self.is_finished = False


def _nothing() -> None:
    pass


class PluginRunner:
    """Runs the calls of ``plugin``. ``label`` names the plug-in in errors and logs, for example
    ``hook 'guard'``. ``start`` and ``discard`` block the calling thread. ``run``,
    ``run_unattended`` and ``close`` must be called on the gateway's event loop."""

    def __init__(
        self, plugin: Plugin, label: str, counters: PluginCounters, kinds: FailureKinds
    ) -> None:
        self.plugin: Final = plugin
        self.label: Final = label
        self.counters: Final = counters
        self._kinds: Final = kinds
        self._threads: Final = JobThreads(f"infergate {label}")
        self._loop_thread: LoopThread | None = None
        self._hanging = 0
        self._stuck_since = math.inf
        self._next_log = 0.0
        self._unlogged = 0

    @property
    def is_stuck(self) -> bool:
        """Whether further calls are refused because too many calls hang."""
        return time.monotonic() - self._stuck_since > HANGING_GRACE

    def start(self, seconds: float) -> None:
        """Call the plug-in's ``start``. Raises the exception of ``start``, or TimeoutError after
        ``seconds``."""
        if type(self.plugin).start is not Plugin.start:
            loop = self._loop()
            asyncio.run_coroutine_threadsafe(self.plugin.start(), loop).result(seconds)

    async def close(self) -> None:
        """Call the plug-in's ``close``, and end the threads that are not blocked. Never raises."""
        if type(self.plugin).close is not Plugin.close:
            try:
                await self.run(self.plugin.close, CLOSE_SECONDS)
            except GatewayError as error:
                self.log_failure(f"error while closing a plug-in: {error.public}")
        self.stop_threads()

    def discard(self) -> None:
        """Close a plug-in that was never used. Never raises."""

        async def close() -> None:
            closing: Any = self.plugin.close()
            if inspect.isawaitable(closing):  # a plug-in may define a synchronous method
                async with asyncio.timeout(CLOSE_SECONDS):
                    await closing

        if type(self.plugin).close is not Plugin.close:
            closing = asyncio.run_coroutine_threadsafe(close(), self._loop())
            try:
                closing.result(2 * CLOSE_SECONDS)  # the plug-in may block its event loop
            except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything
                text = f"{self.label} failed while it was closed: {describe_exception(error)}"
                self.log_failure(text, error)
        self.stop_threads()

    def stop_threads(self) -> None:
        """End the threads that are not blocked."""
        self._threads.stop()
        if self._loop_thread is not None:
            self._loop_thread.stop()
            self._loop_thread = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._loop_thread is None:
            self._loop_thread = LoopThread(f"infergate {self.label}", self._log_exit)
        return self._loop_thread.loop

    async def run(
        self,
        step: Step,
        seconds: float,
        *,
        memory: MemoryAccount = UNLIMITED,
        held_bytes: int = 0,
        on_end: Callable[[], None] = _nothing,
    ) -> Any:
        """Return the result of ``step``, which must end within ``seconds``.

        ``on_end`` is called when the step has ended, even if the step was abandoned before, or when
        the call is refused. Until then, ``held_bytes`` of ``memory`` stay charged if they exceed
        ``MIN_ACCOUNTED_BYTES``. Raises PluginCallError, or the GatewayError that the step
        raises."""
        if self.is_stuck:
            on_end()
            self.counters.calls["refused"] += 1
            raise self._failure(
                self._kinds.error, f"{self.label} does not respond: {self._hanging} calls hang"
            )
        call = _Call(on_end)
        began = time.monotonic()
        try:
            self._submit(call, step)
        except RuntimeError as error:  # the process cannot start a thread
            on_end()
            self.counters.calls["refused"] += 1
            raise self._failure(
                self._kinds.error, f"{self.label} cannot be called", describe_exception(error)
            ) from None
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                outcome = await call.waiter
        except TimeoutError:
            self._abandon(call, memory, held_bytes)
            self.counters.calls["timeout"] += 1
            text = f"{self.label} did not respond within {seconds:.3g} seconds"
            self.log_failure(f"{text}; {self._hanging} of its calls hang", is_hanging=True)
            raise self._failure(Kind.TIMEOUT, text) from None
        except asyncio.CancelledError:
            self._abandon(call, memory, held_bytes)
            self.counters.calls["cancelled"] += 1
            raise
        self.counters.seconds.observe(time.monotonic() - began)
        return self._result(outcome)

    def run_unattended(self, step: Step) -> None:
        """Start ``step``, and ignore its result and its errors."""
        self._submit(_Call(_nothing), step)

    # ---- on the gateway's event loop

    def _submit(self, call: _Call, step: Step) -> None:
        if inspect.iscoroutinefunction(step):
            self._loop().call_soon_threadsafe(self._start_task, call, step)
        else:
            self._threads.submit(lambda: self._run_job(call, step))

    def _abandon(self, call: _Call, memory: MemoryAccount, held_bytes: int) -> None:
        if call.is_finished:
            return
        call.is_abandoned = True
        self._count_hanging(1)
        if held_bytes > MIN_ACCOUNTED_BYTES:
            call.account = memory.detach(held_bytes)
        if self._loop_thread is not None:
            self._loop_thread.loop.call_soon_threadsafe(self._cancel_task, call)

    def _count_hanging(self, change: int) -> None:
        self._hanging += change
        self.counters.hanging += change
        if self._hanging < MAX_HANGING:
            self._stuck_since = math.inf
        elif self._stuck_since == math.inf:
            self._stuck_since = time.monotonic()

    def _finish(self, call: _Call, outcome: _Outcome) -> None:
        call.is_finished = True
        if call.is_abandoned:
            self._count_hanging(-1)
            if call.account is not None:
                call.account.close()
        elif not call.waiter.done():
            call.waiter.set_result(outcome)
        call.on_end()

    def _result(self, outcome: _Outcome) -> Any:
        error = outcome.error
        if error is None:
            self.counters.calls["ok"] += 1
            return outcome.value
        if isinstance(error, GatewayError) and _is_valid(error):
            self.counters.calls["rejected"] += 1
            # A plug-in may raise the same exception object repeatedly, and each raise would extend
            # the object's traceback.
            rejection = error.reworded(error.public)
            rejection.origin = self._kinds.origin
            raise rejection
        if isinstance(error, InvalidResultError):
            self.counters.calls["invalid"] += 1
            text = f"{self.label} returned an invalid result: {error}"
            self.log_failure(text)
            raise self._failure(self._kinds.invalid, text)
        self.counters.calls["error"] += 1
        described = describe_exception(error)
        self.log_failure(f"{self.label} failed: {described}", error)
        # The exception's text may contain secrets, so it is logged but not sent to the client.
        public = f"{self.label} failed with {type(error).__name__}"
        raise self._failure(self._kinds.error, public, described)

    def _failure(self, kind: Kind, public: str, detail: str = "") -> PluginCallError:
        return PluginCallError(kind, public, origin=self._kinds.origin, detail=detail)

    def log_failure(
        self, text: str, error: BaseException | None = None, *, is_hanging: bool = False
    ) -> None:
        """Log ``text`` if no failure was logged shortly before. The next line reports the number of
        failures that were not logged."""
        now = time.monotonic()
        if now < self._next_log:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} failures were not logged)" if self._unlogged else ""
        self._next_log, self._unlogged = now + _LOG_SECONDS, 0
        _log.error(
            "%s%s", text, more, exc_info=error, extra=PLUGIN_HANGS if is_hanging else PLUGIN_FAILED
        )

    def _log_exit(self, error: BaseException) -> None:
        self.log_failure(f"{self.label} tried to end its thread: {describe_exception(error)}")

    # ---- in the plug-in's threads

    def _run_job(self, call: _Call, step: Step) -> None:
        try:
            outcome = _Outcome(step(), None)
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything
            outcome = _Outcome(None, error)
        self._complete(call, outcome)

    def _start_task(self, call: _Call, step: Callable[[], Awaitable[Any]]) -> None:
        if call.is_abandoned:
            self._complete(call, _Outcome(None, None))
            return
        call.task = asyncio.get_running_loop().create_task(self._run_task(call, step))

    async def _run_task(self, call: _Call, step: Callable[[], Awaitable[Any]]) -> None:
        try:
            outcome = _Outcome(await step(), None)
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything
            outcome = _Outcome(None, error)
        call.task = None
        self._complete(call, outcome)

    @staticmethod
    def _cancel_task(call: _Call) -> None:
        if call.task is not None:
            call.task.cancel()

    def _complete(self, call: _Call, outcome: _Outcome) -> None:
        with suppress(RuntimeError):  # the gateway's loop is closed
            call.loop.call_soon_threadsafe(self._finish, call, outcome)


def _is_valid(error: GatewayError) -> bool:
    return isinstance(error.kind, Kind) and isinstance(error.public, str)

"""The running gateway: listeners that stay open while configurations change behind them.

*Strategy.* A new configuration is first built completely (``GatewayParts``) beside the active one.
Then come the steps that can fail: new addresses are bound, changes of fixed options are rejected.
Only then do all listeners switch to the new parts, in a single step of the event loop: every later
request, on any connection, is served by the new parts.

*Rule 1.* A call finishes on the parts that it started with. They are closed when the last such call
has ended, except for what the new parts took over.
*Rule 2.* A listener stays open as long as its address is configured, with its socket and its
connections. If a new address overlaps one that is no longer configured (0.0.0.0:8000 after
127.0.0.1:8000), the new listener shares the sockets it covers until the old listener is closed.
*Rule 3.* A failed change leaves no trace.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from infergate.access.entrance import Entrance
from infergate.backends.base import Backend, Watched
from infergate.config.schema import Config
from infergate.core.limits import Limits
from infergate.core.tracing import Tracing
from infergate.core.vocabulary import BUG
from infergate.gateway.gateway import Gateway
from infergate.observe.access_log import AccessLog
from infergate.runtime.aside import Pool
from infergate.runtime.pulse import Pulse
from infergate.transport.base import Address, Bind, Server
from infergate.transport.door import Door
from infergate.transport.rooms import keep_at_most

_log = logging.getLogger("infergate")
ADMIN: Final = "admin"
_FIXED: Final = ("engine", "workers")
"""Configuration keys that processes are started with."""
_PATIENCE: Final = 2.0
"""Seconds for closing old configurations at the end."""


class NotTaken(Exception):  # noqa: N818
    """A configuration cannot replace the active one; the text tells the operator why."""


@dataclass(frozen=True, slots=True)
class Listening:
    """The specification of a listener at ``address``. ``make_server`` creates its server, which
    serves ``app`` behind ``gate`` within ``limits``. ``fixed_options`` are the options that a
    server cannot change, under the operator's names."""

    address: Address
    app: Any
    make: Callable[[], Server]
    door: Door
    limits: Limits
    form: Mapping[str, object] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The key that identifies the address."""
        return str(self.address)

    @property
    def takes_any(self) -> bool:
        """Whether it listens on any free port."""
        return not (self.address.port or self.address.unix)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that serves one configuration, except the sockets. ``listeners`` is keyed by
    configuration name; ``access_log``, ``helper_pool``, ``authorizer`` and ``tracer`` are None if
    disabled."""

    config: Config
    limits: Limits
    gateway: Gateway
    listening: Mapping[str, Listening]
    log: AccessLog | None
    aside: Pool | None
    access: Entrance | None = None
    tracing: Tracing | None = None

    def begin(self) -> None:
        """Activate these parts: monitor the backends' endpoints, and update what generations
        share."""
        keep_at_most(self.limits.in_flight_bytes)
        if self.access is not None:
            self.access.route_of = self.gateway.route_of
        for backend in self.gateway.backends:
            if isinstance(backend, Watched):
                backend.start()

    async def close(self, kept: Iterable[Parts]) -> None:
        """Close everything that none of ``kept`` uses."""
        kept = tuple(kept)
        await self.gateway.close()
        kept_backends: set[Backend] = {item for parts in kept for item in parts.gateway.backends}
        closers: list[Awaitable[object]] = [
            item.close() for item in self.gateway.backends if item not in kept_backends
        ]
        if self.aside is not None and all(item.aside is not self.aside for item in kept):
            closers.append(self.aside.close())
        if self.log is not None and all(item.log is not self.log for item in kept):
            closers.append(asyncio.to_thread(self.log.close))
        if self.access is not None and all(item.access is not self.access for item in kept):
            closers.append(self.access.close())
        await asyncio.gather(*closers)
        if self.tracing is not None and all(item.tracing is not self.tracing for item in kept):
            await asyncio.to_thread(self.tracing.close)  # last: the other parts may add spans


@dataclass(slots=True)
class _Listener:
    """A server with its current specification."""

    server: Server
    wanted: Listening
    door: Door


class Running:
    """Everything that serves. ``build`` creates the parts of a configuration and may take over some
    of the current ones (None at first). ``report_lag`` is called when the event loop was
    blocked."""

    def __init__(
        self,
        config: Config,
        build: Callable[[Config, Parts | None], Parts],
        late: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._build: Final = build
        self._pulse: Final = Pulse(late)
        self._parts = build(config, None)
        self._served: dict[str, _Listener] = {
            name: _Listener(spec.make(), spec, spec.door)
            for name, spec in self._parts.listening.items()
        }
        self._bind: Bind | None = None
        self._changing: Final = asyncio.Lock()
        self._old: Final[list[Parts]] = []
        """Generations that still have calls in progress."""
        self._coming: Parts | None = None
        """The generation being prepared."""
        self._busy: Final[set[asyncio.Task[None]]] = set()
        """The calls in progress on old generations."""
        self._leaving: Final[set[Server]] = set()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopping = False
        self.retired: Callable[[], object] = lambda: None
        """Called after an old configuration was closed. Only then may objects be frozen, because
        before, the old configuration would be frozen too."""

    @property
    def config(self) -> Config:
        """The active configuration."""
        return self._parts.config

    @property
    def gateway(self) -> Gateway:
        """The active gateway."""
        return self._parts.gateway

    @property
    def listeners(self) -> Mapping[str, Server]:
        """The servers, by configuration name."""
        return {name: listener.server for name, listener in self._served.items()}

    @property
    def parts(self) -> Iterable[Parts]:
        """The active generation, those with calls in progress, and the one being prepared."""
        yield self._parts
        yield from self._old
        if self._coming is not None:
            yield self._coming

    @property
    def doors(self) -> Iterable[Door]:
        """The connection gates of all listeners."""
        return [listener.door for listener in self._served.values()]

    @property
    def generations(self) -> int:
        """The number of configurations in use: 1, plus those with calls in progress."""
        return 1 + len(self._old)

    async def start(self, bind: Bind | None = None) -> None:
        """Bind all listeners (with ``bind``, if given, also in later configurations), then accept
        connections. Raises OSError naming the address that cannot be bound; no listener is open
        then."""
        self._bind = bind
        try:
            await self._open(self._served)
        except OSError:
            await self._parts.close(())
            raise
        self._parts.begin()
        self._pulse.start()

    async def _open(
        self, opened: Mapping[str, _Listener], beside: Sequence[socket.socket] = ()
    ) -> None:
        try:
            for name, listener in opened.items():
                try:
                    await listener.server.bind(self._bind, beside)
                except OSError as error:
                    raise OSError(
                        f"listeners.{name}: cannot listen on {listener.wanted.address}: {error}"
                    ) from error
            for listener in opened.values():
                await listener.server.start()
        except BaseException:
            await asyncio.gather(*(listener.server.stop(0) for listener in opened.values()))
            raise

    # ---- reload

    async def reload(self, config: Config) -> None:
        """Make ``config`` active. Raises ConfigRejectedError, in which case nothing has changed."""
        change = await self.prepare(config)
        change.take()

    async def prepare(self, config: Config) -> Change:
        """Do every step of activating ``config`` that can fail, without changing anything. Raises
        ConfigRejectedError.

        The result must be applied or discarded; until then no other configuration can be prepared.
        This two-phase change lets several processes all accept a configuration, or none.
        """
        await self._changing.acquire()
        try:
            return await self._prepared(config)
        except BaseException:
            self._coming = None
            self._changing.release()
            raise

    async def _prepared(self, config: Config) -> Change:
        if self._is_stopping:
            raise NotTaken("the gateway is stopping")
        for name in _FIXED:
            old, new = getattr(self.config, name), getattr(config, name)
            if new != old:
                raise NotTaken(f"{name}: changing {old!r} to {new!r} requires a restart")
        try:
            parts = self._build(config, self._parts)
        except OSError as error:  # a file, such as a certificate
            raise NotTaken(str(error)) from error
        self._coming = parts
        try:
            listeners = self._matched(parts.listening)
            new = {name: listener for name, listener in listeners.items() if self._is_new(listener)}
            await self._open(new, self._left_behind(listeners))
        except OSError as error:
            await parts.close((self._parts,))
            raise NotTaken(str(error)) from error
        except BaseException:
            await parts.close((self._parts,))
            raise
        try:
            await parts.gateway.memory.introduce(self._parts.gateway.backends)
        except BaseException:
            await self._undo(parts, listeners)
            raise
        return Change(
            lambda: self._take(parts, listeners),
            lambda: self._undo(parts, listeners),
            self._changing.release,
        )

    async def _undo(self, parts: Parts, served: Mapping[str, _Listener]) -> None:
        self._coming = None
        new = (listener.server for listener in served.values() if self._is_new(listener))
        await asyncio.gather(*(server.stop(0) for server in new))
        await parts.close((self._parts,))

    def _is_new(self, listener: _Listener) -> bool:
        return all(current.server is not listener.server for current in self._served.values())

    def _left_behind(self, served: Mapping[str, _Listener]) -> list[socket.socket]:
        """Return the sockets that are no longer used once ``listeners`` are active."""
        kept_servers = {item.server for item in served.values()}
        closing = (item.server for item in self._served.values() if item.server not in kept_servers)
        return [item for server in closing for item in server.sockets]

    def _matched(self, wanted: Mapping[str, Listening]) -> dict[str, _Listener]:
        """Return a listener for each specification, reusing the current one at the same address
        (Rule 2). Raises ConfigRejectedError."""
        by_address = {entry.wanted.place: entry for entry in self._served.values()}
        matched = {}
        for name, entry in wanted.items():
            current = self._served.get(name) if entry.takes_any else by_address.get(entry.place)
            if current is None or current.wanted.place != entry.place:
                matched[name] = _Listener(entry.make(), entry, entry.door)
                continue
            for key, value in entry.form.items():
                if current.wanted.form.get(key) != value:
                    raise NotTaken(
                        f"listeners.{name}: changing {key} on {entry.place} requires a restart "
                        "or another address"
                    )
            matched[name] = _Listener(current.server, entry, current.door)
        return matched

    def _take(self, parts: Parts, served: dict[str, _Listener]) -> None:
        """Switch to the new generation. Does not await and cannot fail."""
        if self._is_stopping:
            self._start(self._undo(parts, served))
            return
        old, self._parts, self._coming = self._parts, parts, None
        old_listeners, self._served = self._served, served
        calls = {call for listener in old_listeners.values() for call in listener.server.calls()}
        calls -= self._busy | parts.gateway.readiness.watchers
        for listener in served.values():
            listener.server.serve(listener.wanted.app, listener.wanted.limits)
            listener.door.become(listener.wanted.door)
        parts.gateway.take_over()
        parts.begin()
        if old.access is not None and parts.access is not None and old.access is not parts.access:
            old.access.give_way(parts.access)
        self._old.append(old)
        self._busy.update(calls)
        removed = [listener.server for listener in old_listeners.values() if self._is_new(listener)]
        self._leaving.update(removed)
        for server in removed:
            server.leave()
        self._start(self._retire(old, calls, removed))

    async def _retire(
        self, old: Parts, calls: set[asyncio.Task[None]], left: Sequence[Server]
    ) -> None:
        """Close ``old`` and its removed servers once its ``calls`` have ended."""
        grace = self.config.drain.timeout
        await asyncio.gather(*(server.stop(grace) for server in left))
        self._leaving.difference_update(left)
        if calls:
            await asyncio.wait(calls)
        self._busy.difference_update(calls)
        self._old.remove(old)
        await old.close((self._parts, *self._old))
        del old
        self.retired()

    def _start(self, doing: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("closing an old configuration failed", exc_info=error, extra=BUG)

    # ---- shutdown

    def drain(self) -> None:
        """Fail readiness for every protocol; watching clients are notified at once."""
        self.gateway.readiness.drain()

    async def stop(self, grace: float) -> None:
        """Stop accepting, let requests finish for ``grace`` seconds, then close everything."""
        self._is_stopping = True
        self.drain()
        data = [server for name, server in self.listeners.items() if name != ADMIN]
        await asyncio.gather(*(server.stop(grace) for server in (*data, *self._leaving)))
        if ADMIN in self._served:  # last, so that it can report the drain
            await self._served[ADMIN].server.stop(0)
        if self._tasks:  # all calls have ended, so these tasks end soon
            _, hanging = await asyncio.wait(self._tasks, timeout=_PATIENCE)
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
        self._pulse.stop()
        remaining = [*self._old, self._parts]
        while remaining:
            await remaining.pop(0).close(remaining)


class Change:
    """A prepared configuration, to be applied or discarded."""

    def __init__(
        self,
        take: Callable[[], None],
        drop: Callable[[], Awaitable[None]],
        over: Callable[[], None],
    ) -> None:
        self._take: Final = take
        self._drop: Final = drop
        self._over: Final = over

    def take(self) -> None:
        """Make it active."""
        self._take()
        self._over()

    async def drop(self) -> None:
        """Keep the current configuration."""
        try:
            await self._drop()
        finally:
            self._over()

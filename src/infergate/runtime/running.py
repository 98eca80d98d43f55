"""What serves: listeners that stay, and one configuration after another behind them.

*Strategy.* What a configuration describes is built whole (:class:`Parts`) beside what serves. Then
everything that may fail is done: new addresses are bound, options that cannot change are refused.
Only then all listeners are given the new parts, between two steps of the loop: whatever is asked
afterwards, on whichever connection, is served by them.

*Rule 1.* A call goes on as it began, on the parts that it found. Those are closed when the last
call that was under way at the change has ended; what the new parts took over from them stays.
*Rule 2.* A listener stays as long as its address is wanted: its socket and its connections with it.
One whose address overlaps that of another, which is no longer wanted, listens beside it until the
other is closed (0.0.0.0:8000 after 127.0.0.1:8000), and shares the sockets that it covers.
*Rule 3.* A change that fails leaves nothing behind.
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
"""Keys of the configuration that processes are made by."""
_PATIENCE: Final = 2.0
"""Seconds in which old configurations are closed at the end."""


class NotTaken(Exception):  # noqa: N818 - it is what became of a configuration
    """A configuration cannot be taken while another serves; the text says why, to the operator."""


@dataclass(frozen=True, slots=True)
class Listening:
    """What is to listen at ``address``. ``make`` makes its server, which serves ``app`` behind
    ``door`` within ``limits``; ``form`` is what a server cannot change, under the names that the
    operator knows."""

    address: Address
    app: Any
    make: Callable[[], Server]
    door: Door
    limits: Limits
    form: Mapping[str, object] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What tells addresses apart."""
        return str(self.address)

    @property
    def takes_any(self) -> bool:
        """Whether it listens on whichever port is free."""
        return not (self.address.port or self.address.unix)


@dataclass(frozen=True, slots=True)
class Parts:
    """All that serves one configuration, but for the sockets. ``listening`` by the config's names;
    ``log``, ``aside``, ``access`` and ``tracing`` are None where they are off."""

    config: Config
    limits: Limits
    gateway: Gateway
    listening: Mapping[str, Listening]
    log: AccessLog | None
    aside: Pool | None
    access: Entrance | None = None
    tracing: Tracing | None = None

    def begin(self) -> None:
        """They serve from now on: look after the backends' endpoints, and have what parts share
        follow these."""
        keep_at_most(self.limits.in_flight_bytes)
        if self.access is not None:
            self.access.route_of = self.gateway.route_of
        for backend in self.gateway.backends:
            if isinstance(backend, Watched):
                backend.start()

    async def close(self, kept: Iterable[Parts]) -> None:
        """Close what none of ``kept`` has."""
        kept = tuple(kept)
        await self.gateway.close()
        others: set[Backend] = {each for parts in kept for each in parts.gateway.backends}
        closing: list[Awaitable[object]] = [
            each.close() for each in self.gateway.backends if each not in others
        ]
        if self.aside is not None and all(each.aside is not self.aside for each in kept):
            closing.append(self.aside.close())
        if self.log is not None and all(each.log is not self.log for each in kept):
            closing.append(asyncio.to_thread(self.log.close))
        if self.access is not None and all(each.access is not self.access for each in kept):
            closing.append(self.access.close())
        await asyncio.gather(*closing)
        if self.tracing is not None and all(each.tracing is not self.tracing for each in kept):
            await asyncio.to_thread(self.tracing.close)  # last: the rest may still tell it


@dataclass(slots=True)
class _Listener:
    """A server and what it was last told to be."""

    server: Server
    wanted: Listening
    door: Door


class Running:
    """Everything that serves. ``build`` makes the parts of a configuration, which take over what
    they can of those that serve now (None at first). ``late`` is told when the loop was held up."""

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
            name: _Listener(each.make(), each, each.door)
            for name, each in self._parts.listening.items()
        }
        self._bind: Bind | None = None
        self._changing: Final = asyncio.Lock()
        self._old: Final[list[Parts]] = []
        """Those that calls are still under way on."""
        self._coming: Parts | None = None
        """Those that are prepared."""
        self._busy: Final[set[asyncio.Task[None]]] = set()
        """Those calls."""
        self._leaving: Final[set[Server]] = set()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopping = False
        self.retired: Callable[[], object] = lambda: None
        """Called when an old configuration was closed. That is when memory settles: before, the old
        would be kept with what stays."""

    @property
    def config(self) -> Config:
        """The configuration that serves what is asked now."""
        return self._parts.config

    @property
    def gateway(self) -> Gateway:
        """Its gateway."""
        return self._parts.gateway

    @property
    def listeners(self) -> Mapping[str, Server]:
        """By the configuration's names."""
        return {name: each.server for name, each in self._served.items()}

    @property
    def parts(self) -> Iterable[Parts]:
        """Those that serve what is asked now, those that calls are still under way on, and those
        that may serve next."""
        yield self._parts
        yield from self._old
        if self._coming is not None:
            yield self._coming

    @property
    def doors(self) -> Iterable[Door]:
        """What stands before each."""
        return [each.door for each in self._served.values()]

    @property
    def generations(self) -> int:
        """How many configurations something is served by: 1, but while old calls are under way."""
        return 1 + len(self._old)

    async def start(self, bind: Bind | None = None) -> None:
        """Bind every listener (by ``bind``, if given, also those of later configurations), then
        accept; or none: raises OSError naming the address that is taken."""
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
            for name, each in opened.items():
                try:
                    await each.server.bind(self._bind, beside)
                except OSError as error:
                    raise OSError(
                        f"listeners.{name}: cannot listen on {each.wanted.address}: {error}"
                    ) from error
            for each in opened.values():
                await each.server.start()
        except BaseException:
            await asyncio.gather(*(each.server.stop(0) for each in opened.values()))
            raise

    # ---- another configuration

    async def reload(self, config: Config) -> None:
        """Serve ``config`` from now on. Raises NotTaken, and nothing has changed."""
        change = await self.prepare(config)
        change.take()

    async def prepare(self, config: Config) -> Change:
        """Do all that may fail of serving ``config``; nothing changes yet. Raises NotTaken.

        What is returned is to be taken or dropped: until then no other can be prepared. So several
        processes can all take a configuration, or none.
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
                raise NotTaken(
                    f"{name}: {old!r} cannot become {new!r} while infergate runs: restart it"
                )
        try:
            parts = self._build(config, self._parts)
        except OSError as error:  # a file, say a certificate
            raise NotTaken(str(error)) from error
        self._coming = parts
        try:
            served = self._matched(parts.listening)
            new = {name: each for name, each in served.items() if self._is_new(each)}
            await self._open(new, self._left_behind(served))
        except OSError as error:
            await parts.close((self._parts,))
            raise NotTaken(str(error)) from error
        except BaseException:
            await parts.close((self._parts,))
            raise
        try:
            await parts.gateway.memory.introduce(self._parts.gateway.backends)
        except BaseException:
            await self._undo(parts, served)
            raise
        return Change(
            lambda: self._take(parts, served),
            lambda: self._undo(parts, served),
            self._changing.release,
        )

    async def _undo(self, parts: Parts, served: Mapping[str, _Listener]) -> None:
        self._coming = None
        new = (each.server for each in served.values() if self._is_new(each))
        await asyncio.gather(*(server.stop(0) for server in new))
        await parts.close((self._parts,))

    def _is_new(self, listener: _Listener) -> bool:
        return all(each.server is not listener.server for each in self._served.values())

    def _left_behind(self, served: Mapping[str, _Listener]) -> list[socket.socket]:
        """The sockets of those that do not listen any more once ``served`` are taken."""
        kept = {each.server for each in served.values()}
        left = (each.server for each in self._served.values() if each.server not in kept)
        return [each for server in left for each in server.sockets]

    def _matched(self, wanted: Mapping[str, Listening]) -> dict[str, _Listener]:
        """Who listens for each: who does already, where anybody does (Rule 2). Raises NotTaken."""
        there = {each.wanted.place: each for each in self._served.values()}
        matched = {}
        for name, each in wanted.items():
            found = self._served.get(name) if each.takes_any else there.get(each.place)
            if found is None or found.wanted.place != each.place:
                matched[name] = _Listener(each.make(), each, each.door)
                continue
            for key, value in each.form.items():
                if found.wanted.form.get(key) != value:
                    raise NotTaken(
                        f"listeners.{name}: {key} cannot be changed while infergate listens on "
                        f"{each.place}: restart it, or take another address"
                    )
            matched[name] = _Listener(found.server, each, found.door)
        return matched

    def _take(self, parts: Parts, served: dict[str, _Listener]) -> None:
        """Nothing is awaited here, and nothing fails."""
        if self._is_stopping:
            self._start(self._undo(parts, served))
            return
        old, self._parts, self._coming = self._parts, parts, None
        before, self._served = self._served, served
        calls = {call for each in before.values() for call in each.server.calls()}
        calls -= self._busy | parts.gateway.readiness.watchers
        for each in served.values():
            each.server.serve(each.wanted.app, each.wanted.limits)
            each.door.become(each.wanted.door)
        parts.gateway.take_over()
        parts.begin()
        if old.access is not None and parts.access is not None and old.access is not parts.access:
            old.access.give_way(parts.access)
        self._old.append(old)
        self._busy.update(calls)
        left = [each.server for each in before.values() if self._is_new(each)]
        self._leaving.update(left)
        for server in left:
            server.leave()
        self._start(self._retire(old, calls, left))

    async def _retire(
        self, old: Parts, calls: set[asyncio.Task[None]], left: Sequence[Server]
    ) -> None:
        """Close ``old`` when the ``calls`` that it serves are over, and the listeners that it
        ``left`` behind."""
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

    # ---- the end

    def drain(self) -> None:
        """Fail readiness, for every protocol; whoever watches it is told at once."""
        self.gateway.readiness.drain()

    async def stop(self, grace: float) -> None:
        """Stop accepting, let requests finish for ``grace`` seconds, close everything."""
        self._is_stopping = True
        self.drain()
        data = [server for name, server in self.listeners.items() if name != ADMIN]
        await asyncio.gather(*(server.stop(grace) for server in (*data, *self._leaving)))
        if ADMIN in self._served:  # last: it tells how the drain goes
            await self._served[ADMIN].server.stop(0)
        if self._tasks:  # no call is under way any more, so they end
            _, hanging = await asyncio.wait(self._tasks, timeout=_PATIENCE)
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
        self._pulse.stop()
        remaining = [*self._old, self._parts]
        while remaining:
            await remaining.pop(0).close(remaining)


class Change:
    """A configuration that can be served at once. It is taken, or dropped."""

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
        """Serve it from now on."""
        self._take()
        self._over()

    async def drop(self) -> None:
        """Go on as before."""
        try:
            await self._drop()
        finally:
            self._over()

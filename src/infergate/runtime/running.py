"""The running gateway: listeners that stay open while configurations change behind them.

A new configuration is first built completely (``GatewayParts``), while the old configuration stays
active. Next, changes of fixed options are rejected, and new addresses are bound. If one of these
steps fails, the old configuration stays active. Finally, all listeners switch to the new parts in a
single step of the event loop. The switch applies to every later request on any connection.

*Rule 1.* A call finishes on the parts with which it started. Parts that the new configuration does
not reuse are closed when the last call on them has ended.
*Rule 2.* A listener keeps its socket and its connections as long as its address is configured. If a
new address overlaps an address that is no longer configured (0.0.0.0:8000 after 127.0.0.1:8000),
the new listener shares the old sockets until the old listener is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from infergate.access.authorizer import Authorizer
from infergate.backends.base import Backend, SupportsHealthWatch
from infergate.config.schema import Config
from infergate.core.daemon_threads import to_daemon_thread
from infergate.core.limits import Limits
from infergate.core.log_events import BUG
from infergate.core.tracing import Tracer
from infergate.gateway.canonical_frontend import IN_PROCESS
from infergate.gateway.gateway import RoutingGateway
from infergate.observe.access_log import AccessLog
from infergate.plugin_host.loading import PluginError
from infergate.runtime.console.history_sampler import HistorySampler
from infergate.runtime.event_loop_lag import EventLoopLagMonitor
from infergate.runtime.in_process import InProcessListener
from infergate.runtime.offload import HelperPool
from infergate.runtime.plugins import NO_PLUGINS, HostedPlugins
from infergate.transport.base import Address, BindFunction, Server
from infergate.transport.net.buffer_pool import limit_unused_bytes
from infergate.transport.server.connection_gate import ConnectionGate

if TYPE_CHECKING:
    # imported only if configured
    from infergate.recording.payload_log import PayloadLog
    from infergate.recording.recorder import Recorder
    from infergate.runtime.console.demo import ConsoleDemo
    from infergate.runtime.response_cache import ConfiguredCache

_log = logging.getLogger("infergate")
ADMIN: Final = "admin"
_FIXED_KEYS: Final = ("engine", "workers")
"""Configuration keys whose changes require a restart."""
_CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""Seconds that a shutdown waits for old configurations to close."""


class ConfigRejectedError(Exception):
    """A configuration cannot replace the active one. The message tells the operator why."""


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """The specification of a listener at ``address``. ``make_server`` creates its server, which
    serves ``app`` behind ``gate`` within ``limits``. ``fixed_options`` are the options that a
    listening server cannot change, keyed by their names in messages to the operator."""

    address: Address
    app: Any
    make_server: Callable[[], Server]
    gate: ConnectionGate
    limits: Limits
    fixed_options: Mapping[str, object] = field(default_factory=dict)

    @property
    def address_key(self) -> str:
        return str(self.address)

    @property
    def uses_any_port(self) -> bool:
        """Whether the listener may use any free port."""
        return not (self.address.port or self.address.unix)


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """Everything that serves one configuration, except the sockets. ``listeners`` is keyed by
    the names in the configuration. Features that are disabled are None."""

    config: Config
    limits: Limits
    gateway: RoutingGateway
    listeners: Mapping[str, ListenerSpec]
    access_log: AccessLog | None
    helper_pool: HelperPool | None
    authorizer: Authorizer | None = None
    tracer: Tracer | None = None
    recorder: Recorder | None = None
    payload_log: PayloadLog | None = None
    cache: ConfiguredCache | None = None
    plugins: HostedPlugins = NO_PLUGINS

    def activate(self) -> None:
        """Activate these parts: monitor the backends' endpoints, and update shared state."""
        limit_unused_bytes(self.limits.in_flight_bytes)
        if self.authorizer is not None:
            self.authorizer.route_label = self.gateway.route_label
        for backend in self.gateway.backends:
            if isinstance(backend, SupportsHealthWatch):
                backend.start()
        if self.gateway.comparer is not None:
            self.gateway.comparer.start()
        if self.cache is not None:
            self.cache.activate()

    async def close(self, kept: Iterable[GatewayParts]) -> None:
        """Close everything that ``kept`` does not use."""
        kept = tuple(kept)
        await self.gateway.close()
        if self.payload_log and all(self.payload_log is not item.payload_log for item in kept):
            await self.payload_log.close()  # before the helpers, which encode its events
        kept_backends: set[Backend] = {item for parts in kept for item in parts.gateway.backends}
        closing: list[Awaitable[object]] = [
            item.close() for item in self.gateway.backends if item not in kept_backends
        ]
        kept_plugins = {runner for parts in kept for runner in parts.plugins.runners}
        closing += [each.close() for each in self.plugins.runners if each not in kept_plugins]
        if self.helper_pool and all(self.helper_pool is not item.helper_pool for item in kept):
            closing.append(self.helper_pool.close())
        if self.access_log and all(self.access_log is not item.access_log for item in kept):
            closing.append(asyncio.to_thread(self.access_log.close))
        if self.recorder and all(self.recorder is not item.recorder for item in kept):
            closing.append(asyncio.to_thread(self.recorder.close))
        if self.authorizer and all(self.authorizer is not item.authorizer for item in kept):
            closing.append(self.authorizer.close())
        if self.cache and all(self.cache is not item.cache for item in kept):
            closing.append(self.cache.close(is_last=all(item.cache is None for item in kept)))
        await asyncio.gather(*closing)
        if self.tracer and all(self.tracer is not item.tracer for item in kept):
            # Close the tracer last, because the other parts may add spans.
            await asyncio.to_thread(self.tracer.close)


@dataclass(slots=True)
class _ActiveListener:
    server: Server
    spec: ListenerSpec
    gate: ConnectionGate


class RunningGateway:
    """The listeners and the parts behind them. ``prepare`` and then ``build`` receive a
    configuration and the current parts, or None at the start. ``prepare`` returns a function that
    creates plug-ins; a reload runs this function in a thread. ``build`` creates the parts of the
    configuration, and may reuse current parts. ``abandon`` discards the plug-ins if a step fails or
    is cancelled; it may be called before or while plug-ins are created. ``report_lag`` is called
    with the seconds for which the event loop was blocked."""

    def __init__(
        self,
        config: Config,
        build: Callable[[Config, GatewayParts | None], GatewayParts],
        report_lag: Callable[[float], object],
        prepare: Callable[[Config, GatewayParts | None], Callable[[], None]],
        abandon: Callable[[], None],
    ) -> None:
        self._build: Final = build
        self._prepare: Final = prepare
        self._abandon: Final = abandon
        self.is_creating_plugins = False
        """Whether a reload is waiting for plug-ins to be created. It may be cancelled then."""
        self._lag_monitor: Final = EventLoopLagMonitor(report_lag)
        try:
            prepare(config, None)()
            self._active = build(config, None)
        except BaseException:
            abandon()
            raise
        self._listeners: dict[str, _ActiveListener] = {
            name: _ActiveListener(spec.make_server(), spec, spec.gate)
            for name, spec in self._active.listeners.items()
        }
        self._bind: BindFunction | None = None
        self._change_lock: Final = asyncio.Lock()
        self._retiring: Final[list[GatewayParts]] = []
        """Parts of older configurations that still have calls in progress."""
        self._being_prepared: GatewayParts | None = None
        self._old_calls: Final[set[asyncio.Future[None]]] = set()
        self._closing_servers: Final[set[Server]] = set()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopping = False
        self.history: HistorySampler | None = None
        """Keeps the traffic of the last hour for the console. None in workers."""
        self.demo: ConsoleDemo | None = None
        self.on_retired: Callable[[], object] = lambda: None
        """Called after an old configuration has been closed, to exempt the remaining objects from
        garbage collection (``gc.freeze``)."""

    @property
    def config(self) -> Config:
        return self._active.config

    @property
    def gateway(self) -> RoutingGateway:
        return self._active.gateway

    @property
    def recorder(self) -> Recorder | None:
        return self._active.recorder

    @property
    def is_recording(self) -> bool | None:
        """Whether inferences are recorded now, or None if no route is recorded."""
        return None if self.recorder is None else self.recorder.is_active

    @property
    def listeners(self) -> Mapping[str, Server]:
        """The servers with sockets, keyed by the names in the configuration."""
        return {
            name: listener.server
            for name, listener in self._listeners.items()
            if name != IN_PROCESS
        }

    @property
    def in_process(self) -> InProcessListener:
        listener = self._listeners[IN_PROCESS].server
        assert isinstance(listener, InProcessListener)
        return listener

    @property
    def all_parts(self) -> Iterable[GatewayParts]:
        """The parts of all configurations: the active configuration, older configurations with
        calls in progress, and a configuration that is being prepared."""
        yield self._active
        yield from self._retiring
        if self._being_prepared is not None:
            yield self._being_prepared

    @property
    def gates(self) -> Iterable[ConnectionGate]:
        return [item.gate for name, item in self._listeners.items() if name != IN_PROCESS]

    @property
    def generation_count(self) -> int:
        """The number of configurations in use: the active configuration, plus older configurations
        with calls in progress."""
        return 1 + len(self._retiring)

    async def start(self, bind: BindFunction | None = None) -> None:
        """Bind all listeners, then accept connections. ``bind`` is also used for later
        configurations. If an address cannot be bound, close all listeners and raise OSError
        with the address."""
        self._bind = bind
        try:
            await self._open_listeners(self._listeners)
        except OSError:
            await self._active.close(())
            raise
        self._active.activate()
        self._lag_monitor.start()
        if self.history is not None:
            self.history.start()

    async def _open_listeners(
        self, listeners: Mapping[str, _ActiveListener], closing: Sequence[socket.socket] = ()
    ) -> None:
        try:
            for name, listener in listeners.items():
                try:
                    await listener.server.bind(self._bind, closing)
                except OSError as error:
                    raise OSError(
                        f"listeners.{name}: cannot listen on {listener.spec.address}: {error}"
                    ) from error
            for listener in listeners.values():
                await listener.server.start()
        except BaseException:
            await asyncio.gather(*(listener.server.stop(0) for listener in listeners.values()))
            raise

    # ---- reload

    async def reload(self, config: Config) -> None:
        """Make ``config`` active, or raise ConfigRejectedError and change nothing."""
        change = await self.prepare(config)
        change.apply()

    async def prepare(self, config: Config) -> PreparedConfig:
        """Perform every step of activating ``config`` that can fail, without changing anything.
        Raises ConfigRejectedError.

        The result must be applied or discarded before another configuration can be prepared. This
        two-phase change lets several processes accept or reject a configuration together."""
        await self._change_lock.acquire()
        try:
            return await self._build_change(config)
        except BaseException:
            self._being_prepared = None
            self._change_lock.release()
            raise

    async def _build_change(self, config: Config) -> PreparedConfig:
        if self._is_stopping:
            raise ConfigRejectedError("the gateway is stopping")
        for name in _FIXED_KEYS:
            old, new = getattr(self.config, name), getattr(config, name)
            if new != old:
                raise ConfigRejectedError(f"{name}: changing {old!r} to {new!r} requires a restart")
        try:
            self.is_creating_plugins = True
            try:
                await to_daemon_thread(self._prepare(config, self._active))
            finally:
                self.is_creating_plugins = False
            parts = self._build(config, self._active)
        except BaseException as error:
            self._abandon()
            if not isinstance(error, OSError | PluginError):
                raise
            # For example, a certificate cannot be read.
            raise ConfigRejectedError(str(error)) from error
        self._being_prepared = parts
        try:
            listeners = self._match_listeners(parts.listeners)
            new = {name: item for name, item in listeners.items() if self._is_inactive(item)}
            await self._open_listeners(new, self._released_sockets(listeners))
        except BaseException as error:
            await parts.close((self._active,))
            if isinstance(error, OSError):
                raise ConfigRejectedError(str(error)) from error
            raise
        try:
            await parts.gateway.shared_memory.register_with_new_backends(
                self._active.gateway.backends
            )
        except BaseException:
            await self._discard(parts, listeners)
            raise
        return PreparedConfig(
            lambda: self._apply(parts, listeners),
            lambda: self._discard(parts, listeners),
            self._change_lock.release,
        )

    async def _discard(self, parts: GatewayParts, listeners: Mapping[str, _ActiveListener]) -> None:
        self._being_prepared = None
        new = (listener.server for listener in listeners.values() if self._is_inactive(listener))
        await asyncio.gather(*(server.stop(0) for server in new))
        await parts.close((self._active,))

    def _is_inactive(self, listener: _ActiveListener) -> bool:
        return all(current.server is not listener.server for current in self._listeners.values())

    def _released_sockets(self, listeners: Mapping[str, _ActiveListener]) -> list[socket.socket]:
        """Return the sockets that are unused once ``listeners`` are active."""
        kept_servers = {item.server for item in listeners.values()}
        closing = (
            item.server for item in self._listeners.values() if item.server not in kept_servers
        )
        return [item for server in closing for item in server.sockets]

    def _match_listeners(self, specs: Mapping[str, ListenerSpec]) -> dict[str, _ActiveListener]:
        """Return a listener for each specification. Listeners that have the same address are reused
        (Rule 2). Raises ConfigRejectedError."""
        by_address = {entry.spec.address_key: entry for entry in self._listeners.values()}
        matched = {}
        for name, entry in specs.items():
            current = (
                self._listeners.get(name)
                if entry.uses_any_port
                else by_address.get(entry.address_key)
            )
            if current is None or current.spec.address_key != entry.address_key:
                matched[name] = _ActiveListener(entry.make_server(), entry, entry.gate)
                continue
            for key, value in entry.fixed_options.items():
                if current.spec.fixed_options.get(key) != value:
                    raise ConfigRejectedError(
                        f"listeners.{name}: changing {key} on {entry.address_key} requires a "
                        "restart or another address"
                    )
            matched[name] = _ActiveListener(current.server, entry, current.gate)
        return matched

    def _apply(self, parts: GatewayParts, listeners: dict[str, _ActiveListener]) -> None:
        """Switch to ``parts`` and ``listeners``, or discard them if the gateway is stopping."""
        if self._is_stopping:
            self._spawn(self._discard(parts, listeners))
            return
        old, self._active, self._being_prepared = self._active, parts, None
        old_listeners, self._listeners = self._listeners, listeners
        calls = {
            call
            for listener in old_listeners.values()
            for call in listener.server.active_requests()
        }
        calls -= self._old_calls | parts.gateway.readiness.watchers
        for listener in listeners.values():
            listener.server.set_app(listener.spec.app, listener.spec.limits)
            listener.gate.copy_settings(listener.spec.gate)
        parts.gateway.take_over()
        parts.activate()
        if old.authorizer and parts.authorizer and old.authorizer is not parts.authorizer:
            old.authorizer.hand_over_to(parts.authorizer)
        self._retiring.append(old)
        self._old_calls.update(calls)
        removed = [item.server for item in old_listeners.values() if self._is_inactive(item)]
        self._closing_servers.update(removed)
        for server in removed:
            server.stop_accepting()
        self._spawn(self._retire(old, calls, removed))

    async def _retire(
        self, old: GatewayParts, calls: set[asyncio.Future[None]], removed: Sequence[Server]
    ) -> None:
        """Stop the ``removed`` servers, and close ``old`` when its ``calls`` have ended."""
        grace = self.config.drain.timeout
        await asyncio.gather(*(server.stop(grace) for server in removed))
        self._closing_servers.difference_update(removed)
        if calls:
            await asyncio.wait(calls)
        self._old_calls.difference_update(calls)
        self._retiring.remove(old)
        await old.close((self._active, *self._retiring))
        del old
        self.on_retired()

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("closing a configuration failed", exc_info=error, extra=BUG)

    # ---- shutdown

    def drain(self) -> None:
        """Fail readiness for every protocol, and notify watching clients immediately."""
        self.gateway.readiness.start_draining()

    async def stop(self, grace: float) -> None:
        """Stop accepting connections, let requests finish for up to ``grace`` seconds, then close
        everything."""
        self._is_stopping = True
        self.drain()
        if self.history is not None:
            await self.history.stop()
        if self.demo is not None:
            await self.demo.close()
        data = [item.server for name, item in self._listeners.items() if name != ADMIN]
        await asyncio.gather(*(server.stop(grace) for server in (*data, *self._closing_servers)))
        if ADMIN in self._listeners:  # stopped last, because the admin listener reports the drain
            await self._listeners[ADMIN].server.stop(0)
        if self._tasks:  # all calls have ended, so these tasks end soon
            _, pending = await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT_SECONDS)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        self._lag_monitor.stop()
        remaining = [*self._retiring, self._active]
        while remaining:
            await remaining.pop(0).close(remaining)


@dataclass(frozen=True, slots=True)
class PreparedConfig:
    """The result of ``RunningGateway.prepare``. Call either ``apply`` or ``discard``, once. Both
    release the change lock. ``apply`` does not fail."""

    _apply: Callable[[], None]
    _discard: Callable[[], Awaitable[None]]
    _release: Callable[[], None]

    def apply(self) -> None:
        self._apply()
        self._release()

    async def discard(self) -> None:
        try:
            await self._discard()
        finally:
            self._release()

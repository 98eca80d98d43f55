"""Consecutive configurations: what is kept, what is replaced, and when old parts are closed."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.shared_memory import SharedMemory
from typing import Any
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest

from faults.load import STREAM, Connection, stream_values, streamed
from infergate.backends.base import Backend
from infergate.backends.builtin import BuiltinBackend
from infergate.config.schema import Config
from infergate.core import messages
from infergate.core.limits import MIB
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest, join_parts
from infergate.runtime.assemble import assemble
from infergate.runtime.config_history import ConfigHistory
from infergate.runtime.connection_gates import ConnectionGates
from infergate.runtime.memory import freeze_objects
from infergate.runtime.running import ConfigRejectedError, RunningGateway
from infergate.transport.base import Address
from infergate.transport.net.bind import bind_sockets
from infergate.transport.net.buffer_pool import MAX_UNUSED_BYTES, POOL
from peers.support.process import free_ports
from running_gateways import FREE, quiet_config
from waiting import until

BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}]}'


def config_with(**more: Any) -> Config:
    sections = {
        "backends": {"one": {"protocol": "builtin"}, "two": {"protocol": "builtin"}},
        "routes": ({"model": "identity", "backend": "one"}, {"model": "*", "backend": "two"}),
    }
    return quiet_config(**sections | more)


def config_with_timeout(timeout: str) -> Config:
    """Return a configuration in which the timeout of backend ``one`` differs."""
    changed = {"protocol": "builtin", "timeout": timeout}
    return config_with(backends={"one": changed, "two": {"protocol": "builtin"}})


class RecordingBackend(BuiltinBackend):
    """A backend that responds when ``proceed`` is set, and counts the calls of ``close``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.closed = 0
        self.entered = asyncio.Event()
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def perform(self, operation: messages.Operation, context: RequestContext) -> Any:
        self.entered.set()
        await self.proceed.wait()
        return await super().perform(operation, context)

    async def close(self) -> None:
        assert self.proceed.is_set() or not self.entered.is_set(), "closed during a call"
        self.closed += 1


class Harness:
    def __init__(self, config: Config) -> None:
        self.backends: list[RecordingBackend] = []
        self.history = ConfigHistory()
        self.running: RunningGateway = assemble(config, self._create, self.history)

    def _create(self, name: str, _: float) -> Backend:
        self.backends.append(RecordingBackend(name))
        return self.backends[-1]

    def connection(self, name: str = "http") -> Connection:
        return Connection(str(self.running.listeners[name].address))

    def context(self) -> RequestContext:
        return RequestContext("test")


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Harness]:
    harness = Harness(config)
    await harness.running.start()
    async with asyncio.timeout(20):
        yield harness
    await harness.running.stop(0)
    assert [each.closed for each in harness.backends] == [1] * len(harness.backends)


def infer_request(model: str) -> HttpRequest:
    return HttpRequest("POST", f"/v2/models/{model}/infer", body=[BODY])


async def test_an_old_configuration_is_closed_when_its_last_call_ends() -> None:
    async with serving(config_with()) as harness:
        old, other = harness.backends
        slow, quick = harness.connection(), harness.connection()
        old.proceed.clear()
        pending = asyncio.create_task(slow.send_request(infer_request("identity")))
        await old.entered.wait()
        await harness.running.reload(config_with_timeout("9s"))
        # The next reload closes this configuration at once, because it has no requests in flight.
        assert (await quick.send_request(infer_request("identity"))).status == 200
        await harness.running.reload(config_with_timeout("8s"))
        await until(lambda: bool(harness.backends[2].closed))
        assert harness.running.generation_count == 2
        assert (await quick.send_request(infer_request("identity"))).status == 200
        assert (old.closed, other.closed) == (0, 0)
        old.proceed.set()
        assert (await pending).status == 200
        await until(lambda: harness.running.generation_count == 1)
        assert (old.closed, other.closed) == (1, 0)
        assert [each.name for each in harness.backends] == ["one", "two", "one", "one"]
        assert (await slow.send_request(infer_request("identity"))).status == 200
        assert (slow.opened, quick.opened) == (1, 1), "connections are kept"
        assert not harness.running._old_calls
        await slow.close()
        await quick.close()


async def test_changed_limits_replace_the_backends_and_apply_to_requests() -> None:
    async with serving(config_with()) as harness:
        await harness.running.reload(config_with(limits={"body": "1KiB"}))
        assert len(harness.backends) == 4
        connection = harness.connection()
        response = await connection.send_request(HttpRequest("POST", "/v2", body=[bytes(2000)]))
        assert response.status == 413
        await connection.close()


async def test_model_statistics_survive_reloads() -> None:
    async with serving(config_with()) as harness:
        connection = harness.connection()
        for config in (config_with(), config_with_timeout("9s")):
            assert (await connection.send_request(infer_request("identity"))).status == 200
            await harness.running.reload(config)
        statistics = await harness.running.gateway.perform(
            messages.ModelStatisticsRequest("identity"), harness.context()
        )
        assert isinstance(statistics, messages.ModelStatistics)
        assert statistics.models[0]["inference_count"] == 2
        await connection.close()


async def test_regions_stay_registered_while_shared_memory_is_enabled() -> None:
    enabled, disabled = {"shared_memory": True}, {"shared_memory": False}
    region = SharedMemory(create=True, size=4)
    try:
        async with serving(config_with(control=enabled)) as harness:
            request = messages.SharedMemoryRegisterRequest("r", region.name, 0, 4)
            await harness.running.gateway.perform(request, harness.context())
            for control, expected in ((enabled, 1), (disabled, 0), (enabled, 0)):
                await harness.running.reload(config_with(control=control, limits={"tensors": 5}))
                status = await harness.running.gateway.perform(
                    messages.SharedMemoryStatusRequest(), harness.context()
                )
                assert isinstance(status, messages.SharedMemoryStatus)
                assert len(status.regions) == expected
    finally:
        region.close()
        region.unlink()


async def test_a_discarded_change_has_no_effect() -> None:
    listeners = {"http": FREE, "grpc": FREE, "admin": None}
    async with serving(config_with()) as harness:
        change = await harness.running.prepare(config_with(listeners=listeners, limits={"rank": 3}))
        waiting = asyncio.create_task(harness.running.reload(config_with_timeout("9s")))
        await asyncio.sleep(0)
        assert not waiting.done(), "changes are applied one at a time"
        await change.discard()
        await waiting
        assert [each.closed for each in harness.backends[2:4]] == [1, 1]
        assert list(harness.running.listeners) == ["http"]
        assert harness.running.config == config_with_timeout("9s")


def config_listening_at(host: str, ports: Mapping[str, int], **more: Any) -> Config:
    listeners = {name: {"address": f"{host}:{port}"} for name, port in ports.items()}
    return config_with(listeners={"http": None, "grpc": None, "admin": None, **listeners}, **more)


async def test_a_listener_is_replaced_by_an_overlapping_one() -> None:
    """A discarded change has no effect, and no other process can bind the ports."""
    names = ("http", "grpc", "admin")
    ports = dict(zip(names, free_ports(3), strict=True))
    async with serving(config_listening_at("127.0.0.1", ports)) as harness:
        for number, host in enumerate(("0.0.0.0", "127.0.0.1", "0.0.0.0")):
            before = harness.running.listeners
            config = config_listening_at(host, ports, limits={"rank": 3 + number})
            await (await harness.running.prepare(config)).discard()
            assert harness.running.listeners == before
            await harness.running.reload(config)
            assert [str(harness.running.listeners[name].address) for name in names] == [
                f"{host}:{ports[name]}" for name in names
            ]
            await until(lambda before=before: not any(s.sockets for s in before.values()))
            for name in names:
                with pytest.raises(OSError, match="in use"):
                    await bind_sockets(Address("127.0.0.1", ports[name]))
            new = Connection(f"127.0.0.1:{ports['http']}")
            assert (await new.send_request(infer_request("identity"))).status == 200
            await new.close()


async def test_a_shared_authorizer_uses_the_active_configuration() -> None:
    access = {"rules": ({"who": ("*",)},)}
    routes = ({"model": "id*", "backend": "one"},)
    later = config_with(access=access, routes=routes)
    async with serving(config_with(access=access)) as harness:
        authorizer = harness.running._active.authorizer
        assert authorizer is not None
        change = await harness.running.prepare(later)
        await change.discard()
        assert authorizer.route_label("identity", "", {}) == "identity"
        await harness.running.reload(later)
        assert harness.running._active.authorizer is authorizer
        assert authorizer.route_label("identity", "", {}) == "id*"


async def test_unused_memory_is_bounded_by_the_active_limits() -> None:
    async with serving(config_with(limits={"in_flight_bytes": "90MiB", "body": "9MiB"})) as harness:
        assert POOL.max_unused_bytes == 90 * MIB
        change = await harness.running.prepare(config_with())
        await change.discard()
        assert POOL.max_unused_bytes == 90 * MIB
        await harness.running.reload(config_with())
        assert POOL.max_unused_bytes == MAX_UNUSED_BYTES


async def test_a_failed_reload_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(config_with()) as harness:
        monkeypatch.setattr(
            ConnectionGates, "make_gate", Mock(side_effect=OSError("no certificate"))
        )
        with pytest.raises(ConfigRejectedError, match="no certificate"):
            await harness.running.reload(config_with(log={"access": True}))
        assert not [each for each in threading.enumerate() if "access-log" in each.name]


async def test_an_address_in_use_fails_the_reload() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        listeners = {"http": FREE, "grpc": {"address": address}, "admin": None}
        async with serving(config_with()) as harness:
            with pytest.raises(
                ConfigRejectedError, match=f"listeners.grpc: cannot listen on {address}"
            ):
                await harness.running.reload(config_with(listeners=listeners, limits={"rank": 3}))
            assert [each.closed for each in harness.backends] == [0, 0, 1, 1]


async def test_a_stopping_gateway_applies_no_configuration() -> None:
    async with serving(config_with()) as harness:
        change = await harness.running.prepare(config_with_timeout("9s"))
        stopping = asyncio.create_task(harness.running.stop(0))
        await asyncio.sleep(0)
        change.apply()
        await stopping
        await until(lambda: bool(harness.backends[2].closed))
        with pytest.raises(ConfigRejectedError, match="stopping"):
            await harness.running.reload(config_with())
        for each in harness.backends[:2]:
            each.closed = 0  # ``serving`` stops the gateway again


async def test_readiness_reflects_the_new_backends() -> None:
    async with serving(config_with()) as harness:
        connection = harness.connection()
        ready = HttpRequest("GET", "/v2/health/ready")
        assert (await connection.send_request(ready)).status == 200
        dead = {"protocol": "v2-rest", "endpoints": ("http://127.0.0.1:1",)}
        routes = ({"model": "*", "backend": "dead"},)
        await harness.running.reload(config_with(backends={"dead": dead}, routes=routes))
        assert (await connection.send_request(ready)).status == 400
        await harness.running.reload(config_with())
        assert (await connection.send_request(ready)).status == 200
        await connection.close()


async def test_the_access_log_is_enabled_and_disabled_by_a_reload() -> None:
    async with serving(config_with()) as harness:
        assert harness.running._active.access_log is None
        await harness.running.reload(config_with(log={"access": True}))
        log = harness.running._active.access_log
        assert log is not None
        await harness.running.reload(config_with(log={"access": True}, limits={"rank": 3}))
        assert harness.running._active.access_log is log, "the access log is reused"
        await harness.running.reload(config_with())
        await until(lambda: not log._writer.is_alive())


async def test_an_open_stream_continues_after_its_route_is_removed() -> None:
    async with serving(config_with()) as harness:
        connection = harness.connection()
        body = b'{"IN":[0,1,2],"DELAY":[0,200,0]}'
        pending = asyncio.create_task(
            connection.send_request(
                HttpRequest("POST", "/v2/models/repeat/generate_stream", body=[body])
            )
        )
        await until(lambda: bool(list(harness.running.listeners["http"].active_requests())))
        routes = ({"model": "identity", "backend": "one"}, {"model": "simple", "backend": "two"})
        await harness.running.reload(config_with(routes=routes))
        response = await pending
        assert bytes(join_parts(response.body)).count(b"data: ") == 3
        response = await connection.send_request(
            HttpRequest("POST", "/v2/models/repeat/generate", body=[body])
        )
        assert response.status == 404
        await connection.close()


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_streams_on_a_removed_listener_end_normally(engine: str) -> None:
    listeners = {"http": FREE, "grpc": FREE, "admin": None}
    async with serving(config_with(engine=engine, listeners=listeners)) as harness:
        address = harness.running.listeners["grpc"].address
        async with grpc.aio.insecure_channel(str(address)) as channel:
            stream = channel.stream_stream(STREAM)()
            await stream.write(streamed("repeat", 10, 30))
            assert await stream_values(stream, 1) == [0]
            await harness.running.reload(config_with(engine=engine))
            assert await stream_values(stream) == list(range(1, 10))
            assert await stream.code() is grpc.StatusCode.OK
            await until(lambda: harness.running.generation_count == 1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address.host, address.port))


@pytest.mark.parametrize("engine", ["own", "compat"])
async def test_health_watchers_do_not_keep_old_configurations(engine: str) -> None:
    """Clients may watch for as long as they are connected."""
    listeners = {"http": FREE, "grpc": FREE, "admin": None}
    async with serving(config_with(engine=engine, listeners=listeners)) as harness:
        address = harness.running.listeners["grpc"].address
        async with grpc.aio.insecure_channel(str(address)) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert await watch.read() == b"\x08\x01"
            limits = {"rank": 3}
            await harness.running.reload(
                config_with(engine=engine, listeners=listeners, limits=limits)
            )
            await until(lambda: [each.closed for each in harness.backends] == [1, 1, 0, 0])
            assert harness.running.generation_count == 1
            harness.running.drain()
            assert await watch.read() == b"\x08\x02", "the watch follows the active configuration"
            assert await watch.code() is grpc.StatusCode.OK
            assert not harness.running.gateway.readiness.watchers


async def test_an_old_configuration_is_freed() -> None:
    async with serving(config_with()) as harness:
        harness.running.on_retired = freeze_objects
        freeze_objects()
        try:
            reference = weakref.ref(harness.running.gateway)
            await harness.running.reload(config_with_timeout("9s"))
            await until(lambda: reference() is None)
        finally:
            gc.unfreeze()

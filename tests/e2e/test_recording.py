"""Tests that the records of a mixed load equal the sent requests bit by bit, even if a worker is
killed or the disk is full."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from e2e.running import Infergate, started_infergate
from e2e.several import until, workers
from faults.load import PROFILES, STREAM, Connection, described
from faults.watch import metric
from infergate.codecs.profiles import GENERIC, TRITON
from infergate.codecs.registry import plugins
from infergate.core.datatypes import Datatype
from infergate.core.limits import MIB
from infergate.core.messages import InferRequest
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import HttpRequest, join_parts
from infergate.recording.encoding import RecordedExchange
from infergate.recording.reader import DamagedPart, read_recording

HTTP = ("v2-rest", "trtis-http", "graphpipe", "tfs-rest")
RPC = ("v2-grpc", "trtis-grpc", "tfs-grpc")
CONFIG = """
workers: 2
limits: {body: 80MiB}
recording: {path: records, post: true, headers: [x-tag, "x-*"]}
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo, record: {percent: 100}}]
"""
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class SentRequest:
    """A sent request: its model, the data of its first input, and its expected outcome."""

    def __init__(self, model: str, data: bytes, responses: list[bytes], kind: str = "ok") -> None:
        self.model, self.data, self.responses, self.kind = model, data, responses, kind
        self.is_answered = False
        """Whether the client received the complete response."""

    def check(self, record: RecordedExchange) -> None:
        exchange = record.exchange
        assert exchange.request.model == self.model
        assert bytes(exchange.request.inputs[0].data) == self.data
        if exchange.outcome.kind != "cancelled":  # a cancelled request may have no responses
            assert exchange.outcome.kind == self.kind
            assert [bytes(each.outputs[0].data) for each in exchange.outcome.responses] == (
                self.responses
            )


class Clients:
    """Clients of seven protocols. A request that fails because a worker was killed is not
    repeated."""

    def __init__(self, gateway: Infergate, channel: Any, name: str) -> None:
        self.gateway, self.channel = gateway, channel
        self.sent: dict[str, SentRequest] = {}
        self.is_stopped = False
        self._tags = (f"{name}-{number}" for number in itertools.count())
        self._random = random.Random(1)
        self._connections: dict[str, Connection] = {}

    def expect(self, sent: SentRequest) -> str:
        tag = next(self._tags)
        self.sent[tag] = sent
        return tag

    async def http(self, name: str, wire: HttpRequest, tag: str) -> int:
        connection = self._connections.setdefault(name, Connection(self.gateway.http))
        secret = {"authorization": "Bearer s3cret", "x-api-key": "s3cret"}
        wire.headers = {**wire.headers, **secret, "x-tag": tag}
        try:
            response = await connection.send_request(wire)
        except (OSError, EOFError):
            await self._connections.pop(name).close()
            return 0
        self.sent[tag].is_answered = True
        return response.status

    async def rpc(self, method: str, message: bytes, tag: str) -> None:
        try:
            await self.channel.unary_unary(method)(message, metadata=(("x-tag", tag),))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return
        self.sent[tag].is_answered = True

    async def infer(self, protocol: str, size: int = 5) -> None:
        """Send ``size`` random floats to the model ``identity``."""
        values = np.frombuffer(self._random.randbytes(4 * size), "u4") & 0x3FFFFFFF  # finite
        tensor = tensor_from_array("INPUT0", Datatype.FP32, values.view("f4"))
        request = InferRequest("identity", inputs=(tensor,))
        data = bytes(tensor.data)
        profile = PROFILES.get(protocol, TRITON)
        codec: Any = plugins()[protocol].create({})
        wire = codec.build_request(request, profile, described("identity"))
        tag = self.expect(SentRequest("identity", data, [data]))
        if protocol in RPC:
            await self.rpc(wire.method, bytes(join_parts(wire.message)), tag)
            return
        if protocol == "graphpipe":
            wire.path = "/graphpipe/identity"
        assert await self.http(protocol, wire, tag) in {0, 200}, protocol

    async def fail(self) -> None:
        """Send a request that the model rejects."""
        body = b'{"inputs":[{"name":"WRONG","shape":[1],"datatype":"INT32","data":[7]}]}'
        data = np.int32(7).tobytes()
        tag = self.expect(SentRequest("identity", data, [], "bad_request"))
        wire = HttpRequest("POST", "/v2/models/identity/infer", body=[body])
        assert await self.http("failing", wire, tag) in {0, 400}

    async def sequence(self, number: int) -> None:
        """Send a sequence of three requests on one connection."""
        total = 0
        for step, flags in enumerate([{"sequence_start": True}, {}, {"sequence_end": True}], 1):
            total += step
            body = {
                "parameters": {"sequence_id": number, **flags},
                "inputs": [{"name": "INPUT", "shape": [1], "datatype": "INT32", "data": [step]}],
            }
            data, result = (np.int32(each).tobytes() for each in (step, total))
            tag = self.expect(SentRequest("accumulate", data, [result]))
            wire = HttpRequest(
                "POST", "/v2/models/accumulate/infer", body=[json.dumps(body).encode()]
            )
            if await self.http("sequences", wire, tag) != 200:
                return  # the worker with the state was killed

    async def stream(self, count: int = 4) -> None:
        values = np.arange(count, dtype=np.int32)
        delays = tensor_from_array("DELAY", Datatype.UINT32, np.full(count, 1, np.uint32))
        inputs = (tensor_from_array("IN", Datatype.INT32, values), delays)
        codec: Any = plugins()["v2-grpc"].create({})
        request = InferRequest("repeat", id="r", inputs=inputs)
        message = bytes(join_parts(codec.build_stream_request(request, GENERIC).message))
        tag = self.expect(
            SentRequest("repeat", values.tobytes(), [each.tobytes() for each in values])
        )
        try:
            call = self.channel.stream_stream(STREAM)(metadata=(("x-tag", tag),))
            await call.write(message)
            await call.done_writing()
            async for _ in call:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        self.sent[tag].is_answered = True

    async def round(self, number: int) -> None:
        for protocol in (*HTTP, *RPC):
            await self.infer(protocol)
        await self.fail()
        await self.sequence(number + 1)
        await self.stream()

    async def keep_sending(self) -> None:
        for number in itertools.count(1000):
            if self.is_stopped:
                return
            await self.round(number)

    async def keep_sending_large(self) -> None:
        while not self.is_stopped:
            await self.infer("v2-grpc", 4 * MIB // 4)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


@asynccontextmanager
async def clients(gateway: Infergate, name: str) -> AsyncIterator[Clients]:
    async with grpc.aio.insecure_channel(gateway.grpc, options=_UNLIMITED) as channel:
        created = Clients(gateway, channel, name)
        try:
            yield created
        finally:
            await created.close()


def folder(gateway: Infergate) -> Path:
    return gateway.log.parent / "records"


def parts(gateway: Infergate) -> list[RecordedExchange | DamagedPart]:
    return [part for file in sorted(folder(gateway).iterdir()) for part in read_recording(file)]


def recorded(gateway: Infergate) -> int:
    sample = "infergate_recorded_exchanges_total"
    return round(metric(gateway, sample, result="recorded"))


async def wait_for_records(gateway: Infergate, count: int) -> None:
    await asyncio.to_thread(
        until, lambda: recorded(gateway) == count, f"{count} exchanges are recorded"
    )


def command(gateway: Infergate, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "infergate", "record", *arguments]
    if arguments[0] != "show":
        argv += ["--admin", gateway.admin]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Infergate]:
    with started_infergate(CONFIG) as running:
        until(lambda: both_workers_record(running), "both workers record")
        yield running


async def test_a_mixed_load_is_recorded_bit_by_bit(gateway: Infergate) -> None:
    before = recorded(gateway)
    async with clients(gateway, "mixed") as sending:
        for number in range(10):
            await sending.round(number)
        for protocol in ("v2-rest", "v2-grpc"):
            await sending.infer(protocol, 64 * MIB // 4)
        await wait_for_records(gateway, before + len(sending.sent))
    all_parts = parts(gateway)
    records = [part for part in all_parts if isinstance(part, RecordedExchange)]
    assert len(records) == len(all_parts)
    by_tag = {part.exchange.headers["x-tag"]: part for part in records}
    assert by_tag.keys() == sending.sent.keys()
    for tag, sent in sending.sent.items():
        assert sent.is_answered
        sent.check(by_tag[tag])
    exchanges = [part.exchange for part in records]
    assert {exchange.protocol for exchange in exchanges} == {*HTTP, *RPC}
    for exchange in exchanges:
        assert all(name.startswith("x-") for name in exchange.headers)
        assert "s3cret" not in str(exchange.headers.values())
    assert {exchange.backend for exchange in exchanges} == {"demo"}
    streams = [exchange for exchange in exchanges if exchange.is_stream]
    assert all(len(set(exchange.outcome.offsets)) == 4 for exchange in streams)
    assert len({part.sequence for part in records}) == 11
    listing = command(gateway, "show", *map(str, folder(gateway).iterdir()))
    assert listing.returncode == 0
    assert len(listing.stdout.splitlines()) == len(records) + len(list(folder(gateway).iterdir()))


async def test_a_killed_worker_loses_only_unwritten_records(gateway: Infergate) -> None:
    async with clients(gateway, "killed") as sending, asyncio.TaskGroup() as tasks:
        tasks.create_task(sending.keep_sending())
        tasks.create_task(sending.keep_sending_large())
        before = recorded(gateway)
        await asyncio.to_thread(
            until, lambda: recorded(gateway) > before + 50, "50 exchanges are recorded"
        )
        victim, pid = await asyncio.to_thread(busiest_worker, gateway)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(until, lambda: both_workers_record(gateway), "a new worker records")
        sending.is_stopped = True
    assert command(gateway, "stop").returncode == 0
    by_file = {file: list(read_recording(file)) for file in sorted(folder(gateway).iterdir())}
    all_parts = [part for file_parts in by_file.values() for part in file_parts]
    records = [part for part in all_parts if isinstance(part, RecordedExchange)]
    assert len(all_parts) - len(records) <= 1  # the last record of the killed worker
    own_records = [part for part in records if part.exchange.headers["x-tag"] in sending.sent]
    assert len(own_records) > 50
    for part in own_records:
        sending.sent[part.exchange.headers["x-tag"]].check(part)
    written = sum(len(by_file[file]) for file in by_file if file.stem.endswith(f"-{pid}"))
    assert written >= victim["exchanges"]["recorded"] > 0


def both_workers_record(gateway: Infergate) -> bool:
    return metric(gateway, "infergate_recording_active") == 2


def busiest_worker(gateway: Infergate) -> tuple[dict[str, Any], int]:
    """Return the status and the process id of the worker that has recorded most."""
    processes = json.loads(command(gateway, "status", "--json").stdout)["processes"]
    status = max(processes, key=lambda process: process["exchanges"]["recorded"])
    pid = int(Path(status["file"]).stem.rpartition("-")[2])
    assert pid in workers(gateway)
    return status, pid


async def still_records(gateway: Infergate, count: int) -> bool:
    """Return whether recording continues after ``count`` exchanges."""

    def is_recorded_or_stopped() -> bool:
        return recorded(gateway) == count or not metric(gateway, "infergate_recording_active")

    await asyncio.to_thread(until, is_recorded_or_stopped, f"{count} exchanges are recorded")
    return metric(gateway, "infergate_recording_active") != 0


async def test_a_full_disk_stops_recording_but_not_serving() -> None:
    """The limit on the size of files makes writes fail as a full disk does."""
    with started_infergate(CONFIG.replace("workers: 2", "workers: 1")) as gateway:
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (2 * MIB, resource.RLIM_INFINITY))
        async with clients(gateway, "full") as sending:
            for number in itertools.count(1):  # one at a time, so that several are recorded
                await sending.infer("v2-grpc", MIB // 10)
                if not await still_records(gateway, number):
                    break
            await sending.infer("v2-grpc", MIB // 10)
            assert all(sent.is_answered for sent in sending.sent.values())
            records = parts(gateway)
            assert len(records) == recorded(gateway) >= 2
            for part in records:
                assert isinstance(part, RecordedExchange)
                sending.sent[part.exchange.headers["x-tag"]].check(part)
            status = command(gateway, "status")
            assert status.returncode == 1
            assert "File too large" in status.stdout
            assert '"event":"recording_stopped"' in gateway.log.read_text()
            resource.prlimit(
                gateway.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            assert command(gateway, "start").returncode == 0
            before = recorded(gateway)
            await sending.infer("v2-grpc", MIB // 10)
            await wait_for_records(gateway, before + 1)

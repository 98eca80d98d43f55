"""Shared memory regions: bounds, changed files, registration, audit, and backends with regions."""

# ruff: noqa: ASYNC240 - the files are in memory

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fakes import Memory, perform
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexts import new_context
from gateway_errors import raises_kind
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, UnknownRegionError
from infergate.core.limits import Limits
from infergate.core.messages import (
    Acknowledgement,
    InferRequest,
    InferResponse,
    Operation,
    RequestedOutput,
    Response,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor
from infergate.gateway import shared_memory
from infergate.gateway.gateway import GatewayOptions, RoutingGateway
from infergate.gateway.shared_memory import SharedMemory
from infergate.gateway.shared_memory_region import open_region
from infergate.routing.table import Route, RouteTable

SIZE = 4096
KEY = f"/infergate_unit_{os.getpid()}"
FILE = Path(f"/dev/shm{KEY}")
LIMITS = Limits(body=2 * SIZE, in_flight_bytes=3 * SIZE, regions=2)
REGISTER = SharedMemoryRegisterRequest("r", KEY, 0, SIZE)
UNREGISTER = SharedMemoryUnregisterRequest("r")
CUDA = SharedMemoryRegisterRequest("gpu", size=64, device=0, handle=b"h")
BACKEND = Memory("b")


@pytest.fixture(autouse=True)
def region() -> Iterator[Path]:
    FILE.write_bytes(bytes(range(256)) * (SIZE // 256))
    yield FILE
    FILE.unlink(missing_ok=True)


def open_file_count() -> int:
    gc.collect()
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            count += KEY in str(each.readlink())
    return count


def tensor_in(
    tensor_region: RegionRef, datatype: Datatype = Datatype.UINT8, shape: Any = None
) -> Tensor:
    return Tensor("X", datatype, shape or (tensor_region.size,), b"", shared_memory=tensor_region)


def request_with(*regions: RegionRef, output: RegionRef | None = None) -> InferRequest:
    inputs = tuple(replace(tensor_in(each), name=f"X{i}") for i, each in enumerate(regions))
    outputs = (RequestedOutput("Y", {}, output),) if output else ()
    return InferRequest("m", inputs=inputs, outputs=outputs)


def response_with(data: bytes) -> InferResponse:
    return InferResponse("m", outputs=(Tensor("Y", Datatype.UINT8, (len(data),), data),))


async def memory_with_region(limits: Limits = LIMITS, *backends: Memory) -> SharedMemory:
    memory = SharedMemory(limits, backends, enabled=True)
    assert await memory.perform(REGISTER, new_context()) == Acknowledgement()
    return memory


async def error_of(
    memory: SharedMemory,
    request: InferRequest,
    kind: Kind = Kind.BAD_REQUEST,
    match: str | None = None,
    backend: Memory = BACKEND,
) -> GatewayError:
    with raises_kind(kind, match) as caught:
        async with memory.stage(request, backend):
            pytest.fail("the request was staged")
    return caught.value


# ---- reading and writing


async def test_inputs_are_read_from_and_outputs_written_to_regions() -> None:
    memory = await memory_with_region()
    request = request_with(RegionRef("r", 3, 5), output=RegionRef("r", 100, 9))
    async with memory.stage(request, BACKEND) as staged:
        assert staged.request == InferRequest(
            "m",
            inputs=(Tensor("X0", Datatype.UINT8, (5,), b"\3\4\5\6\7"),),
            outputs=(RequestedOutput("Y"),),
        )
        response = await staged.write_outputs(response_with(b"answer"))
    assert response.outputs == (
        Tensor("Y", Datatype.UINT8, (6,), b"", shared_memory=RegionRef("r", 100, 6)),
    )
    assert FILE.read_bytes()[99:107] == b"\x63answer\x6a"
    assert FILE.stat().st_size == SIZE


async def test_offsets_are_relative_to_the_region() -> None:
    memory = SharedMemory(LIMITS, enabled=True)
    await memory.perform(replace(REGISTER, offset=16, size=8), new_context())
    request = request_with(RegionRef("r", 2, 6), output=RegionRef("r", 0, 8))
    async with memory.stage(request, BACKEND) as staged:
        assert staged.request.inputs[0].data == bytes(range(18, 24))
        await staged.write_outputs(response_with(b"12345678"))
    assert FILE.read_bytes()[15:25] == b"\x0f12345678\x18"
    past_end = request_with(RegionRef("r", 3, 6))
    await error_of(memory, past_end, match=r"3 \+ 6 bytes exceed its size of 8")


async def test_inline_tensors_stay_unchanged() -> None:
    memory = await memory_with_region()
    inline = Tensor("H", Datatype.UINT8, (1,), b"h")
    request = replace(
        request_with(RegionRef("r", 0, 1)), inputs=(inline, tensor_in(RegionRef("r", 0, 1)))
    )
    async with memory.stage(request, BACKEND) as staged:
        assert staged.request.inputs[0] is inline


numbers = st.integers(0, SIZE // 2) | st.integers(0, 2 * SIZE) | st.integers(0, 2**64 - 1)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=numbers, size=numbers, begin=numbers, length=numbers, end=st.integers(0, SIZE))
def test_any_offsets_and_sizes_give_data_or_an_error(
    offset: int, size: int, begin: int, length: int, end: int
) -> None:
    """Neither a registration nor a truncated file permits a read outside the region."""
    FILE.write_bytes(bytes(SIZE))
    request = replace(REGISTER, offset=offset, size=size)
    if not 0 < size <= SIZE - offset:
        with pytest.raises(GatewayError, match="Invalid shared memory region"):
            open_region(request)
        return
    created = open_region(request)
    os.truncate(FILE, end)
    requested_region = RegionRef("r", begin, length)
    if begin + length <= size and offset + begin + length <= end:
        assert len(created.read(requested_region)) == length
        created.write(requested_region, bytes(length))
    else:
        for use in (
            lambda: created.read(requested_region),
            lambda: created.write(requested_region, b""),
        ):
            with raises_kind(Kind.BAD_REQUEST, match=r"Invalid offset|become shorter"):
                use()
    assert FILE.stat().st_size == end


async def test_truncation_between_check_and_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = await memory_with_region()
    fstat = os.fstat

    def truncate_after_fstat(file: int) -> os.stat_result:
        status = fstat(file)
        os.truncate(FILE, 10)
        return status

    monkeypatch.setattr("infergate.gateway.shared_memory_region.os.fstat", truncate_after_fstat)
    await error_of(memory, request_with(RegionRef("r", 0, 100)), match="become shorter")


async def test_a_truncated_file_is_not_extended() -> None:
    memory = await memory_with_region()
    async with memory.stage(request_with(output=RegionRef("r", 100, 8)), BACKEND) as staged:
        os.truncate(FILE, 50)
        with pytest.raises(GatewayError, match="become shorter"):
            await staged.write_outputs(response_with(b"answer"))
    assert FILE.stat().st_size == 50


async def test_no_output_is_written_if_one_does_not_fit() -> None:
    memory = await memory_with_region()
    outputs = (
        RequestedOutput("A", {}, RegionRef("r", 0, 4)),
        RequestedOutput("B", {}, RegionRef("r", 8, 3)),
    )
    request = InferRequest("m", outputs=outputs)
    tensors = tuple(Tensor(name, Datatype.UINT8, (4,), b"\xff" * 4) for name in "AB")
    async with memory.stage(request, BACKEND) as staged:
        with pytest.raises(GatewayError, match=r"'B' \(3 bytes\) .* 4 bytes"):
            await staged.write_outputs(InferResponse("m", outputs=tensors))
    assert FILE.read_bytes()[:4] == b"\0\1\2\3"


@pytest.mark.parametrize(
    ("first", "second", "is_disjoint"),
    [
        (RegionRef("r", 0, 4), RegionRef("r", 0, 4), False),
        (RegionRef("r", 0, 4), RegionRef("r", 3, 4), False),
        (RegionRef("r", 0, 40), RegionRef("r", 8, 4), False),
        (RegionRef("r", 8, 4), RegionRef("alias", 0, 4), False),
        (RegionRef("r", 0, 4), RegionRef("r", 4, 4), True),
        (RegionRef("r", 4, 4), RegionRef("alias", 0, 4), True),
        (RegionRef("r", 2, 0), RegionRef("r", 0, 4), True),
    ],
    ids=str,
)
async def test_no_output_is_written_over_another(
    first: RegionRef, second: RegionRef, *, is_disjoint: bool
) -> None:
    memory = await memory_with_region()
    await memory.perform(replace(REGISTER, name="alias", offset=8, size=8), new_context())
    outputs = tuple(RequestedOutput(*each) for each in (("A", {}, first), ("B", {}, second)))
    for order in (outputs, outputs[::-1]):
        request = InferRequest(
            "m", outputs=(*order, RequestedOutput("C", {}, RegionRef("r", 99, 9)))
        )
        if is_disjoint:
            async with memory.stage(request, BACKEND):
                continue
        error = await error_of(memory, request)
        assert "'A'" in error.public
        assert "'B'" in error.public


async def test_data_is_checked_after_the_copy() -> None:
    memory = await memory_with_region()
    wrong = tensor_in(RegionRef("r", 0, 8), Datatype.FP32, (3,))
    await error_of(memory, InferRequest("m", inputs=(wrong,)), match="needs 12 bytes")
    lengths = tensor_in(RegionRef("r", 0, 8), Datatype.BYTES, (1,))
    await error_of(memory, InferRequest("m", inputs=(lengths,)), match="past the end")


@pytest.fixture
def to_thread(monkeypatch: pytest.MonkeyPatch) -> AsyncMock:
    recording = AsyncMock(wraps=asyncio.to_thread)
    monkeypatch.setattr(asyncio, "to_thread", recording)
    return recording


async def test_large_data_is_copied_by_a_thread(
    to_thread: AsyncMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_MAX_INLINE_BYTES", 64)
    memory = await memory_with_region()
    async with memory.stage(
        request_with(RegionRef("r", 0, 65), output=RegionRef("r", 0, 99)), BACKEND
    ) as staged:
        assert staged.request.inputs[0].data == bytes(range(65))
        await staged.write_outputs(response_with(bytes(65)))
    functions = [call.args[0].__name__ for call in to_thread.await_args_list]
    assert functions == ["_read_inputs", "_write_outputs"]
    assert FILE.read_bytes()[:66] == bytes(65) + b"\x41"


@pytest.mark.parametrize(("maximum", "threads"), [(63, 1), (64, 0)])
async def test_many_short_elements_count_as_large_data(
    maximum: int, threads: int, to_thread: AsyncMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the elements of the two BYTES tensors in shared memory are counted."""
    monkeypatch.setattr(shared_memory, "_MAX_INLINE_ELEMENTS", maximum)
    FILE.write_bytes(bytes(SIZE))
    memory = await memory_with_region()
    half = tensor_in(RegionRef("r", 0, 128), Datatype.BYTES, (4, 8))
    inline = Tensor("H", Datatype.BYTES, (2,), bytes(8))
    inputs = (
        half,
        replace(half, name="Y"),
        inline,
        replace(tensor_in(RegionRef("r", 0, 99)), name="Z"),
    )
    async with memory.stage(InferRequest("m", inputs=inputs), BACKEND) as staged:
        assert staged.request.inputs[0].data == bytes(128)
    assert to_thread.await_count == threads


# ---- bounds


async def test_memory_held_by_requests_is_bounded() -> None:
    memory = await memory_with_region()
    too_many = request_with(RegionRef("r", 0, SIZE), RegionRef("r", 0, SIZE), RegionRef("r", 0, 1))
    await error_of(memory, too_many, Kind.TOO_LARGE)
    two_inputs = request_with(RegionRef("r", 0, SIZE), RegionRef("r", 0, SIZE))
    one_input = request_with(RegionRef("r", 0, SIZE))
    async with memory.stage(two_inputs, BACKEND), memory.stage(one_input, BACKEND):
        error = await error_of(memory, request_with(RegionRef("r", 0, 1)), Kind.OVERLOADED)
        assert error.retry_after
    async with memory.stage(two_inputs, BACKEND):
        pass
    await error_of(memory, InferRequest("m", inputs=(tensor_in(RegionRef("r", 0, 8), shape=(9,)),)))
    async with memory.stage(two_inputs, BACKEND), memory.stage(one_input, BACKEND):
        pass  # a refused request holds nothing


async def test_the_number_of_regions_is_limited() -> None:
    memory = await memory_with_region()
    await memory.perform(replace(REGISTER, name="s"), new_context())
    with raises_kind(Kind.TOO_LARGE, match="limit"):
        await memory.perform(replace(REGISTER, name="t"), new_context())
    await memory.perform(SharedMemoryUnregisterRequest("s"), new_context())
    await memory.perform(replace(REGISTER, name="t"), new_context())
    assert open_file_count() == 2


@pytest.mark.parametrize(
    "key",
    ["", "/", "//", "/.", "/..", "/a/b", "../x", "/a\0", "/\ud800", "/" + "x" * 256, "/sem.x"],
)
async def test_invalid_keys_open_no_file(key: str) -> None:
    memory = SharedMemory(LIMITS, enabled=True)
    with raises_kind(Kind.BAD_REQUEST, match="Unable to open"):
        await memory.perform(replace(REGISTER, key=key), new_context())
    assert open_file_count() == 0


async def test_only_files_are_opened_and_no_links_followed(tmp_path: Path) -> None:
    memory = SharedMemory(LIMITS, enabled=True)
    FILE.unlink()
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(SIZE))
    for create in (lambda: FILE.symlink_to(secret), lambda: os.mkfifo(FILE)):
        create()
        with pytest.raises(GatewayError, match="Unable to open"):
            await memory.perform(REGISTER, new_context())
        FILE.unlink()
    FILE.mkdir()
    try:
        with pytest.raises(GatewayError, match="Unable to open"):
            await memory.perform(REGISTER, new_context())
    finally:
        FILE.rmdir()
    assert open_file_count() == 0


async def test_a_key_may_omit_its_slash() -> None:
    """``shm_open`` accepts a key without a slash."""
    memory = SharedMemory(LIMITS, enabled=True)
    await memory.perform(replace(REGISTER, key=KEY[1:]), new_context())
    status = await memory.perform(SharedMemoryStatusRequest("r"), new_context())
    assert status == SharedMemoryStatus((SharedMemoryRegion("r", KEY[1:], 0, SIZE),))


@pytest.mark.parametrize("name", ["", "x" * 257])
async def test_invalid_region_names_are_rejected(name: str) -> None:
    memory = SharedMemory(LIMITS, enabled=True)
    with pytest.raises(GatewayError, match="name of a shared memory region"):
        await memory.perform(replace(REGISTER, name=name), new_context())


@pytest.mark.parametrize(
    "fields", [{"size": 2**64}, {"offset": 2**64}, {"offset": -1}, {"device": 2**31}]
)
async def test_invalid_region_fields_are_rejected(fields: dict[str, int]) -> None:
    memory = SharedMemory(LIMITS, [Sharing("a")], enabled=True)
    with raises_kind(Kind.BAD_REQUEST, match=r"must be from 0 to \d+$"):
        await memory.perform(replace(CUDA, **fields), new_context())


# ---- registering and unregistering


async def test_a_region_is_listed_once_until_it_is_unregistered() -> None:
    memory = await memory_with_region()
    with raises_kind(Kind.ALREADY_EXISTS, match="'r' already in manager"):
        await memory.perform(replace(REGISTER, size=1), new_context())
    for cuda in (None, False):
        status = await memory.perform(SharedMemoryStatusRequest(cuda=cuda), new_context())
        assert status == SharedMemoryStatus((SharedMemoryRegion("r", KEY, 0, SIZE),))
    status = await memory.perform(SharedMemoryStatusRequest(cuda=True), new_context())
    assert status == SharedMemoryStatus()
    with raises_kind(Kind.NOT_FOUND, match="cuda shared memory region: 'r'"):
        await memory.perform(SharedMemoryStatusRequest("r", cuda=True), new_context())
    await memory.perform(SharedMemoryUnregisterRequest("r", cuda=True), new_context())
    assert open_file_count() == 1
    for _ in range(2):  # even if the region does not exist: clients clean up before they begin
        assert await memory.perform(UNREGISTER, new_context()) == Acknowledgement()
    assert open_file_count() == 0
    error = await error_of(memory, request_with(RegionRef("r", 0, 1)), Kind.NOT_FOUND)
    assert isinstance(error, UnknownRegionError)
    assert error.region == "r"


async def test_a_request_keeps_its_regions_when_they_are_unregistered() -> None:
    """The descriptor stays open, so that its number is not reused for another file."""
    memory = await memory_with_region()
    async with memory.stage(
        request_with(RegionRef("r", 0, 4), output=RegionRef("r", 0, 6)), BACKEND
    ) as staged:
        await memory.perform(SharedMemoryUnregisterRequest(), new_context())
        FILE.rename(f"{FILE}_old")
        FILE.write_bytes(bytes(SIZE))
        await memory.perform(REGISTER, new_context())
        await staged.write_outputs(response_with(b"answer"))
    old = Path(f"{FILE}_old")
    assert old.read_bytes()[:6] == b"answer"
    assert FILE.read_bytes() == bytes(SIZE)
    old.unlink()
    del staged
    assert open_file_count() == 1


async def test_a_request_cancelled_while_a_thread_reads_leaves_no_file_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_memory, "_MAX_INLINE_BYTES", 0)
    memory = await memory_with_region()

    async def infer() -> None:
        async with memory.stage(request_with(RegionRef("r", 0, SIZE)), BACKEND):
            pass

    for _ in range(50):
        task = asyncio.create_task(infer())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await memory.perform(SharedMemoryUnregisterRequest(), new_context())
    del task
    await asyncio.get_running_loop().shutdown_default_executor()  # the threads have ended
    assert open_file_count() == 0
    monkeypatch.setattr(shared_memory, "_MAX_INLINE_BYTES", 2 * SIZE)
    await memory.perform(REGISTER, new_context())
    async with memory.stage(
        request_with(RegionRef("r", 0, SIZE), RegionRef("r", 0, SIZE)), BACKEND
    ):
        pass  # no memory is counted as held


async def test_registering_and_unregistering_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "infergate.audit")
    memory = SharedMemory(
        LIMITS,
        [Memory("gpu's", Acknowledgement()), Memory("other", Acknowledgement())],
        enabled=True,
    )
    await memory.perform(REGISTER, new_context(request_id="r1"))
    await memory.perform(SharedMemoryStatusRequest(), new_context())
    with pytest.raises(GatewayError):
        await memory.perform(replace(REGISTER, key="/no\nsuch" + "x" * 1000), new_context())
    await memory.perform(CUDA, new_context())
    await memory.perform(UNREGISTER, new_context())
    await memory.perform(SharedMemoryUnregisterRequest(), new_context())
    registered, rejected, cuda, unregistered, unregistered_all = caplog.messages
    end = """route='' backend="gpu's,other" peer=test request_id"""
    assert registered == (
        f"shared_memory_register region='r' key='{KEY}' offset=0 size={SIZE} {end}='r1' outcome=ok"
    )
    assert "key='/no\\nsuchxxx" in rejected
    assert rejected.endswith("outcome=already_exists")
    assert len(rejected) < 500
    assert cuda.startswith("shared_memory_register region='gpu' device=0 size=64 ")
    assert unregistered == f"shared_memory_unregister region='r' {end}='' outcome=ok"
    assert unregistered_all.startswith("shared_memory_unregister region='' ")


async def test_disabled_shared_memory_is_not_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "infergate.audit")
    backend = Memory("b", Acknowledgement())
    memory = SharedMemory(LIMITS, [backend], enabled=False)
    with pytest.raises(GatewayError):
        await memory.perform(REGISTER, new_context())
    assert await memory.perform(UNREGISTER, new_context()) == Acknowledgement()
    assert not caplog.messages
    assert not backend.requests


async def test_disabled_shared_memory_opens_no_file() -> None:
    memory = SharedMemory(LIMITS, enabled=False)
    with raises_kind(Kind.UNSUPPORTED, match="'r': shared memory is not supported"):
        await memory.perform(REGISTER, new_context())
    assert open_file_count() == 0
    assert memory.extensions == ()
    for name in ("", "r"):
        status = await memory.perform(SharedMemoryStatusRequest(name), new_context())
        assert status == SharedMemoryStatus()
        unregister = SharedMemoryUnregisterRequest(name)
        assert await memory.perform(unregister, new_context()) == Acknowledgement()
    for request in (request_with(RegionRef("r", 0, 1)), request_with(output=RegionRef("r", 0, 1))):
        error = await error_of(memory, request, Kind.UNSUPPORTED, "not enabled")
        assert isinstance(error, UnknownRegionError)


async def test_classes_cannot_be_written_to_a_region() -> None:
    memory = await memory_with_region()
    output = RequestedOutput("Y", {"classification": 1}, RegionRef("r", 0, 8))
    await error_of(memory, InferRequest("m", outputs=(output,)), match="'Y'")


# ---- backends that read regions themselves


class Sharing(Memory):
    """A backend that registers regions, and rejects operations of the type ``refuses``."""

    def __init__(self, name: str, refuses: type[Operation] | None = None) -> None:
        super().__init__(name)
        self.refuses = refuses

    async def perform(self, operation: Operation, context: RequestContext) -> Response:
        await super().perform(operation, context)
        if self.refuses is type(operation):
            raise GatewayError(Kind.BACKEND_ERROR, f"{self.name} says no")
        return Acknowledgement()


async def test_each_backend_registers_each_region() -> None:
    backends = Sharing("a"), Sharing("b")
    memory = await memory_with_region(LIMITS, *backends)
    assert memory.extensions == ("system_shared_memory", "cuda_shared_memory")
    await memory.perform(CUDA, new_context())
    await memory.perform(SharedMemoryUnregisterRequest("r", cuda=False), new_context())
    await memory.perform(SharedMemoryUnregisterRequest(), new_context())
    for backend in backends:
        assert backend.requests == [
            REGISTER,
            CUDA,
            SharedMemoryUnregisterRequest("r", cuda=False),
            SharedMemoryUnregisterRequest(cuda=False),
            SharedMemoryUnregisterRequest(cuda=True),
        ]


async def test_a_region_is_registered_with_all_backends_or_none() -> None:
    first, second = Sharing("a"), Sharing("b", SharedMemoryRegisterRequest)
    memory = SharedMemory(LIMITS, (first, second), enabled=True)
    with pytest.raises(GatewayError, match="b says no"):
        await memory.perform(REGISTER, new_context())
    assert first.requests == [REGISTER, SharedMemoryUnregisterRequest("r", cuda=False)]
    assert await memory.perform(SharedMemoryStatusRequest(), new_context()) == SharedMemoryStatus()
    assert open_file_count() == 0


@pytest.mark.parametrize(
    ("kind", "expected"), [(Kind.TIMEOUT, 1), (Kind.CONNECT, 1), (Kind.BAD_REQUEST, 2)]
)
async def test_only_a_reachable_new_backend_gets_further_regions(kind: Kind, expected: int) -> None:
    """A reload waits for every backend, so it gives up on a backend that cannot be reached."""
    memory = await memory_with_region(LIMITS, Sharing("a"))
    await memory.perform(CUDA, new_context())
    sharing, silent = Sharing("a"), Memory("c", None)
    silent.answer = GatewayError(kind, "no")  # type: ignore[assignment]
    other = SharedMemory(LIMITS, (sharing, silent, Sharing("b")), enabled=True, predecessor=memory)
    await other.register_with_new_backends((sharing,))
    assert (len(sharing.requests), len(silent.requests)) == (0, expected)
    assert len(other._backends[2].requests) == 2  # type: ignore[attr-defined]
    await memory.perform(SharedMemoryUnregisterRequest(), new_context())


async def test_a_region_is_removed_even_if_a_backend_keeps_it() -> None:
    backends = Sharing("a", SharedMemoryUnregisterRequest), Sharing("b")
    memory = await memory_with_region(LIMITS, *backends)
    with pytest.raises(GatewayError, match="a says no"):
        await memory.perform(SharedMemoryUnregisterRequest("r", cuda=False), new_context())
    assert open_file_count() == 0
    assert len(backends[1].requests) == 2


async def test_a_sharing_backend_gets_the_region_and_others_a_copy() -> None:
    sharing = Sharing("a")
    memory = await memory_with_region(LIMITS, sharing)
    request = request_with(RegionRef("r", 0, 4), output=RegionRef("r", 0, 8))
    async with memory.stage(request, sharing) as staged:
        assert staged.request is request
        response = InferResponse(
            "m", outputs=(Tensor("Y", Datatype.UINT8, (1,), b"", shared_memory=None),)
        )
        assert await staged.write_outputs(response) == response
    async with memory.stage(request, sharing, by_name=False) as staged:
        assert staged.request.inputs[0].data == b"\0\1\2\3"
    async with memory.stage(request, BACKEND) as staged:
        assert staged.request.inputs[0].data == b"\0\1\2\3"
    unknown = request_with(RegionRef("other", 0, 4))
    await error_of(memory, unknown, Kind.NOT_FOUND, backend=sharing)


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        (request_with(RegionRef("r", SIZE, 1)), "'r'"),
        (request_with(RegionRef("r", 1, SIZE)), "'r'"),
        (request_with(RegionRef("r", 2**64 - 1, 2**64 - 1)), "'r'"),
        (request_with(RegionRef("r", 0, 4), RegionRef("r", SIZE - 3, 4)), "'r'"),
        (request_with(output=RegionRef("r", SIZE - 3, 4)), "'r'"),
        (request_with(RegionRef("gpu", 60, 5)), "'gpu'"),
        (request_with(output=RegionRef("gpu", 65, 0)), "'gpu'"),
        (
            InferRequest(
                "m",
                inputs=(tensor_in(RegionRef("r", SIZE - 4, 4), Datatype.INT32, (16,)),),
            ),
            "needs 64 bytes",
        ),
    ],
    ids=str,
)
async def test_a_sharing_backend_gets_no_request_past_the_end_of_a_region(
    request_: InferRequest, match: str
) -> None:
    """Such a request crashes a legacy server."""
    sharing = Sharing("a")
    memory = await memory_with_region(LIMITS, sharing)
    await memory.perform(CUDA, new_context())
    await error_of(memory, request_, match=match, backend=sharing)


async def test_a_sharing_backend_gets_no_request_for_a_truncated_file() -> None:
    sharing = Sharing("a")
    memory = await memory_with_region(LIMITS, sharing)
    os.truncate(FILE, 3)
    request = request_with(RegionRef("r", 0, 4))
    await error_of(memory, request, match="become shorter", backend=sharing)


async def test_a_region_that_a_new_backend_has_already_is_replaced() -> None:
    """The region at the backend may have a different size."""

    class Registered(Sharing):
        async def perform(self, operation: Operation, context: RequestContext) -> Response:
            cleared = any(isinstance(each, SharedMemoryUnregisterRequest) for each in self.requests)
            if isinstance(operation, SharedMemoryRegisterRequest) and not cleared:
                self.requests.append(operation)
                raise GatewayError(Kind.ALREADY_EXISTS, "already in manager")
            return await super().perform(operation, context)

    memory, new = await memory_with_region(LIMITS, Sharing("a")), Registered("b")
    other = SharedMemory(LIMITS, (new,), enabled=True, predecessor=memory)
    await other.register_with_new_backends(())
    assert new.requests == [REGISTER, SharedMemoryUnregisterRequest("r", cuda=False), REGISTER]


async def test_gpu_memory_is_forwarded_to_the_backend() -> None:
    with pytest.raises(GatewayError, match="GPUs not supported"):
        await (await memory_with_region()).perform(CUDA, new_context())
    sharing = Sharing("a")
    memory = await memory_with_region(LIMITS, sharing)
    await memory.perform(CUDA, new_context())
    status = await memory.perform(SharedMemoryStatusRequest(cuda=True), new_context())
    assert status == SharedMemoryStatus((SharedMemoryRegion("gpu", size=64, device=0),))
    for request in (
        request_with(RegionRef("gpu", 0, 4)),
        request_with(output=RegionRef("gpu", 0, 4)),
    ):
        async with memory.stage(request, sharing) as staged:
            assert staged.request is request
        await error_of(memory, request, Kind.UNSUPPORTED, "on a GPU")


# ---- in the gateway


async def test_the_gateway_reads_inputs_from_regions_if_enabled() -> None:
    memory = await memory_with_region()
    backend = Memory("b")
    gateway = RoutingGateway(
        RouteTable([Route("*", "b")]), {"b": backend}, {}, GatewayOptions(shared_memory=memory)
    )
    request = request_with(RegionRef("r", 0, 2))
    await perform(gateway, request, InferResponse)
    (operation,) = backend.requests
    assert isinstance(operation, InferRequest)
    assert operation.inputs == (Tensor("X0", Datatype.UINT8, (2,), b"\0\1"),)
    disabled = RoutingGateway(RouteTable([Route("*", "b")]), {"b": backend}, {})
    with pytest.raises(UnknownRegionError, match="not enabled"):
        await disabled.perform(request, new_context())
    assert len(backend.requests) == 1

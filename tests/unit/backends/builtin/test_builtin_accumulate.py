from typing import Any

import pytest
from builtin_requests import infer, int32, rejection

from fake_clock import Clock
from infergate.backends.builtin import BuiltinBackend
from infergate.backends.builtin.accumulate import IDLE_SECONDS, MAX_SEQUENCES, Accumulate
from infergate.core.errors import Kind
from infergate.core.messages import InferRequest, RequestedOutput


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model(clock: Clock) -> Accumulate:
    return Accumulate(clock)


@pytest.fixture
def backend(model: Accumulate) -> BuiltinBackend:
    return BuiltinBackend("demo", [model])


def request_message(value: int, sequence: Any = None, **flags: Any) -> InferRequest:
    parameters = {f"sequence_{name}": flag for name, flag in flags.items()}
    if sequence is not None:
        parameters["sequence_id"] = sequence
    return InferRequest("accumulate", parameters=parameters, inputs=(int32("INPUT", [value]),))


async def total(backend: BuiltinBackend, request: InferRequest) -> int:
    (output,) = (await infer(backend, request)).outputs
    assert (output.name, output.shape) == ("OUTPUT", (1,))
    return int(output.numpy()[0])


async def test_sequences_have_separate_sums(backend: BuiltinBackend) -> None:
    assert await total(backend, request_message(1, 5, start=True)) == 1
    assert await total(backend, request_message(100, "5", start=True)) == 100
    assert await total(backend, request_message(2, 5)) == 3
    assert await total(backend, request_message(-50, "5", start=False, end=True)) == 50
    assert await total(backend, request_message(3, 5, end=True)) == 6


async def test_an_ended_sequence_is_removed(backend: BuiltinBackend, model: Accumulate) -> None:
    assert await total(backend, request_message(7, 1, start=True, end=True)) == 7
    assert not model._sequences
    assert "must specify the START flag" in await rejection(backend, request_message(1, 1))


async def test_a_start_resets_the_sequence(backend: BuiltinBackend) -> None:
    await infer(backend, request_message(7, 1, start=True))
    assert await total(backend, request_message(2, 1, start=True)) == 2


async def test_sums_wrap_like_c(backend: BuiltinBackend) -> None:
    await infer(backend, request_message(2**31 - 1, 1, start=True))
    assert await total(backend, request_message(1, 1)) == -(2**31)


@pytest.mark.parametrize("sequence", [1, 2**64 - 1, "a", "ü" * 128])
async def test_valid_sequence_ids_are_accepted(backend: BuiltinBackend, sequence: Any) -> None:
    assert await total(backend, request_message(4, sequence, start=True)) == 4
    assert await total(backend, request_message(4, sequence)) == 8


NO_ID = (
    "inference request to model 'accumulate' must specify a non-zero or non-empty correlation ID"
)
NO_START = (
    "inference request for sequence 42 to model 'accumulate' must specify the START flag on the "
    "first request of the sequence"
)
REJECTED = [
    (request_message(1, start=True), NO_ID),
    (request_message(1, 0, start=True), NO_ID),
    (request_message(1, "", start=True), NO_ID),
    (
        request_message(1, 42),
        NO_START,
    ),
    (request_message(1, -1, start=True), "parameter 'sequence_id' must be from 1 to 2^64-1"),
    (request_message(1, 2**64, start=True), "parameter 'sequence_id' must be from 1 to 2^64-1"),
    (
        request_message(1, "x" * 129, start=True),
        "parameter 'sequence_id' is longer than 128 characters",
    ),
    (
        request_message(1, True, start=True),
        "parameter 'sequence_id' must be an integer or a string",
    ),
    (request_message(1, 1.0, start=True), "parameter 'sequence_id' must be an integer or a string"),
    (request_message(1, 1, start=1), "parameter 'sequence_start' must be true or false"),
    (
        request_message(1, 1, start=True, end="yes"),
        "parameter 'sequence_end' must be true or false",
    ),
]


@pytest.mark.parametrize(("request_", "expected"), REJECTED)
async def test_invalid_requests_are_refused(
    backend: BuiltinBackend, model: Accumulate, request_: InferRequest, expected: str
) -> None:
    assert await rejection(backend, request_) == expected
    assert not model._sequences  # a rejected request changes nothing


async def test_a_refused_request_does_not_change_the_sum(backend: BuiltinBackend) -> None:
    await infer(backend, request_message(1, 1, start=True))
    valid = request_message(10, 1)
    for output in (RequestedOutput("X"), RequestedOutput("OUTPUT", {"classification": -1})):
        await rejection(
            backend,
            InferRequest(
                valid.model, parameters=valid.parameters, inputs=valid.inputs, outputs=(output,)
            ),
        )
    assert await total(backend, request_message(1, 1)) == 2


async def test_the_number_of_sequences_is_bounded(
    backend: BuiltinBackend, model: Accumulate, clock: Clock
) -> None:
    for sequence in range(1, MAX_SEQUENCES + 1):
        await infer(backend, request_message(1, sequence, start=True))
        clock.time += 0.001
    error = await rejection(backend, request_message(1, "more", start=True), Kind.OVERLOADED)
    assert error == f"model 'accumulate' already holds {MAX_SEQUENCES} sequences"
    assert await total(backend, request_message(1, 1)) == 2  # active sequences continue
    assert await total(backend, request_message(5, 2, start=True)) == 5  # and may start again
    await infer(backend, request_message(1, 3, end=True))
    await infer(backend, request_message(1, "more", start=True))
    assert len(model._sequences) == MAX_SEQUENCES


async def test_idle_sequences_are_dropped_oldest_first(
    backend: BuiltinBackend, model: Accumulate, clock: Clock
) -> None:
    await infer(backend, request_message(1, "idle", start=True))
    await infer(backend, request_message(1, "busy", start=True))
    clock.time += IDLE_SECONDS - 1
    await infer(backend, request_message(1, "busy"))
    clock.time += 1
    assert "must specify the START flag" in await rejection(backend, request_message(1, "idle"))
    assert await total(backend, request_message(1, "busy")) == 3
    assert list(model._sequences) == ["busy"]

"""The memory of a decoded record is limited, whatever the record's bytes are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exchange_samples import sample_exchange
from infergate.codecs.protos import SCHEMA
from infergate.codecs.protos.bounded_parser import check_fields
from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, InferResponse
from infergate.recording import encoding
from infergate.recording.encoding import (
    RecordedExchange,
    UnrecordableError,
    decode_exchange,
    encode_exchange,
)
from infergate.recording.reader import DamagedPart, read_recording
from infergate.recording.writer import RecordingFile

_EMPTY: dict[str, Any] = {}


def _record(**fields: Any) -> bytes:
    data: bytes = SCHEMA.message_class("infergate.recording.Record")(**fields).SerializeToString()
    return data


def _with_entries(*entries: dict[str, bytes]) -> bytes:
    return _record(request={"parameters": {"entries": entries}})


def _with_responses(count: int) -> Exchange:
    return Exchange(InferRequest("m"), Outcome((InferResponse(""),) * count))


_OVERSIZED: dict[str, Callable[[], bytes]] = {
    "responses": lambda: _record(outcome={"responses": [_EMPTY] * 100_000}),
    "outputs": lambda: _record(outcome={"responses": [{"outputs": [_EMPTY] * 100_000}]}),
    "further outcomes": lambda: _record(further_outcomes=[_EMPTY] * 100_001),
    "requested outputs": lambda: _record(request={"outputs": [_EMPTY] * 100_000}),
    "parameters": lambda: _with_entries(*[{"name": b"p"}] * 100_000),
    "headers": lambda: _record(headers=[_EMPTY] * 100_001),
    "redacted names": lambda: _record(redacted=[b""] * 100_001),
}


@pytest.mark.parametrize("make_record", _OVERSIZED.values(), ids=_OVERSIZED)
def test_a_record_of_too_many_objects_is_a_damaged_part(
    tmp_path: Path, make_record: Callable[[], bytes]
) -> None:
    file = RecordingFile(tmp_path / "file")
    file.append([make_record()])
    file.append(encode_exchange(sample_exchange()))
    file.close()
    damaged, intact = read_recording(tmp_path / "file")
    assert isinstance(damaged, DamagedPart)
    assert "more than 100000 responses, tensors, parameters and headers" in damaged.reason
    assert isinstance(intact, RecordedExchange)


def test_a_record_of_too_many_objects_is_rejected_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(encoding, "parse_checked", lambda _, data: parsed.append(len(data)))
    with pytest.raises(MalformedMessageError, match="more than 100000 responses"):
        decode_exchange(_OVERSIZED["responses"]())
    assert parsed == []


@pytest.mark.parametrize(
    "record",
    [
        _record(tensor_data=[b""] * 200_001),
        _record(request={"inputs": [{"shape": [1] * 1_000_000}]}),
    ],
    ids=["data", "shape"],
)
def test_a_record_of_too_many_fields_is_rejected(record: bytes) -> None:
    with pytest.raises(MalformedMessageError, match=r"it has more than .* fields"):
        decode_exchange(record)


def test_no_more_messages_are_read_than_a_record_may_have() -> None:
    record_class = SCHEMA.message_class("infergate.recording.Record")
    intact, broken = _record(headers=[_EMPTY] * 10), b"\xff"
    assert check_fields(record_class, intact + broken, 1000, max_messages=9) == 10
    assert check_fields(record_class, intact, 1000, max_messages=10) == 10


def test_an_exchange_of_too_many_responses_cannot_be_recorded() -> None:
    with pytest.raises(
        UnrecordableError, match="too many objects: it has more than 100000 responses"
    ):
        encode_exchange(_with_responses(100_000))


def test_every_exchange_that_is_recorded_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_MAX_OBJECTS", 20)
    read = 0
    for responses in range(25):
        for redacted in range(25):
            exchange, names = _with_responses(responses), ["a"] * redacted
            try:
                record = b"".join(encode_exchange(exchange, {}, names))
            except UnrecordableError:
                assert responses + redacted > 17
            else:
                assert len(decode_exchange(record).exchange.outcome.responses) == responses
                read += 1
    assert read > 100


@pytest.mark.parametrize(
    "record",
    [
        _record(outcome={"responses": [_EMPTY] * 9_000}),
        _record(
            outcome={"responses": [{"outputs": [{"datatype": "FP32", "shape": [0]}] * 9_000}]},
            tensor_data=[b""] * 9_000,
        ),
        _record(request={"outputs": [{"name": b"%d" % number} for number in range(9_000)]}),
        _with_entries(*({"name": b"%d" % number} for number in range(9_000))),
        _with_entries({"name": b"p", "json_value": b"[[]" + b",[0]" * 9_000 + b"]"}),
        _with_entries({"name": b"p", "json_value": b'[""' + b',"ab"' * 9_000 + b"]"}),
        _record(
            request={"inputs": [{"datatype": "FP32", "shape": [0] + [300] * 1000}] * 20},
            tensor_data=[b""] * 20,
        ),
        _record(outcome={"offsets": [0.5 + number for number in range(9_000)]}),
    ],
    ids=["responses", "tensors", "outputs", "parameters", "lists", "texts", "shapes", "offsets"],
)
def test_the_memory_of_a_record_is_counted(record: bytes) -> None:
    decode_exchange(record)  # the first call fills caches
    tracemalloc.start()
    try:
        decoded = decode_exchange(record)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= 2 * decoded.size

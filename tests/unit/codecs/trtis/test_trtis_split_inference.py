"""Splitting a message in one pass finds the same parts as a scan of the fields."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.codecs.protos.wire_scanner import (
    MAX_VARINT_BYTES,
    VARINT,
    MalformedMessageError,
    field_prefix,
    read_varint,
    scan_fields,
    varint_field,
)
from infergate.codecs.trtis import grpc_infer, grpc_pass_through
from infergate.codecs.trtis import messages as pb
from infergate.codecs.trtis.split_inference import (
    REQUEST,
    RESPONSE,
    SplitInference,
    split_inference,
)
from infergate.codecs.trtis.validated_headers import MAX_KEY_LENGTH
from infergate.core.errors import GatewayError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.tensor import Buffer
from infergate.core.wire import join_parts
from infergate.testing.strategies import corrupted_bytes
from infergate.testing.vectors import load

VECTORS = load(Path(__file__).parents[3] / "vectors" / "trtis-grpc")
MESSAGES = [
    bytes(join_parts(vector.wire.message))
    for vector in VECTORS
    if hasattr(vector.wire, "message") and vector.wire.message
]


def scanned_field(message: Buffer, number: int) -> bytes:
    """Return the contents of the only field ``number`` of ``message``."""
    (field,) = [field for field in scan_fields(message, 10_000) if field.number == number]
    return bytes(message[field.value_start : field.end])


def scanned_header(header: bytes) -> tuple[bytes, int]:
    """Return ``header`` without its id, and the id."""
    rest, id_ = b"", 0
    for field in scan_fields(header, 10_000):
        if field.number == 5 and field.wire_type == VARINT:
            id_ = read_varint(header, field.value_start, MAX_VARINT_BYTES)[0] % 2**64
        else:
            rest += header[field.start : field.end]
    return rest, id_


def scanned_request(message: bytes) -> Any:
    """Scan the fields. Return the names, the header without the id, the id and the raw data."""
    names = grpc_infer.read_names((message,))
    head, raw = grpc_infer.split_raw((message,), grpc_infer.RAW_INPUT, DEFAULT_LIMITS)
    return names, *scanned_header(scanned_field(head, 3)), [*map(bytes, raw)]


def scanned_response(message: bytes) -> Any:
    head, raw = grpc_infer.split_raw((message,), grpc_infer.RAW_OUTPUT, DEFAULT_LIMITS)
    return scanned_field(head, 1), *scanned_header(scanned_field(head, 2)), [*map(bytes, raw)]


def parts(split: SplitInference) -> tuple[bytes, int, list[bytes]]:
    return split.header, split.id, [*map(bytes, split.entries())]


def check(message: bytes) -> int:
    """Compare the split parts with the scanned fields. Return the number of splits."""
    count = 0
    split = split_inference(message, REQUEST)
    if split is not None and (names := grpc_pass_through.read_names(split)) is not None:
        count += 1
        assert scanned_request(message) == (names, *parts(split))
    split = split_inference(message, RESPONSE)
    if split is not None and split.version == 0:
        count += 1
        assert scanned_response(message) == (bytes(split.first), *parts(split))
    return count


def request(version: int = -1) -> bytes:
    header = pb.InferRequestHeader(batch_size=1, id=300, correlation_id=7, flags=1)
    header.input.add(name="X", dims=[2, 3])
    header.output.add(name="Y").cls.count = 3
    raw = [b"abc", b"", b"x" * 300]
    message = pb.InferRequest(
        model_name="m", model_version=version, meta_data=header, raw_input=raw
    )
    data: bytes = message.SerializeToString()
    return data


def response() -> bytes:
    header = pb.InferResponseHeader(model_name="m", model_version=2, batch_size=1, id=2**64 - 1)
    header.output.add(name="Y").raw.batch_byte_size = 3
    status = pb.RequestStatus(code=1, server_id="s", request_id=2**63)
    message = pb.InferResponse(request_status=status, meta_data=header, raw_output=[b"abc"])
    data: bytes = message.SerializeToString()
    return data


def test_usual_messages_are_split() -> None:
    for version in (-1, 1, 2**63 - 1, -(2**63)):
        message = request(version)
        split = split_inference(message, REQUEST)
        assert split is not None
        assert grpc_pass_through.read_names(split) == ("m", version)
        assert check(message)
    split = split_inference(memoryview(response()), RESPONSE)
    assert split is not None
    assert (split.id, split.has_sizes((3,)), split.has_sizes((3, 3))) == (2**64 - 1, True, False)
    assert check(response())


@pytest.mark.parametrize("message", MESSAGES)
def test_vectors_are_split_as_scanned(message: bytes) -> None:
    check(message)


def test_the_vectors_have_usual_messages() -> None:
    assert sum(map(check, MESSAGES)) > len(MESSAGES) / 4


@given(st.sampled_from([*MESSAGES, request(), response()]), st.data())
def test_corrupted_messages(message: bytes, data: st.DataObject) -> None:
    """The scanning functions accept every message that is split, and give the same result."""
    check(data.draw(corrupted_bytes(message)))


HEADER = field_prefix(3, 2) + b"\x08\x01"
NAME = field_prefix(1, 1) + b"m"


@pytest.mark.parametrize(
    "message",
    [
        NAME + NAME + HEADER,
        NAME + HEADER + HEADER,
        NAME + varint_field(2, 1) + varint_field(2, 1) + HEADER,
        NAME,
        HEADER,
        b"",
        NAME + HEADER + field_prefix(4, 5) + b"1234",
        NAME + HEADER + b"\x22",
        NAME + HEADER + b"\x22" + b"\xff" * 12,
        NAME + HEADER + b"\x22" + b"\xff" * 9 + b"\x7f",
        NAME + HEADER + field_prefix(9, 1) + b"x",
        NAME + field_prefix(3, 4) + varint_field(5, 1) + varint_field(5, 2),
        NAME + field_prefix(3, 3) + b"\x2d\1\2",
        NAME + field_prefix(3, 2) + b"\x28\x80",
        NAME + field_prefix(3, 2) + b"\x00\x01",
        NAME + field_prefix(3, MAX_KEY_LENGTH + 3) + field_prefix(2, MAX_KEY_LENGTH) + b"x" * 2048,
        NAME + HEADER + b"\x22\0" * 5000,
    ],
)
def test_unusual_messages_are_not_split(message: bytes) -> None:
    assert split_inference(message, REQUEST) is None


@given(st.integers(1, 15), st.integers(0, 2**64 - 1))
def test_varint_fields(number: int, value: int) -> None:
    assert [*pb.RequestStatus.FromString(varint_field(4, value)).ListFields()] == (
        [(pb.RequestStatus.DESCRIPTOR.fields_by_number[4], value)] if value else []
    )
    assert varint_field(number, value)[0] == number << 3


def test_invalid_names_are_left_to_the_scanning_functions() -> None:
    for first in (field_prefix(1, 1) + b"\xff", field_prefix(1, 3000) + b"m" * 3000):
        split = split_inference(first + HEADER, REQUEST)
        assert split is not None
        if grpc_pass_through.read_names(split) is None:
            with pytest.raises((MalformedMessageError, GatewayError)):
                grpc_infer.read_names((first + HEADER,))

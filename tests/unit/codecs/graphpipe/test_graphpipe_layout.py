"""Written messages pass a strict verifier, and the generated code reads them back. Tensor data is
not copied."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from graphpipe_wire import read_request, read_response, verify
from hypothesis import given

from gateway_errors import raises_kind, refused
from infergate.codecs.graphpipe import flatbuffer_writer
from infergate.codecs.graphpipe.datatypes import TYPE_NUMBERS
from infergate.core.datatypes import Datatype
from infergate.core.errors import Kind
from infergate.core.tensor import Tensor, pack_bytes, unpack_bytes
from infergate.core.wire import join_parts
from infergate.testing import strategies

SUPPORTED_DATATYPES = frozenset(TYPE_NUMBERS)


def request_bytes(config: bytes, tensors: Sequence[Tensor], outputs: Sequence[str] = ()) -> bytes:
    return bytes(join_parts(flatbuffer_writer.write_request(config, tensors, outputs)))


def response_bytes(*tensors: Tensor) -> bytes:
    return bytes(join_parts(flatbuffer_writer.write_response(tensors)))


def tensor_fields(tensor: Tensor) -> dict[str, Any]:
    is_bytes = tensor.datatype is Datatype.BYTES
    return {
        "type": TYPE_NUMBERS[tensor.datatype],
        "shape": list(tensor.shape),
        "data": b"" if is_bytes else bytes(tensor.data),
        "string_val": list(unpack_bytes(tensor.data)) if is_bytes else [],
    }


@given(
    strategies.texts(),
    strategies.tensor_lists(SUPPORTED_DATATYPES),
    strategies.tensor_lists(SUPPORTED_DATATYPES),
)
def test_requests(config: str, tensors: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    names = [tensor.name for tensor in outputs]
    data = request_bytes(config.encode(), tensors, names)
    expected = {
        "config": config.encode(),
        "input_names": [tensor.name.encode() for tensor in tensors],
        "input_tensors": [tensor_fields(tensor) for tensor in tensors],
        "output_names": [name.encode() for name in names],
    }
    assert verify(data, "Request") == {"req_type": 1, "req": expected}
    assert read_request(data) == expected


MIXED = [bytes([index % 7]) * (index % 11) for index in range(1000)]
STRING_LISTS = {
    "mixed lengths": MIXED,
    "empty": [b""] * 1000,
    "equal lengths": [b"%04d" % index for index in range(1000)],
    "integer average": [b"1", b"123"] * 500,  # although the lengths differ
    "one long": [*MIXED, b"x" * 100_000],
    "long": [bytes([index % 251]) * (index + 100) for index in range(300)],
}


@pytest.mark.parametrize("strings", STRING_LISTS.values(), ids=STRING_LISTS)
def test_many_strings(strings: list[bytes]) -> None:
    tensor = Tensor("x", Datatype.BYTES, (len(strings),), pack_bytes(strings))
    data = request_bytes(b"", [tensor])
    assert verify(data, "Request")["req"]["input_tensors"] == [tensor_fields(tensor)]
    assert read_request(data)["input_tensors"] == [tensor_fields(tensor)]


@given(strategies.tensor_lists(SUPPORTED_DATATYPES))
def test_responses(tensors: tuple[Tensor, ...]) -> None:
    data = response_bytes(*tensors)
    expected = {"output_tensors": [tensor_fields(tensor) for tensor in tensors], "errors": []}
    assert verify(data, "InferResponse") == expected
    assert read_response(data) == expected


def test_an_empty_message_has_every_vector() -> None:
    response = verify(response_bytes(), "InferResponse")
    assert response == {"output_tensors": [], "errors": []}
    request = verify(request_bytes(b"", []), "Request")["req"]
    assert request == {"config": b"", "input_names": [], "input_tensors": [], "output_names": []}


def test_data_is_a_separate_aligned_part() -> None:
    sizes = (1, 7, 8, 12, 300)
    tensors = [Tensor(f"t{n}", Datatype.UINT8, (n,), bytes(range(n % 256)) * 1) for n in sizes[:4]]
    tensors.append(Tensor("big", Datatype.UINT8, (300,), memoryview(bytes(300))))
    parts = flatbuffer_writer.write_response(tensors)
    offset = 0
    names = []
    for part in parts:
        for tensor in tensors:
            if part is tensor.data:
                names.append(tensor.name)
                assert offset % 8 == 0
        offset += len(part)
    assert names == [tensor.name for tensor in tensors]


def test_a_tensor_used_twice_is_written_once() -> None:
    tensor = Tensor("x", Datatype.FP32, (2,), b"12345678")
    data = response_bytes(tensor, tensor)
    assert data.count(b"12345678") == 1
    tensors = verify(data, "InferResponse")["output_tensors"]
    assert tensors == [tensor_fields(tensor)] * 2


@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.BF16])
def test_datatypes_that_graphpipe_does_not_support(datatype: Datatype) -> None:
    tensor = Tensor("flags", datatype, (0,), b"")
    for error in (refused(response_bytes, tensor), refused(request_bytes, b"", [tensor])):
        assert error.kind is Kind.UNSUPPORTED
        assert error.public.startswith(f"tensor 'flags' is {datatype.value}, which GraphPipe")


def test_message_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = Tensor("x", Datatype.UINT8, (64,), bytes(64))
    size = len(response_bytes(tensor))
    monkeypatch.setattr(flatbuffer_writer, "MAX_MESSAGE_BYTES", size)
    response_bytes(tensor)
    monkeypatch.setattr(flatbuffer_writer, "MAX_MESSAGE_BYTES", size - 1)
    with raises_kind(Kind.TOO_LARGE, match=f"exceeds {size - 1} bytes"):
        response_bytes(tensor)


@pytest.mark.parametrize("length", range(9))
def test_strings_end_in_nul(length: int) -> None:
    text = bytes(range(1, length + 1))
    tensor = Tensor("s", Datatype.BYTES, (2,), pack_bytes([text, text]))
    data = response_bytes(tensor)
    (table,) = verify(data, "InferResponse")["output_tensors"]
    assert table["string_val"] == [text, text]
    assert data.count(struct.pack("<I", length) + text + b"\0") == 2 or length == 0


def test_names_that_are_not_utf8() -> None:
    tensor = Tensor("a\ud800", Datatype.UINT8, (0,), b"")
    request = verify(request_bytes(b"", [tensor], ["\udfff"]), "Request")["req"]
    assert (request["input_names"], request["output_names"]) == ([b"a?"], [b"?"])

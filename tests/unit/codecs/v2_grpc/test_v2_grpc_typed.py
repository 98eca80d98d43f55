"""The reader of typed contents agrees with the protobuf runtime, and limits the cost of messages
that are small but expensive to read."""

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway_errors import raises_kind
from infergate.codecs.protos import varints
from infergate.codecs.protos.wire_scanner import (
    FieldBudget,
    MalformedMessageError,
    field_prefix,
    scan_fields,
    string_field,
)
from infergate.codecs.v2_grpc import PLUGIN, infer_request, typed_contents
from infergate.codecs.v2_grpc.head_limits import MAX_FIELDS, MAX_HEAD_BYTES
from infergate.core import tensor
from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS, MIB
from infergate.core.messages import InferRequest
from infergate.core.tensor import Tensor, pack_bytes
from infergate.core.wire import RpcRequest, RpcResponse
from traced_memory import peak_bytes

CODEC = PLUGIN.create({})
INFER = "/inference.GRPCInferenceService/ModelInfer"
FORMS = {datatype: form for datatype, form in typed_contents.TYPED_FIELDS.items() if form.dtype}


def message(field: bytes, *, shape: int = 1, datatype: str = "INT64") -> bytes:
    """Return a request whose one input has ``field`` besides name, datatype and shape."""
    input_tensor = pb.ModelInferRequest.InferInputTensor(name="X", datatype=datatype, shape=[shape])
    body = input_tensor.SerializeToString() + field
    return string_field(1, "m") + field_prefix(5, len(body)) + body


def contents_field(contents: bytes) -> bytes:
    return field_prefix(5, len(contents)) + contents


def parse(data: bytes) -> Tensor:
    operation = CODEC.parse_request(RpcRequest(INFER, (data,)), DEFAULT_LIMITS).operation
    return operation.inputs[0]


def assert_refused(data: bytes, *mentions: str, kind: Kind = Kind.BAD_REQUEST) -> None:
    """Check that the parser and the validation report the same error."""
    wire = RpcRequest(INFER, (data,))
    with pytest.raises(GatewayError) as invalid:
        CODEC.validate(wire, DEFAULT_LIMITS)
    with pytest.raises(GatewayError) as caught:
        CODEC.parse_request(wire, DEFAULT_LIMITS)
    assert (invalid.value.kind, invalid.value.public) == (kind, caught.value.public)
    assert caught.value.kind is kind
    for mention in mentions:
        assert mention in caught.value.public


# ---- limits before conversion


@pytest.mark.parametrize(
    ("contents", "datatype", "expected"),
    [
        (b"\x42\x00" * 300_000, "BYTES", "the data holds more"),
        (field_prefix(3, 600_000) + b"\1" * 600_000, "INT64", "int64_contents holds 600000"),
        (field_prefix(5, 600_000) + b"\x81\1" * 300_000, "UINT64", "uint64_contents holds 300000"),
        (field_prefix(1, 600_000) + b"\1" * 600_000, "BOOL", "bool_contents holds 600000"),
    ],
    ids=["bytes", "ints", "long-ints", "bools"],
)
def test_more_elements_than_the_shape_has_are_not_converted(
    contents: bytes, datatype: str, expected: str
) -> None:
    data = message(contents_field(contents), datatype=datatype)
    # elements are counted with a mask, which takes memory
    assert peak_bytes(lambda: assert_refused(data, "'X'", expected)) < 2.5 * len(data)


@pytest.mark.parametrize(
    ("contents", "datatype"),
    [(field_prefix(6, 3) + bytes(3), "FP32"), (b"\x42\0" + field_prefix(8, 3) + b"ab", "BYTES")],
)
def test_the_error_for_a_truncated_element_names_the_tensor(contents: bytes, datatype: str) -> None:
    data = message(contents_field(contents), datatype=datatype, shape=2)
    assert_refused(data, "tensor 'X': ", "is cut short")


def test_the_protobuf_runtime_never_sees_typed_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    runtime = infer_request.ModelInferRequest

    class RecordingMessage:
        @staticmethod
        def FromString(data: bytes) -> Any:  # noqa: N802 - protobuf's name
            lengths.append(len(data))
            return runtime.FromString(data)

    monkeypatch.setattr(infer_request, "ModelInferRequest", RecordingMessage)
    contents = field_prefix(6, 400_000) + bytes(400_000)
    tensor_data = parse(message(contents_field(contents), shape=100_000, datatype="FP32")).data
    assert len(tensor_data) == 400_000
    assert lengths
    assert max(lengths) < 100


def test_typed_floats_are_not_copied() -> None:
    data = message(contents_field(field_prefix(6, 8) + bytes(8)), shape=2, datatype="FP32")
    view = parse(data).data
    assert view.obj is data


TOO_MANY_FIELDS = MAX_FIELDS + 1


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "data",
    [
        message(b"\x22\x00" * TOO_MANY_FIELDS),
        message(b"\x0a\x00" * TOO_MANY_FIELDS),
        message(b"\x18\x01" * TOO_MANY_FIELDS),
        message(b"\x78\x00" * TOO_MANY_FIELDS),
        message(b"\x2a\x00" * TOO_MANY_FIELDS),
        message(contents_field(b"\x18\x01" * TOO_MANY_FIELDS)),
        message(contents_field(b"\x78\x00" * TOO_MANY_FIELDS)),
        message(contents_field(b"\x78\x00" * TOO_MANY_FIELDS), datatype="BYTES"),
        message(b"") + field_prefix(6, 2 * TOO_MANY_FIELDS) + b"\x12\x00" * TOO_MANY_FIELDS,
        message(b"\x22\x00" * (TOO_MANY_FIELDS // 2))
        + field_prefix(6, TOO_MANY_FIELDS + 1)
        + b"\x12\x00" * (TOO_MANY_FIELDS // 2 + 1),
    ],
    ids=[
        "parameters",
        "names",
        "dimensions",
        "unknown",
        "contents",
        "elements",
        "unknown-in-contents",
        "unknown-in-bytes",
        "parameters-of-an-output",
        "inputs-and-outputs",
    ],
)
def test_fields_inside_fields_are_counted_over_the_message(data: bytes) -> None:
    assert_refused(data, f"more than {MAX_FIELDS} nested fields")


def test_many_dimensions_never_reach_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_request, "ModelInferRequest", None)
    assert_refused(message(field_prefix(3, 641) + b"\1" * 641), "tensor 0 has over 64 dimensions")


def test_names_shapes_and_parameters_are_limited_but_not_tensors() -> None:
    request = pb.ModelInferRequest(model_name="m")
    request.parameters["p"].string_param = "x" * (MAX_HEAD_BYTES + 1)
    assert_refused(request.SerializeToString(), str(MAX_HEAD_BYTES), kind=Kind.TOO_LARGE)
    size = MAX_HEAD_BYTES + MIB
    contents = field_prefix(6, size) + bytes(size)
    tensor_data = parse(message(contents_field(contents), shape=size // 4, datatype="FP32")).data
    assert len(tensor_data) == size


@pytest.mark.parametrize("raw", [False, True])
def test_bytes_elements_are_limited_over_all_tensors(
    raw: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor, "MAX_BYTES_ELEMENTS", 10)
    request = pb.ModelInferRequest(model_name="m")
    for name in "XYZ":
        input_tensor = request.inputs.add(name=name, datatype="BYTES", shape=[5])
        if raw:
            request.raw_input_contents.append(pack_bytes([b""] * 5))
        else:
            input_tensor.contents.bytes_contents.extend([b""] * 5)
    assert_refused(request.SerializeToString(), "'Z'", "10", kind=Kind.TOO_LARGE)


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata", "ServerLive", "RepositoryIndex"])
def test_requests_other_than_inferences_have_a_size_limit(method: str) -> None:
    wire = RpcRequest(f"/inference.GRPCInferenceService/{method}", (b"\x7a\x00" * 40_000,))
    for read_request in (CODEC.summarize, lambda wire: CODEC.parse_request(wire, DEFAULT_LIMITS)):
        with raises_kind(Kind.TOO_LARGE):
            read_request(wire)


def test_a_response_with_more_elements_than_the_shape_is_refused() -> None:
    body = string_field(1, "Y") + string_field(2, "INT64") + b"\x18\x01"
    body += contents_field(field_prefix(3, 400_000) + b"\1" * 400_000)
    wire = RpcResponse((field_prefix(5, len(body)) + body,))

    def check() -> None:
        with raises_kind(Kind.BACKEND_GARBAGE, match=r"'Y'.* holds 400000"):
            CODEC.parse_response(wire, InferRequest("m"), DEFAULT_LIMITS)

    assert peak_bytes(check) < 2.5 * len(body)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("datatype", "element"),
    [
        ("BYTES", b"B\0"),
        *[(name, tail) for name in ("BOOL", "INT8", "INT64") for tail in (b"\1", b"\xff\0\1")],
    ],
)
def test_typed_elements_take_up_to_eight_times_their_bytes(datatype: str, element: bytes) -> None:
    count = 1 << 17
    elements = element * count
    if datatype != "BYTES":
        count = sum(byte < 0x80 for byte in elements)
        elements = field_prefix(FORMS[Datatype(datatype)].number, len(elements)) + elements
    data = message(contents_field(elements), shape=count, datatype=datatype)

    def check() -> None:
        assert parse(data)

    assert peak_bytes(check) < 8.5 * len(data) + MIB


# ---- agreement with the protobuf runtime


@given(st.data(), st.sampled_from(sorted(FORMS, key=lambda datatype: datatype.value)))
def test_integers_in_every_encoding(data: st.DataObject, datatype: Datatype) -> None:
    form = FORMS[datatype]
    bounds = {"<i4": (-(2**31), 2**31 - 1), "<i8": (-(2**63), 2**63 - 1), "<u4": (0, 2**32 - 1)}
    low, high = bounds.get(form.dtype, (0, 2**64 - 1))
    values = st.booleans() if datatype is Datatype.BOOL else st.integers(low, high)
    lists = data.draw(st.lists(st.lists(values, max_size=5), max_size=4))
    pieces = []
    for part in lists:
        packed = pb.InferTensorContents(**{form.field: part}).SerializeToString()
        pieces.append(
            contents_field(packed if data.draw(st.booleans()) else unpacked(form.number, packed))
        )
    expected = [value for part in lists for value in part]
    wire = message(b"".join(pieces), shape=len(expected), datatype=datatype.value)
    contents = pb.ModelInferRequest.FromString(wire).inputs[0].contents
    assert list(getattr(contents, form.field)) == expected
    array = np.array(expected, dtype=form.dtype).astype(NUMPY_DTYPES[datatype])
    if array.tolist() == expected:
        assert bytes(parse(wire).data) == array.tobytes()
    else:
        assert_refused(wire, f"out of range for {datatype.value}")


def unpacked(number: int, packed: bytes) -> bytes:
    """Encode each integer of the packed field as a field of its own."""
    if not packed:
        return b""
    body = packed[2:]
    ends = [0, *(index + 1 for index, byte in enumerate(body) if byte < 0x80)]
    return b"".join(bytes((number << 3,)) + body[a:b] for a, b in pairwise(ends))


@given(st.lists(st.lists(st.sampled_from((b"", b"a", b"b" * 127, b"c" * 128, b"d" * 300)))))
def test_bytes_in_any_pieces(lists: list[list[bytes]]) -> None:
    pieces = [
        contents_field(pb.InferTensorContents(bytes_contents=piece).SerializeToString())
        for piece in lists
    ]
    expected = [element for piece in lists for element in piece]
    wire = message(b"".join(pieces), shape=len(expected), datatype="BYTES")
    assert bytes(parse(wire).data) == pack_bytes(expected)


@pytest.mark.parametrize("count", [1, varints._SLICE, 3 * varints._SLICE + 1])
@pytest.mark.parametrize("largest", [1, 2**7, 2**21 + 5, 2**63, 2**64 - 1])
def test_long_lists_of_varints_are_read(count: int, largest: int) -> None:
    values = [(index * 7919) % largest if index % 3 else largest for index in range(count)]
    packed = pb.InferTensorContents(uint64_contents=values).SerializeToString()
    (field,) = scan_fields(packed, 1)
    encoded = packed[field.value_start :]
    assert varints.count(encoded) == count
    assert varints.read(encoded, count, "<u8").tolist() == values


FIELDS = st.sampled_from(
    (
        b"\x0a\x02\x80\x00",
        b"\x0a\x05\x80\x80\x80\x80\x10",
        b"\x12\x05\x85\x80\x80\x80\x10",
        b"\x1a\x0a" + b"\xff" * 9 + b"\x02",
        b"\x1a\x0b" + b"\xff" * 10 + b"\x01",
        b"\x1a\x01\x80",
        b"\x1a\x00",
        b"\x18\x05",
        b"\x1d\x05\x00\x00\x00",
        b"\x32\x05aaaaa",
        b"\x35" + struct.pack("<f", 0.5),
        b"\x32\x04" + struct.pack("<f", -0.0),
        b"\x39" + struct.pack("<d", 0.5),
        b"\x42\x00",
        b"\x42\x80\x00",
        b"\xc2\x00\x01z",
        b"\x42\x01x",
        b"\x40\x01",
        b"\x7a\x01x",
        b"\x42\x05x",
        b"\x42",
        b"\x1a",
    )
)


@given(
    st.one_of(st.lists(FIELDS, max_size=4).map(b"".join), st.binary(max_size=24)),
    st.sampled_from(sorted(typed_contents.TYPED_FIELDS, key=lambda datatype: datatype.value)),
)
@example(b"\x42\x80\x80\x80\x80\x80\x00", Datatype.BYTES)
def test_the_typed_reader_accepts_what_the_runtime_accepts(
    contents: bytes, datatype: Datatype
) -> None:
    form = typed_contents.TYPED_FIELDS[datatype]
    try:
        expected = pb.InferTensorContents.FromString(contents)
    except DecodeError:
        expected = None
    expected_values = list(getattr(expected, form.field)) if expected else []
    typed = typed_contents.TypedContents((memoryview(contents),), FieldBudget(100))
    try:
        has_elements = typed.has_elements()
        data = typed_contents.read_contents("X", datatype, len(expected_values), typed)
    except MalformedMessageError as error:
        # This reader rejects groups and six-byte lengths, as protobuf's other parsers do.
        message_text = str(error)
        assert expected is None or "wire type" in message_text or "at byte" in message_text
        return
    except GatewayError as error:
        if expected is None:
            return
        other_fields = [
            field.name for field, _ in expected.ListFields() if field.name != form.field
        ]
        assert other_fields or "out of range" in error.public  # noqa: PT017
        return
    if datatype is Datatype.BYTES and expected is None:
        return
    assert has_elements == bool(expected.ListFields())
    if datatype is Datatype.BYTES:
        assert bytes(data) == pack_bytes(expected_values)
    elif form.element == 0:
        assert np.frombuffer(data, dtype=NUMPY_DTYPES[datatype]).tolist() == expected_values
    else:
        letter = {4: "f", 8: "d"}[datatype.itemsize]
        assert bytes(data) == struct.pack(f"<{len(expected_values)}{letter}", *expected_values)

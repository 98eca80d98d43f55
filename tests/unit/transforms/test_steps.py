"""Tests the steps of transforms: results, errors, settings, metadata and memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway_errors import raises_kind
from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import ModelMetadata, RequestedOutput, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.transforms.images import DecodeImage
from infergate.transforms.numeric import Cast, Reshape, Scale, Transpose
from infergate.transforms.route_transforms import RouteTransforms, StepGroup
from infergate.transforms.scores import Argmax, Softmax, TopK
from infergate.transforms.step import Step
from infergate.transforms.structure import (
    Concatenate,
    Constant,
    Copy,
    Default,
    Drop,
    Rename,
    Select,
    Split,
)
from infergate.transforms.text import Base64Decode, Base64Encode, TextDecode, TextEncode

Array = npt.NDArray[Any]
RNG = np.random.default_rng(7)
SCORES = RNG.normal(size=(3, 5)).astype(np.float32)


def fp32(array: Any, name: str = "x") -> Tensor:
    return tensor_from_array(name, Datatype.FP32, np.asarray(array, np.float32))


def texts(*elements: bytes, name: str = "x") -> Tensor:
    return Tensor(name, Datatype.BYTES, (len(elements),), pack_bytes(elements))


def input_group(step: Step) -> StepGroup:
    (group,) = RouteTransforms([step], (), batch=step.batch).input_groups
    return group


def run(step: Step, *tensors: Tensor) -> dict[str, Tensor]:
    """Measure and apply ``step`` as a step of the outputs."""
    (group,) = RouteTransforms((), [step], batch=step.batch).output_groups
    group.measure(tensors)
    return {tensor.name: tensor for tensor in group.run(tensors)}


def output(step: Step, *tensors: Tensor) -> Array:
    (result,) = run(step, *tensors).values()
    return result.numpy()


def failure(step: Step, *tensors: Tensor) -> str:
    group = input_group(step)
    with raises_kind(Kind.BAD_REQUEST) as caught:
        _ = group.measure(tensors), group.run(tensors)
    return caught.value.public


# ---- numeric steps


@pytest.mark.parametrize("to", [each for each in Datatype if each is not Datatype.BYTES])
@pytest.mark.parametrize("source", [each for each in Datatype if each is not Datatype.BYTES])
def test_cast_converts_as_numpy_does(source: Datatype, to: Datatype) -> None:
    tensor = tensor_from_array("x", source, np.array([0, 1, 2.75, 100]))
    (result,) = run(Cast(tensor="x", from_=source, to=to), tensor).values()
    assert result.datatype is to
    values = tensor.numpy()
    target = np.float32 if to is Datatype.BF16 else NUMPY_DTYPES[to]
    expected = values.astype(bool) if to is Datatype.BOOL else values.astype(target)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("value", [256, -1, np.nan, np.inf, -np.inf, 2.0**63])
@pytest.mark.parametrize("to", [Datatype.UINT8, Datatype.INT64])
def test_a_value_that_an_integer_cannot_hold_is_an_error(value: float, to: Datatype) -> None:
    step, tensor = Cast(tensor="x", to=to), fp32([[1, value]])
    if to is Datatype.INT64 and abs(value) < 1000:
        assert output(step, tensor).tolist() == [[1, int(value)]]
    else:
        assert f"input 'x': {to.value} cannot hold" in failure(step, tensor)


def test_the_limits_of_integers_are_exact() -> None:
    for to in INTEGERS:
        info = np.iinfo(NUMPY_DTYPES[to])
        limits = np.array([info.min, info.max], NUMPY_DTYPES[to])
        result = output(Cast(tensor="x", to=to), tensor_from_array("x", to, limits))
        assert result.tolist() == [info.min, info.max]
    largest = tensor_from_array("x", Datatype.UINT64, np.array([2**63], np.uint64))
    error = failure(Cast(tensor="x", to=Datatype.INT64), largest)
    assert "cannot hold 9223372036854775808" in error


@pytest.mark.parametrize(
    ("value", "to"), [(1e300, Datatype.FP32), (1e6, Datatype.FP16), (3.4e38, Datatype.FP16)]
)
def test_a_finite_value_never_becomes_infinite(value: float, to: Datatype) -> None:
    tensor = tensor_from_array("x", Datatype.FP64, np.array([np.inf, np.nan, value]))
    assert f"{to.value} cannot hold" in failure(Cast(tensor="x", to=to), tensor)
    valid = tensor_from_array("x", Datatype.FP64, np.array([np.inf, np.nan, -np.inf]))
    np.testing.assert_array_equal(output(Cast(tensor="x", to=to), valid), [np.inf, np.nan, -np.inf])


def test_cast_checks_the_datatype_of_clients() -> None:
    step = Cast(tensor="x", from_=Datatype.UINT8, to=Datatype.FP32)
    assert failure(step, fp32([1])) == "input 'x': expected UINT8, got FP32"
    assert "BYTES cannot be cast" in failure(Cast(tensor="x", to=Datatype.FP32), texts(b"1"))


def test_scale_multiplies_then_adds_for_each_channel() -> None:
    array = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    factor, offset = (0.5, 2.0, 3.0), (1.0, -1.0, 0.0)
    result = output(Scale(tensor="x", factor=factor, offset=offset, axis=1), fp32(array))
    columns = [np.array(numbers, np.float32)[:, np.newaxis] for numbers in (factor, offset)]
    np.testing.assert_array_equal(result, array * columns[0] + columns[1])
    result = output(Scale(tensor="x", factor=(1 / 255,)), fp32(array))
    np.testing.assert_array_equal(result, array * np.float32(1 / 255))
    assert "3 numbers are configured" in failure(Scale(tensor="x", factor=factor), fp32(array))
    integers = tensor_from_array("x", Datatype.UINT8, np.zeros((1, 2)))
    assert "cast to a float first" in failure(Scale(tensor="x"), integers)
    assert "is the batch" in failure(Scale(tensor="x", factor=(1.0, 2.0), axis=0), fp32(array))


def test_transpose_and_reshape_keep_the_batch() -> None:
    array = RNG.normal(size=(2, 4, 5, 3)).astype(np.float32)
    result = output(Transpose(tensor="x", order=(0, 3, 1, 2)), fp32(array))
    np.testing.assert_array_equal(result, array.transpose(0, 3, 1, 2))
    result = output(Reshape(tensor="x", from_=(4, -1, 3), to=(-1, 3)), fp32(array))
    np.testing.assert_array_equal(result, array.reshape(2, 20, 3))
    result = output(Reshape(tensor="x", to=(6, 20), batch=False), fp32(array))
    np.testing.assert_array_equal(result, array.reshape(6, 20))
    steps: dict[str, Step] = {
        "expected shape [2, 60]": Reshape(tensor="x", from_=(60,), to=(3, 20)),
        "cannot become [7, -1]": Reshape(tensor="x", to=(7, -1)),
        "cannot become [61]": Reshape(tensor="x", to=(61,)),
        "'order' has 3": Transpose(tensor="x", order=(0, 2, 1)),
    }
    for error, step in steps.items():
        assert error in failure(step, fp32(array))


def test_bits_of_bf16_are_moved_unchanged() -> None:
    bits = np.array([[0x7F81, 0x3F80, 0xFFFF, 1]], "<u2")  # 0x7F81 is a signalling NaN
    tensor = Tensor("x", Datatype.BF16, (1, 4), bits.tobytes())
    flipped = run(Transpose(tensor="x", order=(0, 1)), tensor)["x"]
    parts = run(Split(tensor="x", to={"a": 1, "b": 3}), flipped)
    joined = run(Concatenate(tensors=("a", "b"), to="x"), *parts.values())["x"]
    assert bytes(joined.data) == bits.tobytes()


# ---- scores


def test_softmax_is_stable() -> None:
    expected = np.exp(SCORES) / np.exp(SCORES).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(output(Softmax(tensor="x"), fp32(SCORES)), expected, rtol=1e-6)
    np.testing.assert_allclose(output(Softmax(tensor="x"), fp32([[1000, 1000]])), [[0.5, 0.5]])
    wide = tensor_from_array("x", Datatype.FP64, SCORES.astype(np.float64))
    assert run(Softmax(tensor="x"), wide)["x"].datatype is Datatype.FP64
    assert "is the batch" in failure(Softmax(tensor="x"), fp32([1, 2]))


def test_argmax_and_top_k_rank_as_numpy_does() -> None:
    result = run(Argmax(tensor="x", to="class"), fp32(SCORES))["class"]
    assert (result.datatype, result.shape) == (Datatype.INT64, (3,))
    np.testing.assert_array_equal(result.numpy(), SCORES.argmax(-1))
    step = TopK(tensor="x", k=2, values="v", indices="i", labels="l", classes=tuple("abcd"))
    outputs = run(step, fp32(SCORES))
    order = np.argsort(-SCORES, axis=-1, kind="stable")[:, :2]
    np.testing.assert_array_equal(outputs["i"].numpy(), order)
    np.testing.assert_array_equal(outputs["v"].numpy(), np.take_along_axis(SCORES, order, -1))
    labels = [["abcd"[index].encode() if index < 4 else b"" for index in row] for row in order]
    assert outputs["l"].numpy().tolist() == labels
    assert run(TopK(tensor="x", k=9, values="v"), fp32(SCORES))["v"].shape == (3, 5)


def test_equal_scores_keep_their_order_and_nan_comes_last() -> None:
    scores = fp32([[np.nan, 1, 2, 2, -np.inf]])
    assert output(TopK(tensor="x", k=5, indices="i"), scores).tolist() == [[2, 3, 1, 4, 0]]
    unsigned = tensor_from_array("x", Datatype.UINT8, np.array([[0, 255, 7]]))
    assert output(TopK(tensor="x", k=3, values="v"), unsigned).tolist() == [[255, 7, 0]]


# ---- names and parts


def test_tensors_are_renamed_copied_selected_and_dropped() -> None:
    a, b = fp32([1], "a"), fp32([2], "b")
    swapped = run(Rename(names={"a": "b", "b": "a"}), a, b)
    values = [(tensor.name, tensor.numpy().tolist()) for tensor in swapped.values()]
    assert values == [("b", [1]), ("a", [2])]
    assert [*run(Copy(tensor="a", to="c"), a, b)] == ["a", "c", "b"]
    assert [*run(Select(names=("b", "a")), a, b)] == ["b", "a"]
    assert [*run(Drop(names=("a",)), a, b)] == ["b"]
    assert "two tensors with this name" in failure(Rename(names={"a": "b"}), a, b)
    assert "two tensors with this name" in failure(Copy(tensor="a", to="b"), a, b)


def test_constants_are_repeated_for_the_batch() -> None:
    step = Constant(tensor="t", datatype=Datatype.FP32, shape=(2,), value=(0.25, 2.0))
    result = run(step, fp32(np.zeros((3, 1))))
    assert result["t"].numpy().tolist() == [[0.25, 2.0]] * 3
    assert run(step)["t"].shape == (1, 2)
    words = Constant(tensor="t", datatype=Datatype.BYTES, value=("é",))
    assert run(words, fp32([1, 2]))["t"].numpy().tolist() == ["é".encode()] * 2
    filled = Constant(tensor="t", datatype=Datatype.INT8, shape=(2, 2), value=(7,), batch=False)
    assert run(filled, fp32([1, 2]))["t"].numpy().tolist() == [[7, 7], [7, 7]]
    assert failure(step, fp32([[1]], "t")) == "input 't': the route sets this input; do not send it"


def test_an_input_of_the_client_replaces_the_default() -> None:
    step = Default(tensor="x", datatype=Datatype.FP32, value=(5,))
    assert run(step, fp32([1, 2]))["x"].numpy().tolist() == [1, 2]
    assert run(step, fp32([1, 2], "y"))["x"].numpy().tolist() == [5, 5]


def test_a_huge_batch_of_empty_tensors_is_measured_without_allocating() -> None:
    empty = Tensor("x", Datatype.FP32, (2**40, 0), b"")
    for datatype, value in ((Datatype.FP64, 1), (Datatype.BYTES, "abc")):
        step = Constant(tensor="t", datatype=datatype, value=(value,))
        assert input_group(step).measure([empty]).result >= 2**42


def test_concatenate_and_split_are_inverse() -> None:
    first, second = RNG.normal(size=(2, 1, 3)), RNG.normal(size=(2, 4, 3))
    join = Concatenate(tensors=("a", "b"), to="x", axis=1)
    joined = run(join, fp32(first, "a"), fp32(second, "b"))["x"]
    np.testing.assert_array_equal(joined.numpy(), np.float32(np.concatenate([first, second], 1)))
    parts = run(Split(tensor="x", to={"a": 1, "b": 4}, axis=1), joined)
    np.testing.assert_array_equal(parts["b"].numpy(), np.float32(second))
    error = failure(Split(tensor="x", to={"a": 4}, axis=1), joined)
    assert "the sizes in 'to' add up to 4" in error
    step = Concatenate(tensors=("a", "b"), to="x")
    assert "expected shape" in failure(step, fp32(first, "a"), fp32(second, "b"))
    integers = tensor_from_array("b", Datatype.INT8, np.zeros((2, 1, 3)))
    assert "input 'b': expected FP32" in failure(step, fp32(first, "a"), integers)
    assert failure(step, fp32(first, "a")) == "input 'b': there is no such tensor"


# ---- text


def test_base64_is_decoded_and_encoded() -> None:
    encoded = run(Base64Encode(tensor="x"), texts(b"", b"a", b"\xff" * 100))["x"]
    assert output(Base64Decode(tensor="x"), encoded).tolist() == [b"", b"a", b"\xff" * 100]
    assert output(Base64Decode(tensor="x"), texts(b"YW\r\nJj\n")).tolist() == [b"abc"]
    error = failure(Base64Decode(tensor="x"), texts(b"YQ==", b"!"))
    assert error == "input 'x': element 1 is not Base64"


@pytest.mark.parametrize("datatype", [Datatype.UINT8, Datatype.INT32])
def test_text_is_encoded_as_numbers_and_decoded(datatype: Datatype) -> None:
    words = "héllo".encode(), b"", b"12345678"
    numbers = run(TextEncode(tensor="x", length=8, datatype=datatype, pad=3), texts(*words))["x"]
    assert (numbers.datatype, numbers.shape) == (datatype, (3, 8))
    assert numbers.numpy()[0].tolist() == [*words[0], 3, 3]
    decoded = output(TextDecode(tensor="x", length=8, datatype=datatype, pad=3), numbers)
    assert decoded.tolist() == list(words)


def test_text_that_does_not_fit_is_an_error_or_truncated() -> None:
    step = TextEncode(tensor="x", length=2)
    assert "element 1 has 3 bytes; at most 2 fit" in failure(step, texts(b"", b"abc"))
    step = TextEncode(tensor="x", length=2, too_long="truncate")
    assert output(step, texts(b"abc")).tolist() == [[97, 98]]
    wide = tensor_from_array("x", Datatype.INT32, np.array([[97, 256]]))
    decode_step = TextDecode(tensor="x", length=2, datatype=Datatype.INT32)
    assert "row 0 has values that are not bytes" in failure(decode_step, wide)


def test_long_rows_for_many_texts_are_measured_without_allocating() -> None:
    group = input_group(TextEncode(tensor="x", length=10**6))
    assert group.measure([texts(*[b""] * 10_000)]).result == 10**10


# ---- settings


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (Cast(tensor="x", to=Datatype.FP32), "'from' is required"),
        (Cast(tensor="x", to=Datatype.BYTES, from_=Datatype.INT8), "BYTES cannot be cast"),
        (Scale(tensor="x", factor=(1, 2), offset=(1, 2, 3)), "different lengths"),
        (Transpose(tensor="x", order=(0, 2)), "each number from 0 to 1 once"),
        (Transpose(tensor="x", order=(1, 0)), "begin with 0"),
        (Reshape(tensor="x", from_=(4,), to=(-1, -1)), "several dimensions of -1"),
        (Reshape(tensor="x", to=(4,)), "'from' is required"),
        (Rename(names={"a": "c", "b": "c"}), "same name"),
        (TopK(tensor="x", k=1), "at least one of"),
        (TopK(tensor="x", k=1, values="a", indices="a"), "same name"),
        (TopK(tensor="x", k=1, labels="a"), "require each other"),
        (TextEncode(tensor="x", length=1, datatype=Datatype.FP32), "must be UINT8"),
        (TextDecode(tensor="x", length=1, pad=256), "cannot hold 'pad'"),
        (Constant(tensor="x", datatype=Datatype.INT8, shape=(-1,), value=(1,)), "variable"),
        (Constant(tensor="x", datatype=Datatype.INT8, shape=(3,), value=(1, 2)), "has 3"),
        (Constant(tensor="x", datatype=Datatype.INT8, value=(300,)), "not INT8"),
        (Constant(tensor="x", datatype=Datatype.INT8, value=(1.5,)), "not INT8"),
        (Constant(tensor="x", datatype=Datatype.FP32, value=("1",)), "not FP32"),
        (Constant(tensor="x", datatype=Datatype.BYTES, value=(1,)), "not BYTES"),
        (DecodeImage(tensor="x", datatype=Datatype.INT8), "must be UINT8"),
        (DecodeImage(tensor="x", size=(1,)), "height and the width"),
        (DecodeImage(tensor="x", resize="crop"), "require 'size'"),
        (DecodeImage(tensor="x", size=(8, 8), shorter_side=9), "requires 'resize: crop'"),
        (DecodeImage(tensor="x", size=(8, 8), shorter_side=7, resize="crop"), "at least 8"),
        (DecodeImage(tensor="x", scale=(0.5,)), "require 'datatype: FP32'"),
        (DecodeImage(tensor="x", datatype=Datatype.FP32, mean=(1, 2)), "1 or 3 numbers"),
        (DecodeImage(tensor="x", datatype=Datatype.FP32, std=(0.0,)), "must not be 0"),
    ],
)
def test_find_problem_describes_wrong_settings(step: Step, problem: str) -> None:
    assert problem in step.find_problem(is_input=True)


# ---- metadata and requested outputs

MODEL = ModelMetadata(
    "m",
    inputs=(TensorMetadata("data", "FP32", (-1, 3, 8, 8), description="kept"),),
    outputs=(TensorMetadata("logits", "FP32", (-1, 10)), TensorMetadata("odd", "TYPE_NEW", (1,))),
)


def test_metadata_has_the_image_and_the_classes_of_the_steps() -> None:
    image = DecodeImage(tensor="photo", size=(8, 8), layout="NCHW", datatype=Datatype.FP32)
    transforms = RouteTransforms(
        [image, Rename(names={"photo": "data"})],
        [Softmax(tensor="logits"), TopK(tensor="logits", k=3, indices="classes")],
        batch=True,
    )
    metadata = transforms.transform_metadata(MODEL)
    assert metadata.inputs == (TensorMetadata("photo", "BYTES", (-1,)),)
    assert metadata.outputs == (TensorMetadata("classes", "INT64", (-1, 3)), MODEL.outputs[1])
    assert transforms.transform_metadata(MODEL) is metadata
    unchanged = RouteTransforms((), (), batch=True).transform_metadata(MODEL)
    assert unchanged.inputs[0] is MODEL.inputs[0]


@pytest.mark.parametrize(
    ("inputs", "outputs", "problem"),
    [
        ([Cast(tensor="x", from_=Datatype.UINT8, to=Datatype.FP32)], [], "input 'x'"),
        ([Cast(tensor="data", from_=Datatype.UINT8, to=Datatype.FP64)], [], "expected FP64"),
        ([Reshape(tensor="data", from_=(192,), to=(3, 8, 9))], [], "expected shape"),
        ([Reshape(tensor="data", from_=(100,), to=(3, 8, 8))], [], "cannot become"),
        ([DecodeImage(tensor="data", datatype=Datatype.FP32, size=(8, 8))], [], "expected shape"),
        ([], [Softmax(tensor="x")], "output 'x'"),
        ([], [Argmax(tensor="odd")], "TYPE_NEW cannot be ranked"),
    ],
)
def test_steps_that_do_not_fit_the_model_are_an_error(
    inputs: list[Step], outputs: list[Step], problem: str
) -> None:
    transforms = RouteTransforms(inputs, outputs, batch=True)
    with raises_kind(Kind.BACKEND_GARBAGE, problem):
        transforms.transform_metadata(MODEL)
    mismatch = transforms.find_mismatch(MODEL)
    assert mismatch is not None
    assert mismatch[:2] == (bool(inputs), 0)


def test_dropping_an_unknown_output_is_a_mismatch_of_the_declared_model() -> None:
    for step in (Drop(names=("x",)), Select(names=("x",))):
        mismatch = RouteTransforms((), [step], batch=True).find_mismatch(MODEL)
        assert mismatch == (False, 0, "output 'x': there is no such tensor")


def test_requested_outputs_are_mapped_to_outputs_of_the_backend() -> None:
    rank = TopK(tensor="b", k=1, values="v", indices="i")
    steps = [Rename(names={"a": "b"}), rank, Drop(names=("debug",))]
    transforms = RouteTransforms((), steps, batch=True)
    assert transforms.backend_outputs([]) == ()
    requested = [RequestedOutput("v", {"p": 1}), RequestedOutput("i")]
    assert transforms.backend_outputs(requested) == (RequestedOutput("a"),)
    assert transforms.backend_outputs(requested[:1]) == (RequestedOutput("a", {"p": 1}),)
    for hidden in ("a", "b", "debug"):
        with pytest.raises(GatewayError, match=f"output '{hidden}': the model has no such output"):
            transforms.backend_outputs([RequestedOutput(hidden)])


def test_two_inputs_of_one_name_are_refused() -> None:
    error = failure(Copy(tensor="x", to="y"), fp32([1]), fp32([2]))
    assert error == "input 'x': there are two tensors with this name"


@pytest.mark.parametrize("datatype", [Datatype.FP64, Datatype.INT32])
def test_a_cast_to_bf16_rounds_once(datatype: Datatype) -> None:
    # Rounding to FP32 first would lose the last bit, and the tie would go to the even neighbor.
    value = 2.0**30 + 2.0**22 + 1
    source = tensor_from_array("x", datatype, np.array([[value]], NUMPY_DTYPES[datatype]))
    cast = Cast(tensor="x", from_=datatype, to=Datatype.BF16)
    assert output(cast, source).tolist() == [[2.0**30 + 2.0**23]]


@pytest.mark.parametrize("shape", [(2**62, 0), (0, 2**40, 2**40)])
def test_an_empty_tensor_that_numpy_cannot_represent_is_refused(shape: tuple[int, ...]) -> None:
    empty = Tensor("x", Datatype.FP32, shape, b"")
    cast = Cast(tensor="x", from_=Datatype.FP32, to=Datatype.INT8)
    assert "is too large" in failure(cast, empty)
    assert "is too large" in failure(Transpose(tensor="x", order=tuple(range(len(shape)))), empty)


def test_top_k_of_an_empty_tensor_takes_no_memory() -> None:
    empty = Tensor("x", Datatype.FP32, (2**40, 0), b"")
    result = run(TopK(tensor="x", k=2, values="v", indices="i"), empty)
    assert result["v"].shape == result["i"].shape == (2**40, 0)


def test_transposing_bytes_is_not_run_inline() -> None:
    group = input_group(Transpose(tensor="x", order=(0, 1)))
    many = Tensor("x", Datatype.BYTES, (20_000, 1), pack_bytes([b""] * 20_000))
    sizes = group.measure([many])
    assert sizes.is_interpreted
    assert not group.runs_inline(sizes)
    assert not group.measure([fp32(np.zeros((20_000, 1)))]).is_interpreted


@pytest.mark.parametrize(
    "step",
    [
        TopK(tensor="x", k=1, indices="i"),
        Softmax(tensor="x"),
        Scale(tensor="x", factor=(2.0,)),
        Cast(tensor="x", to=Datatype.BF16),
    ],
)
@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.FP64])
def test_the_memory_of_a_step_is_measured_before_it_runs(step: Step, datatype: Datatype) -> None:
    scores = np.linspace(0, 1, 1 << 18).reshape(1, -1).astype(np.float32)
    if datatype is not Datatype.BF16:
        scores = scores.astype(NUMPY_DTYPES[datatype])
    source = tensor_from_array("x", datatype, scores)
    group = input_group(step)
    sizes = group.measure([source])
    tracemalloc.start()
    group.run([source])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak + len(source.data) <= sizes.total

"""Classification of outputs: the order, text and labels of classes, shapes, and limits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.core.classification import MAX_CLASSES, class_count, classify
from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.errors import Kind
from infergate.core.messages import RequestedOutput
from infergate.core.tensor import Tensor, tensor_from_array


def texts(tensor: Tensor) -> Any:
    return tensor.numpy().tolist()


def scores_of(values: Any) -> Tensor:
    return tensor_from_array("SCORES", Datatype.FP32, np.array(values, np.float32))


def test_classes_are_sorted_and_formatted_as_in_triton() -> None:
    classes = classify(scores_of([0.1, 4.0, -2.5, 1e9]), 3)
    assert (classes.name, classes.datatype, classes.shape) == ("SCORES", Datatype.BYTES, (3,))
    assert texts(classes) == [b"1000000000.000000:3", b"4.000000:1", b"0.100000:0"]


@pytest.mark.parametrize(
    ("value", "single", "double"),
    [
        (0.7, "0.700000", "0.700000"),
        (0.27922037, "0.27922037", "0.27922037"),
        (1 / 3, "0.33333334", "0.3333333333333333"),
        (1e-20, "1e-20", "1e-20"),
    ],
)
def test_values_are_in_full_precision(value: float, single: str, double: str) -> None:
    """A value has six decimals, as in Triton, unless six decimals would change the number."""
    for datatype, text in ((Datatype.FP32, single), (Datatype.FP64, double)):
        scores = tensor_from_array("S", datatype, np.array([value], NUMPY_DTYPES[datatype]))
        assert texts(classify(scores, 1)) == [f"{text}:0".encode()]


def test_a_batch_is_ranked_row_by_row() -> None:
    scores = scores_of([[[1, 2], [3, 4]], [[8, 7], [6, 5]]])
    assert texts(classify(scores, 1, batch_rank=1)) == [[b"4.000000:3"], [b"8.000000:0"]]
    assert texts(classify(scores, 1)) == [b"8.000000:4"]


def test_labels_follow_the_index() -> None:
    classes = classify(scores_of([3, 2, 1, 0]), 4, labels=("cat", "", "dog"))
    assert texts(classes) == [b"3.000000:0:cat", b"2.000000:1", b"1.000000:2:dog", b"0.000000:3"]
    assert texts(classify(scores_of([1]), 1, labels=("né",))) == ["1.000000:0:né".encode()]


def test_equal_values_are_sorted_by_index_and_nan_is_last() -> None:
    classes = classify(scores_of([1, np.nan, 1, -np.inf, np.inf, np.nan, 1]), 99)
    indices = [int(text.split(b":")[1]) for text in texts(classes)]
    assert indices == [4, 0, 2, 6, 3, 1, 5]
    assert texts(classes)[::6] == [b"inf:4", b"nan:5"]


@pytest.mark.parametrize("datatype", sorted(INTEGERS, key=lambda d: d.value))
def test_extreme_integers_are_ordered_and_exact(datatype: Datatype) -> None:
    bounds = np.iinfo(NUMPY_DTYPES[datatype])  # type: ignore[type-var]
    values = np.array([bounds.min, 1, bounds.max, 0], NUMPY_DTYPES[datatype])
    tensor = tensor_from_array("t", datatype, values)
    first, second, *_, last = texts(classify(tensor, 4))
    assert first == f"{bounds.max}:2".encode()
    assert second == b"1:1"
    assert last == (f"{bounds.min}:0" if bounds.min else "0:3").encode()


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16, Datatype.FP64])
def test_fp16_bf16_and_fp64_values_are_ranked(datatype: Datatype) -> None:
    tensor = tensor_from_array("t", datatype, np.array([-0.5, 1.5], np.float32))
    assert texts(classify(tensor, 2)) == [b"1.500000:1", b"-0.500000:0"]


@given(st.lists(st.integers(-3, 3), max_size=30), st.integers(1, 40))
def test_classes_are_ranked_as_by_a_stable_sort(values: list[int], count: int) -> None:
    tensor = tensor_from_array("t", Datatype.INT8, np.array(values, np.int8))
    order = sorted(range(len(values)), key=lambda i: -values[i])[:count]
    assert texts(classify(tensor, count)) == [f"{values[i]}:{i}".encode() for i in order]


@pytest.mark.parametrize(
    ("shape", "batch_rank", "expected"),
    [((), 0, (1,)), ((0,), 0, (0,)), ((0, 3), 1, (0, 2)), ((3, 0), 1, (3, 0)), ((2,), 1, (2, 1))],
)
def test_empty_and_scalar_outputs_are_classified(
    shape: tuple[int, ...], batch_rank: int, expected: tuple[int, ...]
) -> None:
    classes = classify(scores_of(np.zeros(shape)), 2, batch_rank)
    assert classes.shape == expected
    assert classes.numpy().shape == expected


@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.BYTES])
def test_only_numbers_are_classified(datatype: Datatype) -> None:
    with raises_kind(Kind.BAD_REQUEST, match=f"output 't': .*{datatype.value}"):
        classify(Tensor("t", datatype, (0,), b""), 1)


def test_class_responses_are_bounded() -> None:
    tensor = tensor_from_array("t", Datatype.UINT8, np.zeros(MAX_CLASSES + 1))
    assert classify(tensor, MAX_CLASSES).shape == (MAX_CLASSES,)
    with raises_kind(Kind.BAD_REQUEST, match=f"{MAX_CLASSES + 1} classes are requested"):
        classify(tensor, MAX_CLASSES + 1)


def test_the_classification_parameter_is_the_number_of_classes() -> None:
    assert class_count(RequestedOutput("o")) is None
    assert class_count(RequestedOutput("o", {"classification": 3})) == 3


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", [1]])
def test_an_invalid_number_of_classes_is_rejected(value: Any) -> None:
    with raises_kind(Kind.BAD_REQUEST, match="output 'o': parameter 'classification'"):
        class_count(RequestedOutput("o", {"classification": value}))

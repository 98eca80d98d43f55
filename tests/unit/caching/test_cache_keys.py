"""Cache keys: the parts of an inference that change the key, and uncacheable parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from infergate.caching.keys import (
    MAX_WEIGHT,
    UncacheableError,
    check_weight,
    digest,
    key_parts,
)
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, RequestedOutput
from infergate.core.tensor import OpaqueParameters, Tensor
from infergate.testing import strategies

X = Tensor("x", Datatype.FP32, (1, 2), b"abcdefgh")
REQUEST = InferRequest("m", "1", "id", {"a": 1}, (X,), (RequestedOutput("y"),))


def key(request: InferRequest, *extra: Any, ignored: frozenset[str] = frozenset()) -> bytes:
    return digest(b"scope", key_parts(request, extra, ignored))


DIFFERENT = {
    "the model": replace(REQUEST, model="n"),
    "the version": replace(REQUEST, version="2"),
    "a parameter's value": replace(REQUEST, parameters={"a": 2}),
    "a parameter's type, float": replace(REQUEST, parameters={"a": 1.0}),
    "a parameter's type, bool": replace(REQUEST, parameters={"a": True}),
    "a parameter's type, text": replace(REQUEST, parameters={"a": "1"}),
    "a parameter's name": replace(REQUEST, parameters={"b": 1}),
    "no parameters": replace(REQUEST, parameters={}),
    "opaque parameters": replace(REQUEST, parameters=OpaqueParameters({"a": 1}, ("p",), b"")),
    "an opaque text": replace(REQUEST, parameters=OpaqueParameters({"a": 1}, ("p",), b"t")),
    "an input's name": replace(REQUEST, inputs=(replace(X, name="z"),)),
    "an input's datatype": replace(REQUEST, inputs=(replace(X, datatype=Datatype.INT32),)),
    "an input's shape": replace(REQUEST, inputs=(replace(X, shape=(2, 1)),)),
    "an input's data": replace(REQUEST, inputs=(replace(X, data=b"abcdefgi"),)),
    "an input's parameter": replace(REQUEST, inputs=(replace(X, parameters={"p": 1}),)),
    "another input": replace(REQUEST, inputs=(X, replace(X, name="z"))),
    "the order of inputs": replace(REQUEST, inputs=(replace(X, name="z"), X)),
    "the requested outputs": replace(REQUEST, outputs=()),
    "an output's parameter": replace(REQUEST, outputs=(RequestedOutput("y", {"c": 1}),)),
}


def test_each_part_of_an_inference_changes_the_key() -> None:
    keys = {name: key(request) for name, request in DIFFERENT.items()} | {"none": key(REQUEST)}
    assert len(set(keys.values())) == len(keys)


def test_extra_values_change_the_key() -> None:
    assert key(REQUEST, ["BF16"]) != key(REQUEST, [])


def test_the_id_the_order_of_parameters_and_the_kind_of_buffer_do_not_change_the_key() -> None:
    first = replace(REQUEST, parameters={"a": 1, "b": 2})
    views = (replace(X, data=memoryview(bytearray(X.data))),)
    second = replace(first, id="7", parameters={"b": 2, "a": 1}, inputs=views)
    assert key(first) == key(second)


def test_ignored_parameters_do_not_change_the_key() -> None:
    changed = replace(REQUEST, parameters={"a": 1, "priority": 3})
    ignored = frozenset({"priority"})
    assert key(REQUEST, ignored=ignored) == key(changed, ignored=ignored)
    only_ignored, without_parameters = (
        replace(REQUEST, parameters=p) for p in ({"priority": 3}, {})
    )
    assert key(only_ignored, ignored=ignored) == key(without_parameters, ignored=ignored)


def test_a_byte_that_moves_to_another_input_changes_the_key() -> None:
    def with_data(first: bytes, second: bytes) -> InferRequest:
        inputs = [Tensor("x", Datatype.UINT8, (len(d),), d) for d in (first, second)]
        return replace(REQUEST, inputs=tuple(inputs))

    assert key(with_data(b"ab", b"c")) != key(with_data(b"a", b"bc"))


@pytest.mark.parametrize(
    "value",
    [
        {"a": "x" * MAX_WEIGHT},
        {"a": [0] * MAX_WEIGHT},
        {str(number): 0 for number in range(MAX_WEIGHT)},
        {"a": 1 << (8 * MAX_WEIGHT)},
        {"a": b"bytes"},
        {"a": object()},
    ],
)
def test_parameters_that_are_large_or_not_json_are_uncacheable(value: dict[str, Any]) -> None:
    with pytest.raises(UncacheableError):
        key_parts(replace(REQUEST, parameters=value), (), frozenset())


def test_deeply_nested_parameters_are_uncacheable() -> None:
    nested: Any = 0
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(UncacheableError):
        key_parts(replace(REQUEST, parameters={"a": nested}), (), frozenset())


def test_the_weight_of_a_repeated_list_counts_each_time() -> None:
    shared = [0] * 1000
    with pytest.raises(UncacheableError):
        check_weight([[shared] * 100])


@settings(max_examples=15)
@given(strategies.infer_requests(), strategies.infer_requests())
def test_equal_keys_mean_equal_inferences(first: InferRequest, second: InferRequest) -> None:
    is_equal = repr(replace(first, id="")) == repr(replace(second, id=""))
    if key(first) == key(second):
        assert is_equal or sorted(first.parameters) == sorted(second.parameters)
    else:
        assert not is_equal

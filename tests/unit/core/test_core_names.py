"""Accepted and rejected names of models and tensors."""

import unicodedata

import pytest

from gateway_errors import raises_kind
from infergate.core.errors import GatewayError, Kind
from infergate.core.name_rules import (
    MAX_NAME_BYTES,
    STRICT_RULE,
    NameRule,
    are_accepted,
    check_tensor_name,
    find_tensor_name_problem,
)

BIDI = [chr(c) for c in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]


def test_no_name_contains_a_control_character() -> None:
    controls = {"Cc", "Zl", "Zp", "Cs"}
    unsafe = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in controls] + BIDI
    assert len(unsafe) == 65 + 2 + 2048 + 12
    assert [c for c in unsafe if not STRICT_RULE.find_problem(f"simple{c}-mine")] == []
    assert [c for c in unsafe if not find_tensor_name_problem(f"INPUT{c}0")] == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a/b", "contains '/'"),
        ("a\\b", "contains '\\'"),
        ("a?b", "contains '?'"),
        ("a#b", "contains '#'"),
        (".", "has the segment '.'"),
        ("..", "has the segment '..'"),
        ("pub-x%2f..%2fsecret", "contains the percent-escape '%2f'"),
        ("simple\0-mine", "contains the control character U+0000"),
        ("n" * (MAX_NAME_BYTES + 1), "is longer than 1024 bytes"),
        ("é" * 513, "is longer than 1024 bytes"),
        ("n" * (1 << 20), "is longer than 1024 bytes"),
    ],
)
def test_invalid_model_names_are_rejected(name: str, problem: str) -> None:
    for _ in range(2):  # a rejected name is not cached as valid
        with raises_kind(Kind.BAD_REQUEST) as caught:
            STRICT_RULE.check(name)
        assert caught.value.public == f"the model name {problem}"
    assert not are_accepted(STRICT_RULE, "m", name)


@pytest.mark.parametrize(
    "name", ["", "simple", "bert-base:2", "模型 é", "100%", "a..b", "...", "n" * MAX_NAME_BYTES]
)
def test_valid_model_names_are_accepted(name: str) -> None:
    for _ in range(2):
        STRICT_RULE.check(name)
    assert are_accepted(STRICT_RULE, name, "m")


def test_slashes_are_accepted_if_configured() -> None:
    rule = NameRule(allow_slash=True)
    rule.check("team-a/bert/large")
    for name in ("/a", "a/", "a//b", "/", "a/../b", "a/.", "a\\b", "a%2fb", "a/\0"):
        assert rule.find_problem(name), name


@pytest.mark.parametrize("name", ["StatefulPartitionedCall/dense:0", "model/dense/BiasAdd:0", "a?"])
def test_tensorflow_names_are_valid_tensor_names(name: str) -> None:
    check_tensor_name(name, "input 0")


def test_a_tensors_name_is_bounded() -> None:
    check_tensor_name("é" * 512, "input 0")
    with pytest.raises(GatewayError, match="the name of input 2 is longer than 1024 bytes"):
        check_tensor_name("é" * 513, "input 2")

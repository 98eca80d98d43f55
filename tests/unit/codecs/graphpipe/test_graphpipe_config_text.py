"""The config text of an inference is translated to parameters and back."""

import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_errors import raises_kind
from infergate.codecs.graphpipe.config_text import (
    MAX_CONFIG_BYTES,
    MAX_DEPTH,
    PARAMETER,
    read_config,
    write_config,
)
from infergate.core.errors import Kind
from infergate.core.tensor import OpaqueParameters
from infergate.testing.strategies import names, scalars, texts


def read(config: bytes) -> Any:
    return read_config(memoryview(config))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (b"", {}),
        (b"{}", {}),
        (b' {"a": 1}\n', {"a": 1}),
        (b'{"a": 1.0, "b": [null, {"c": "\\u00e9"}]}', {"a": 1.0, "b": [None, {"c": "é"}]}),
        (b"{", {PARAMETER: "{"}),
        (b"[1]", {PARAMETER: "[1]"}),
        (b"3", {PARAMETER: "3"}),
        (b" ", {PARAMETER: " "}),
        (b"fail:no such model", {PARAMETER: "fail:no such model"}),
        (b'{"a": NaN}', {PARAMETER: '{"a": NaN}'}),
        ("größe\0".encode(), {PARAMETER: "größe\0"}),
        (b'{"graphpipe_config": 1}', {PARAMETER: 1}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'"\\ud800"', {PARAMETER: '"\\ud800"'}),
        (b'{"a": 18446744073709551615}', {"a": 2**64 - 1}),
    ],
)
def test_a_config_becomes_parameters(config: bytes, parameters: dict[str, Any]) -> None:
    assert read(config) == parameters


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (b"\xff", "config is not UTF-8"),
        (b'{"a": 1, "a": 2}', "a duplicate name"),
        (b'{"b": {"a": 1, "a": 1}}', "a duplicate name"),
        (b'{"a": 18446744073709551616}', "18446744073709551616, which exceeds 64 bits"),
        (b'{"a": -9223372036854775809}', "exceeds 64 bits"),
        (b'{"a": ' + b"1" * 30 + b"}", "1" * 30 + ", which exceeds 64 bits"),
        (b'{"a": ' + b"1" * 5000 + b"}", "1" * 40 + ", which exceeds 64 bits"),
        (b'{"a": -' + b"1" * 60_000 + b"}", "-" + "1" * 39 + ", which exceeds 64 bits"),
        (b'{"a": "\\ud800"}', "a lone surrogate"),
        (b'{"a": [{"\\uDC00": 1}]}', "a lone surrogate"),
        (b'{"a": 1e999}', "1e999, which exceeds the range of FP64"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested deeper than 100 levels"),
        (b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested deeper than 100 levels"),
    ],
)
def test_invalid_configs_are_only_for_graphpipe_servers(config: bytes, expected: str) -> None:
    """The config cannot become parameters for a backend of another protocol."""
    parameters = read(config)
    assert isinstance(parameters, OpaqueParameters)
    for copy in (parameters, pickle.loads(pickle.dumps(parameters))):
        assert copy == {}
        assert copy.is_passed_to("graphpipe")
        with raises_kind(Kind.BAD_REQUEST, match=expected):
            copy.is_passed_to("v2-rest")
        assert write_config(copy) == config


def test_the_maximum_depth() -> None:
    depth = MAX_DEPTH - 1
    config = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    assert write_config(read(config)) == config


def test_long_configs_are_only_for_graphpipe_servers() -> None:
    assert len(read(b"x" * MAX_CONFIG_BYTES)[PARAMETER]) == MAX_CONFIG_BYTES
    long = read(b"x" * (MAX_CONFIG_BYTES + 1))
    assert isinstance(long, OpaqueParameters)
    for call in (
        lambda: long.is_passed_to("v2-grpc"),
        lambda: write_config({PARAMETER: "x" * (MAX_CONFIG_BYTES + 1)}),
    ):
        with raises_kind(Kind.TOO_LARGE, match=f"{MAX_CONFIG_BYTES + 1} bytes"):
            call()
    assert write_config(long) == b"x" * (MAX_CONFIG_BYTES + 1)


@pytest.mark.parametrize(
    ("parameters", "config"),
    [
        ({}, b""),
        ({PARAMETER: "text"}, b"text"),
        ({PARAMETER: ""}, b'{"graphpipe_config": ""}'),
        ({PARAMETER: 3}, b'{"graphpipe_config": 3}'),
        ({PARAMETER: '{"a": 1}'}, b'{"graphpipe_config": "{\\"a\\": 1}"}'),
        ({PARAMETER: '{"a": 1e999}'}, b'{"graphpipe_config": "{\\"a\\": 1e999}"}'),
        ({PARAMETER: "text", "b": 1}, b'{"graphpipe_config": "text", "b": 1}'),
        ({"größe": "\u2028"}, '{"größe": "\u2028"}'.encode()),
    ],
)
def test_parameters_become_a_config(parameters: dict[str, Any], config: bytes) -> None:
    assert write_config(parameters) == config
    assert read(config) == parameters


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", b"x", object()])
def test_values_that_json_cannot_represent_are_refused(value: Any) -> None:
    with raises_kind(Kind.BAD_REQUEST, match="parameters cannot be expressed in JSON"):
        write_config({"a": value})


JSON = st.recursive(
    scalars().filter(lambda each: each not in (math.inf, -math.inf)) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names() | st.just(PARAMETER), JSON, max_size=3))
def test_parameters_round_trip(parameters: dict[str, Any]) -> None:
    parsed = read(write_config(parameters))
    assert json.dumps(parsed) == json.dumps(parameters)


@given(st.binary(max_size=40) | texts().map(str.encode) | JSON.map(json.dumps).map(str.encode))
def test_a_config_round_trips(config: bytes) -> None:
    parameters = read(config)
    assert write_config(parameters) == config
    if isinstance(parameters, OpaqueParameters) and parameters.rejection:
        return
    # another protocol transports only the parameters
    translated = write_config(dict(parameters))
    if list(parameters) == [PARAMETER] and parameters[PARAMETER] == config.decode():
        assert translated == config
    else:
        assert json.loads(translated or b"{}") == json.loads(config or b"{}")


@given(st.binary(max_size=200) | st.text('{}[]":,1eE+-.0aN\\u ', max_size=60).map(str.encode))
def test_any_bytes_are_kept(config: bytes) -> None:
    assert write_config(read(config)) == config

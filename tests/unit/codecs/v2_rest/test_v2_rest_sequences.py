"""The sequence of a request is read with and without validation."""

import gzip

import pytest
from v2_rest_kit import CODEC, post

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.wire import HttpRequest

INPUTS = '"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[1]}]'


def sequence_ids(wire: HttpRequest) -> list[object]:
    validated = CODEC.validate(wire, DEFAULT_LIMITS)
    return [CODEC.sequence_of(request, DEFAULT_LIMITS) for request in (wire, validated)]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ('{"sequence_id":5,"sequence_start":true}', 5),
        ('{"sequence_id":"five"}', "five"),
        ('{"sequence\\u005fid":18446744073709551615}', 2**64 - 1),
        ('{"sequence_id":0}', None),
        ('{"text":"\\u0073equence_id"}', None),
        ('{"text":"the sequence_id"}', None),
        ("{}", None),
        ("null", None),
    ],
)
def test_the_sequence_of_a_json_request(parameters: str, expected: object) -> None:
    text = f'{{"parameters":{parameters},{INPUTS}}}'
    assert sequence_ids(post(text)) == [expected, expected]
    compressed = post(gzip.compress(text.encode()), content_encoding="gzip")
    assert sequence_ids(compressed) == [expected, expected]


@pytest.mark.parametrize("value", ['{"a":1}', "null", "[1]", "true", "1.5"])
def test_ids_that_are_neither_integers_nor_strings_are_rejected(value: str) -> None:
    wire = post(f'{{"parameters":{{"sequence_id":{value},"sequence_start":true}},{INPUTS}}}')
    for read in (CODEC.parse_request, CODEC.validate, CODEC.sequence_of):
        with raises_kind(Kind.BAD_REQUEST, match="'sequence_id' must be an integer"):
            read(wire, DEFAULT_LIMITS)


def test_binary_data_is_not_inspected() -> None:
    head = (
        b'{"inputs":[{"name":"X","datatype":"UINT8","shape":[20],'
        b'"parameters":{"binary_data_size":20}}]}'
    )
    wire = post(head + b'"sequence_id":123456', inference_header_content_length=str(len(head)))
    assert sequence_ids(wire) == [None, None]
    raw = post(b'"sequence_id":5', inference_header_content_length="0")
    assert sequence_ids(raw) == [None, None]


def test_an_unreadable_request_that_is_not_validated() -> None:
    with raises_kind(Kind.BAD_REQUEST):
        CODEC.sequence_of(post('{"sequence_id'), DEFAULT_LIMITS)

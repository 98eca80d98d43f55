"""Names that are decoded from path segments."""

import pytest

from gateway_errors import raises_kind
from infergate.core.errors import Kind
from infergate.core.path_segments import decode_segment


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        ("m", "m"),
        ("a%2Fb%20c", "a/b c"),
        ("gr%C3%B6%C3%9Fe", "größe"),
        ("größe", "größe"),
        ("", ""),
    ],
)
def test_a_segment_is_decoded(segment: str, name: str) -> None:
    assert decode_segment(segment, "model name") == name


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ("%4", "the model name in the path has an invalid percent-escape"),
        ("%zz", "the model name in the path has an invalid percent-escape"),
        ("%ff", "the model name in the path is not UTF-8"),
        ("\udcff", "the model name in the path is not UTF-8"),
        (".", "the model name may not be '.'"),
        ("%2e%2E", "the model name may not be '..'"),
    ],
)
def test_an_invalid_segment_is_rejected(segment: str, expected: str) -> None:
    with raises_kind(Kind.BAD_REQUEST) as caught:
        decode_segment(segment, "model name")
    assert caught.value.public == expected

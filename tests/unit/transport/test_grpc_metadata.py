from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infergate.transport import grpc_metadata


def test_what_is_read() -> None:
    pairs = [("a", "1"), ("grpc-encoding", "x"), ("a", "2"), ("b-bin", b"\0"), ("b-bin", b"\1\2")]
    assert grpc_metadata.read(pairs) == {"a": "1, 2", "b-bin": "AA, AQI"}


def test_what_is_written() -> None:
    metadata = {
        "a": "1, 2",
        "b-bin": "AA, AQI=",
        "c-bin": "!",
        "user-agent": "x",
        "grpc-timeout": "1S",
        ":path": "/",
        "Upper": "x",
        "d": "é",
        "e": "a\nb",
    }
    assert grpc_metadata.write(metadata) == (("a", "1, 2"), ("b-bin", b"\0"), ("b-bin", b"\1\2"))


@given(st.dictionaries(st.sampled_from(["x-bin", "y-bin"]), st.binary()))
def test_binary_values_go_there_and_back(values: dict[str, bytes]) -> None:
    text = grpc_metadata.read(values.items())
    assert dict(grpc_metadata.write(text)) == values

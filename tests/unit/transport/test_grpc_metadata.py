import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.transport.grpc import metadata


def test_metadata_is_read() -> None:
    pairs = [("a", "1"), ("grpc-encoding", "x"), ("a", "2"), ("b-bin", b"\0"), ("b-bin", b"\1\2")]
    assert metadata.read(pairs) == {"a": "1, 2", "b-bin": "AA, AQI"}


def test_headers_are_written_as_metadata() -> None:
    entries = {
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
    assert metadata.write(entries) == (("a", "1, 2"), ("b-bin", b"\0"), ("b-bin", b"\1\2"))


@given(st.dictionaries(st.sampled_from(["x-bin", "y-bin"]), st.binary()))
def test_written_binary_values_are_read_back(values: dict[str, bytes]) -> None:
    text = metadata.read(values.items())
    assert dict(metadata.write(text)) == values


@pytest.mark.parametrize(
    ("grpc_peer", "peer"),
    [
        ("ipv4:127.0.0.1:51234", "127.0.0.1:51234"),
        ("ipv6:%5B::1%5D:51234", "[::1]:51234"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "[fe80::1%eth0]:5"),
        ("unix:", "unix"),
        ("unix:/run/x.sock", "unix"),
    ],
)
def test_peers_are_formatted_as_over_http(grpc_peer: str, peer: str) -> None:
    assert metadata.parse_peer(grpc_peer) == peer

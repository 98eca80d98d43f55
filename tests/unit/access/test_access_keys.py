"""API keys: creation, parsing and lookup."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.access.credentials import read_credential
from infergate.access.keys import (
    ApiKey,
    ApiKeys,
    digest_of,
    new_key,
    parse_file,
    parse_hash,
    parse_name,
)

HASH = hashlib.sha256(b"secret").hexdigest()


def test_a_new_key_is_long_random_and_can_be_sent() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert len(key) >= len("infergate_") + 43  # 256 bits in base64
        credential = read_credential({"authorization": f"Bearer {key}"})
        assert credential is not None
        assert credential.secret == key


def test_keys_are_found_by_their_secret_but_not_by_its_hash() -> None:
    keys = ApiKeys(
        [ApiKey("a", digest_of("one")), ApiKey("b", digest_of("two")), ApiKey("a", digest_of("3"))]
    )
    owners = {"one": "a", "two": "b", "3": "a", "four": None, "": None}
    assert {secret: keys.find_owner(secret) for secret in owners} == owners
    assert keys.find_owner(digest_of("one").hex()) is None  # a hash is not accepted as a key


@given(st.text())
def test_any_text_can_be_a_key(text: str) -> None:
    assert ApiKeys([]).find_owner(text) is None
    assert ApiKeys([ApiKey("x", digest_of(text))]).find_owner(text) == "x"


def test_a_file_has_one_key_per_line() -> None:
    text = f"\ufeff# keys\n\na: {HASH}  # the old one\n  a:{HASH.upper()}\nteam/b@x : {HASH}\r\n"
    digest = bytes.fromhex(HASH)
    assert parse_file(text.encode()) == (
        ApiKey("a", digest),
        ApiKey("a", digest),
        ApiKey("team/b@x", digest),
    )
    assert parse_file(b"") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a: " + HASH.encode() + b"\nb", "line 2: expected 'name: SHA-256"),
        (b"a: infergate_secret", "line 1: expected the SHA-256"),
        (b": " + HASH.encode(), "line 1"),
        (b"-a: " + HASH.encode(), "line 1: expected a name"),
        (b"a: " + HASH.encode() + b" more", "line 1"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_errors_in_a_file_are_reported_without_secrets(text: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        parse_file(text)
    assert "infergate_secret" not in str(caught.value)


@given(st.binary(max_size=200))
def test_arbitrary_files_are_parsed_or_rejected(data: bytes) -> None:
    with suppress(ValueError):
        parse_file(data)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "*", "é", "a" * 129, 7, None])
def test_invalid_names_are_rejected(name: object) -> None:
    with pytest.raises(ValueError, match="expected a name"):
        parse_name(name)


@pytest.mark.parametrize("value", ["", HASH[1:], HASH + "0", "g" * 64, 7, None])
def test_invalid_hashes_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        parse_hash(value)

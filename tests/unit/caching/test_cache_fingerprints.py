"""Fingerprints of inferences seen before."""

from __future__ import annotations

import os

import pytest

from infergate.caching.fingerprints import SeenTable, fingerprint
from infergate.caching.local_store import LocalStore
from infergate.caching.shared_store import SharedStore

LONG = bytes(range(256)) * 100


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_equal_bytes_have_equal_fingerprints(kind: type) -> None:
    assert fingerprint(b"s", [kind(b"abc"), kind(LONG)]) == fingerprint(b"s", [b"abc", LONG])


@pytest.mark.parametrize(
    "parts",
    [
        [b"abd", LONG],
        [b"abc", LONG[:-1]],
        [b"abc", b"x" + LONG[1:]],
        [b"abc", LONG + b"x"],
        [b"abc", LONG[:-1] + b"x"],
        [b"abc"],
        [LONG, b"abc"],
    ],
)
def test_other_bytes_usually_have_other_fingerprints(parts: list[bytes]) -> None:
    assert fingerprint(b"s", parts) != fingerprint(b"s", [b"abc", LONG])
    assert 0 < fingerprint(b"s", parts) < 2**63


def test_other_scopes_have_other_fingerprints() -> None:
    assert fingerprint(b"s", [b"abc"]) != fingerprint(b"t", [b"abc"])


def test_a_table_keeps_a_fingerprint_until_another_replaces_it() -> None:
    table = SeenTable(memoryview(bytearray(8 * 4)).cast("q"))
    assert [table.add(number) for number in (1, 2, 1, 5, 1)] == [False, False, True, False, False]


def test_processes_share_a_table() -> None:
    fd = SharedStore.create_file()
    local = LocalStore()
    stores = SharedStore(fd), SharedStore(fd), local, local
    assert [store.seen.add(7) for store in stores] == [False, True, False, True]
    os.close(fd)

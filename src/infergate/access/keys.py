"""API keys: long random texts, of which the gateway knows the SHA-256 alone.

A key has 256 random bits, so that one round of a fast hash keeps it: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

PREFIX: Final = "infergate_"
"""How keys begin, so that scanners for secrets find those that were committed."""
_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}")
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
_LINE: Final = re.compile(r"([^\s:]+)\s*:\s*(\S+)")
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Key:
    """Whose it is, and the SHA-256 of it."""

    name: str
    digest: bytes


def new_key() -> str:
    """A key that nobody has had."""
    return PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(secret: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def parse_name(value: Any) -> str:
    """Whose a key is. Raises ValueError."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(
            "expected a name of up to 128 letters, digits and . _ @ / -, that begins with a letter "
            "or a digit"
        )
    return value


def parse_hash(value: Any) -> bytes:
    """A SHA-256. Raises ValueError, which does not tell ``value``: it may be the key itself."""
    if not isinstance(value, str) or _HASH.fullmatch(value) is None:
        raise ValueError(
            "expected the SHA-256 of a key, 64 hexadecimal digits ('infergate key' makes both)"
        )
    return bytes.fromhex(value)


def parse_file(data: bytes) -> tuple[Key, ...]:
    """The keys in a file: lines like ``name: SHA-256``, empty ones, and comments after ``#``; a
    name may have several. Raises ValueError telling the line."""
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    found: list[Key] = []
    for number, line in enumerate(lines, 1):
        told = line.partition("#")[0].strip()
        if not told:
            continue
        match = _LINE.fullmatch(told)
        if match is None:
            raise ValueError(f"line {number}: expected 'name: SHA-256 of its key'")
        try:
            found.append(Key(parse_name(match[1]), parse_hash(match[2])))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if len(found) > _MOST:
        raise ValueError(f"it has over {_MOST} keys")
    return tuple(found)


class Keys:
    """Looks up whose a key is."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._names: Final = {each.digest: (each.digest, each.name) for each in keys}

    def find(self, secret: str) -> str | None:
        """The name, None for a key that is not known. What the look-up's time may tell is about the
        hash of what was sent, which leads to no key; hashes are compared in constant time."""
        asked = digest_of(secret)
        known = self._names.get(asked)
        if known is not None and hmac.compare_digest(known[0], asked):
            return known[1]
        return None

"""API keys: long random strings. The gateway stores only their SHA-256 hashes.

A key has 256 random bits and cannot be guessed, so one round of a fast hash is enough."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

KEY_TEXT_PREFIX: Final = "infergate_"
"""The prefix of every key, by which secret scanners find keys that were committed by mistake."""
_KEY_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}")
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
_LINE: Final = re.compile(r"([^\s:]+)\s*:\s*(\S+)")
_MAX_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The name of a key's owner and the SHA-256 of the key."""

    name: str
    digest: bytes


def new_key() -> str:
    """Return a new random key."""
    return KEY_TEXT_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest_of(secret: str) -> bytes:
    """Return the digest of a key, which is stored instead of the key."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def parse_name(value: Any) -> str:
    """Return the name of a key's owner. Raises ValueError."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(
            "expected a name of up to 128 letters, digits and . _ @ / -, that begins with a letter "
            "or a digit"
        )
    return value


def parse_hash(value: Any) -> bytes:
    """Return the SHA-256 hash that ``value`` contains in hexadecimal. Raises ValueError, whose text
    never contains ``value``, because ``value`` may be the key itself."""
    if not isinstance(value, str) or _HASH.fullmatch(value) is None:
        raise ValueError(
            "expected the SHA-256 of a key, 64 hexadecimal digits "
            "('infergate key' prints it with a new key)"
        )
    return bytes.fromhex(value)


def parse_file(data: bytes) -> tuple[ApiKey, ...]:
    """Return the keys in a file: lines like ``name: SHA-256``, empty lines, and comments after
    ``#``. A name may have several keys. Raises ValueError."""
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    keys: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _LINE.fullmatch(entry)
        if match is None:
            raise ValueError(f"line {number}: expected 'name: SHA-256 of its key'")
        try:
            keys.append(ApiKey(parse_name(match[1]), parse_hash(match[2])))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"expected at most {_MAX_KEYS} keys, found {len(keys)}")
    return tuple(keys)


class ApiKeys:
    """Finds the owner of a key."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._names: Final = {key.digest: key.name for key in keys}

    def find_owner(self, secret: str) -> str | None:
        """Return the owner's name, or None for an unknown key. The timing of the look-up can only
        reveal information about the stored hashes, from which no key can be derived."""
        return self._names.get(digest_of(secret))

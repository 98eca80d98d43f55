"""The public keys of those who issue tokens (RFC 7517), from a file or a URL.

*Rule 1.* A key serves the algorithms of its kind and curve alone, and that one alone which it
names; a shared secret (``oct``) serves none. So no token can choose how it is checked (RFC 8725,
3.1).
*Rule 2.* Keys from a URL are kept while it is away. They are asked for again when they are old, and
for a token whose key is not known, but not sooner than ``PAUSE`` after the last time.
*Rule 3.* Who asks for them asks for all who wait, also where he goes away meanwhile: clients come
and go as they like, and each that has left would be another question.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from infergate.access.files import Watched
from infergate.core.errors import GatewayError
from infergate.core.vocabulary import JWT_KEY_UNUSABLE, JWT_KEYS_AWAY

_log = logging.getLogger("infergate.access")

PAUSE: Final = 30.0
"""Seconds between two times that a URL is asked, when there are keys."""
EAGER: Final = 1.0
"""And when there are none yet."""
_MOST: Final = 256
"""Keys of a set."""
_ALGORITHMS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("RSA", ""): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""By ``kty`` and ``crv`` (RFC 7518, 3.4; RFC 8037)."""
ALGORITHMS: Final = frozenset().union(*_ALGORITHMS.values())


class KeySet:
    """Those of one document that tokens may be signed with."""

    def __init__(self, document: bytes) -> None:
        """Raises ValueError where it is none, or no key of it can be used."""
        self.document: Final = document
        try:
            told = json.loads(document)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError:
            raise ValueError("it is not JSON") from None
        listed = told.get("keys") if isinstance(told, dict) else None
        if not isinstance(listed, list) or len(listed) > _MOST:
            raise ValueError(f"it is no JWK set: an object with 'keys', at most {_MOST}")
        self._keys: Final = [
            (each, usable)
            for each in listed
            if isinstance(each, dict) and (usable := _usable(each))
        ]
        if not self._keys:
            raise ValueError("no key of it can be used to check tokens")
        self._made: Final[dict[tuple[str | None, str], PyJWK | None]] = {}

    def find(self, number: str | None, algorithm: str) -> PyJWK | None:
        """The key that a token signed by ``algorithm`` calls ``number`` (``kid``). A token that
        calls it nothing is checked by the only key that could be meant."""
        known = (number, algorithm)
        if known not in self._made:
            fitting = [
                key
                for key, usable in self._keys
                if algorithm in usable and (number is None or key.get("kid") == number)
            ]
            found = _made(fitting[0], algorithm) if len(fitting) == 1 else None
            if found is None:
                return None  # not remembered: numbers come from clients
            self._made[known] = found
        return self._made[known]


def _usable(key: dict[str, Any]) -> frozenset[str]:
    """The algorithms that ``key`` may be used with (Rule 1)."""
    if key.get("use", "sig") != "sig":
        return frozenset()
    operations = key.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return frozenset()
    fitting = _ALGORITHMS.get((str(key.get("kty")), str(key.get("crv", ""))), frozenset())
    return fitting if "alg" not in key else fitting & {str(key["alg"])}


def _made(key: dict[str, Any], algorithm: str) -> PyJWK | None:
    try:
        return PyJWK.from_dict(key, algorithm)
    except (PyJWTError, ValueError, TypeError) as error:
        _log.error(
            "a key of a JWK set cannot be used: %s", type(error).__name__, extra=JWT_KEY_UNUSABLE
        )
        return None


class Source(Protocol):
    """Where keys come from."""

    async def keys(self, now: float) -> KeySet | None:
        """As they are at ``now`` (``time.monotonic``); None: there are none yet."""
        ...

    async def newer(self, now: float) -> KeySet | None:
        """For a token whose key is not among those."""
        ...


class FileSource:
    """See Source."""

    def __init__(self, file: Watched[KeySet]) -> None:
        self._file: Final = file

    async def keys(self, now: float) -> KeySet | None:
        """See Source."""
        return await self._file.current(now)

    async def newer(self, now: float) -> KeySet | None:
        """See Source: the file is looked at often enough."""
        return await self._file.current(now)


class UrlSource:
    """See Source, and Rule 2. ``name`` is told in the log."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Awaitable[bytes]],
        refresh: float,
        failed: Callable[[], None],
    ) -> None:
        """``fetch`` raises GatewayError; ``refresh`` is in seconds; ``failed`` is called where that
        gave no keys."""
        self._name: Final = name
        self._fetch: Final = fetch
        self._refresh: Final = refresh
        self._failed: Final = failed
        self._keys: KeySet | None = None
        self._old = 0.0  # when they are to be asked for again
        self._may = 0.0  # when they may be
        self._asking: asyncio.Task[None] | None = None

    async def keys(self, now: float) -> KeySet | None:
        """See Source. One request asks; others wait only where there are no keys, or none but those
        of long ago: nobody has asked for them since."""
        if now >= self._old and now >= self._may:
            wait = self._keys is None or now >= self._may + self._refresh
            if wait or self._asking is None:
                await self._ask(now)
        return self._keys

    async def newer(self, now: float) -> KeySet | None:
        """See Source."""
        if now >= self._may:
            await self._ask(now)
        return self._keys

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, now: float) -> None:
        """Rule 3."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked(now))
        await asyncio.shield(self._asking)

    async def _asked(self, now: float) -> None:
        try:
            document = await self._fetch()
            if self._keys is None or document != self._keys.document:
                self._keys = KeySet(document)
            self._old = now + self._refresh
        except (GatewayError, ValueError) as error:
            self._failed()
            kept = "there are none" if self._keys is None else "those there are stay in force"
            _log.error(
                "jwt '%s': keys cannot be had, %s: %s %s",
                self._name,
                kept,
                error,
                getattr(error, "detail", ""),
                extra=JWT_KEYS_AWAY,
            )
        finally:
            self._may = now + (EAGER if self._keys is None else PAUSE)
            self._asking = None

"""The public keys of token issuers (JWK sets, RFC 7517), from a file or a URL.

1. A key is used only with the algorithms of its type and curve. A key that names one of these
   algorithms is used only with that algorithm. A shared secret (``oct``) is never used. A
   token therefore cannot choose how it is verified (RFC 8725, 3.1).
2. Keys from a URL stay valid while the URL is unreachable. They are fetched again when they are
   older than the refresh interval or when a token names an unknown key, but not within
   ``FETCH_INTERVAL_SECONDS`` of the last fetch (``INITIAL_FETCH_INTERVAL_SECONDS`` while there are
   no keys).
3. One fetch serves all waiting requests. It continues if the request that started it is cancelled,
   so that a client that disconnects does not cause another fetch."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from infergate.core.errors import GatewayError
from infergate.core.log_events import JWT_KEY_UNUSABLE, JWT_KEYS_UNAVAILABLE

_log = logging.getLogger("infergate.access")

FETCH_INTERVAL_SECONDS: Final = 30.0
"""Minimum number of seconds between two fetches of a URL while there are keys."""
INITIAL_FETCH_INTERVAL_SECONDS: Final = 1.0
"""Minimum number of seconds between two fetches of a URL while there are no keys."""
_MAX_KEYS: Final = 256
_ALGORITHMS_BY_TYPE: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("RSA", ""): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""Algorithms by ``kty`` and ``crv`` (RFC 7518, 3.4; RFC 8037)."""
ALGORITHMS: Final = frozenset().union(*_ALGORITHMS_BY_TYPE.values())


class JwkSet:
    """The keys of a JWK set that can verify tokens."""

    def __init__(self, issuer: str, document: bytes) -> None:
        """Parse ``document``. ``issuer`` is the issuer's name in the log. Raises ValueError if
        ``document`` is not a JWK set or has no key that can verify tokens."""
        self._issuer: Final = issuer
        self.document: Final = document
        try:
            parsed = json.loads(document)
        except RecursionError:
            raise ValueError("the document is nested too deeply") from None
        except ValueError:
            raise ValueError("the document is not JSON") from None
        listed = parsed.get("keys") if isinstance(parsed, dict) else None
        if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
            raise ValueError(
                "the document is not a JWK set; expected an object with a list 'keys' of at most "
                f"{_MAX_KEYS} keys"
            )
        self._keys: Final = [
            (key, algorithms)
            for key in listed
            if isinstance(key, dict) and (algorithms := _usable_algorithms(key))
        ]
        if not self._keys:
            raise ValueError("the document has no key that can verify tokens")
        self._parsed_keys: Final[dict[tuple[str | None, str], PyJWK | None]] = {}

    def find(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        """Return the key for a token that is signed with ``algorithm`` and has the ``kid``
        ``key_id``, or no ``kid`` if ``key_id`` is None. Return None unless exactly one key matches
        and can be parsed. Without ``key_id``, every key with that algorithm matches."""
        cache_key = (key_id, algorithm)
        if cache_key not in self._parsed_keys:
            matching = [
                key
                for key, usable in self._keys
                if algorithm in usable and (key_id is None or key.get("kid") == key_id)
            ]
            key_object = self._parse_key(matching[0], algorithm) if len(matching) == 1 else None
            if key_object is None:
                return None  # not cached: clients choose the key id
            self._parsed_keys[cache_key] = key_object
        return self._parsed_keys[cache_key]

    def _parse_key(self, key: dict[str, Any], algorithm: str) -> PyJWK | None:
        try:
            return PyJWK.from_dict(key, algorithm)
        except (PyJWTError, ValueError, TypeError) as error:
            _log.error(
                "jwt '%s': the key with kid %.100r cannot be used: %s",
                self._issuer,
                key.get("kid"),
                type(error).__name__,
                extra=JWT_KEY_UNUSABLE,
            )
            return None


def _usable_algorithms(key: dict[str, Any]) -> frozenset[str]:
    """Return the algorithms with which ``key`` may be used (rule 1)."""
    if key.get("use", "sig") != "sig":
        return frozenset()
    operations = key.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return frozenset()
    algorithms = _ALGORITHMS_BY_TYPE.get(
        (str(key.get("kty")), str(key.get("crv", ""))), frozenset()
    )
    return algorithms if "alg" not in key else algorithms & {str(key["alg"])}


class JwkSource(Protocol):
    """A source of keys: ``JwkUrlSource``, or a ``WatchedFile``."""

    def current_if_checked(self, now: float) -> JwkSet | None:
        """Return the keys at ``now``, or None if no keys are loaded or the keys must be read
        again."""
        ...

    async def current(self, now: float) -> JwkSet | None:
        """Return the keys at ``now`` (``time.monotonic``), or None if no keys are loaded."""
        ...

    async def refreshed(self, now: float) -> JwkSet | None:
        """Read the keys again if the minimum interval has passed, because a token names an unknown
        key. Return the keys, or None if no keys are loaded."""
        ...


class JwkUrlSource:
    """Keys from a URL (rule 2)."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Awaitable[bytes]],
        refresh: float,
        on_failure: Callable[[], None],
    ) -> None:
        """``name`` is the issuer's name in the log. ``fetch`` raises GatewayError. ``refresh`` is
        the refresh interval in seconds. ``on_failure`` is called when a fetch fails."""
        self._name: Final = name
        self._fetch: Final = fetch
        self._refresh: Final = refresh
        self._on_failure: Final = on_failure
        self._keys: JwkSet | None = None
        self._refresh_at = 0.0  # when the keys are due to be fetched again
        self._next_fetch = 0.0  # the earliest time of the next fetch
        self._fetch_task: asyncio.Task[None] | None = None

    def current_if_checked(self, now: float) -> JwkSet | None:
        """Return the keys, or None if no keys are loaded or the keys are due to be fetched."""
        is_due = now >= self._refresh_at and now >= self._next_fetch
        return None if is_due else self._keys

    async def current(self, now: float) -> JwkSet | None:
        """Return the keys. If they are due to be fetched, one request fetches them. Other requests
        wait for the fetch only if there are no keys, or if the last fetch was longer ago than
        ``refresh`` plus the minimum interval."""
        if now >= self._refresh_at and now >= self._next_fetch:
            wait = self._keys is None or now >= self._next_fetch + self._refresh
            if wait or self._fetch_task is None:
                await self._join_fetch(now)
        return self._keys

    async def refreshed(self, now: float) -> JwkSet | None:
        """Fetch the keys again, unless the last fetch was too recent, and return them."""
        if now >= self._next_fetch:
            await self._join_fetch(now)
        return self._keys

    async def close(self) -> None:
        """Cancel the fetch in progress, if there is one."""
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.gather(self._fetch_task, return_exceptions=True)

    async def _join_fetch(self, now: float) -> None:
        """Join the fetch in progress, or start one (rule 3)."""
        if self._fetch_task is None:
            self._fetch_task = asyncio.create_task(self._fetch_keys(now))
        await asyncio.shield(self._fetch_task)

    async def _fetch_keys(self, now: float) -> None:
        try:
            document = await self._fetch()
            if self._keys is None or document != self._keys.document:
                self._keys = JwkSet(self._name, document)
            self._refresh_at = now + self._refresh
        except (GatewayError, ValueError) as error:
            self._on_failure()
            consequence = (
                "no keys are loaded" if self._keys is None else "the previous keys stay valid"
            )
            _log.error(
                "jwt '%s': the keys cannot be fetched; %s: %s %s",
                self._name,
                consequence,
                error,
                getattr(error, "detail", ""),
                extra=JWT_KEYS_UNAVAILABLE,
            )
        finally:
            self._next_fetch = now + (
                INITIAL_FETCH_INTERVAL_SECONDS if self._keys is None else FETCH_INTERVAL_SECONDS
            )
            self._fetch_task = None

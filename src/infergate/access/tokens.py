"""Verifies JSON Web Tokens (RFC 7519) as RFC 8725 advises. PyJWT does the cryptography.

1. A token must have a configured issuer and audience, an allowed algorithm, a signature by one of
   the issuer's keys, an expiry time and a subject.
2. The reason for rejecting a signature is logged but not sent to the client. A client whose token
   has a valid signature receives the reason if the token has expired, is not valid yet, or has a
   wrong audience or subject.
3. A verified token is cached by its hash until the token expires or the issuer's keys change."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jwt
from jwt.exceptions import (
    ExpiredSignatureError,
    ImmatureSignatureError,
    InvalidAudienceError,
    PyJWTError,
)

from infergate.access.jwks import JwkSet, JwkSource
from infergate.access.rejection import expired_token, invalid_token, issuer_keys_unavailable
from infergate.access.rules import TOKEN_PREFIX, AccessRules, RulePermit

MAX_CACHED_TOKENS: Final = 4096
_MAX_SUBJECT_CHARS: Final = 256
_UNREADABLE: Final = (PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens are accepted. ``name`` is the issuer's name in the configuration;
    ``issuer`` is the expected claim ``iss``. ``leeway`` is in seconds. ``subject`` is the claim
    that names the client."""

    name: str
    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    leeway: float
    subject: str
    source: JwkSource


class _CachedToken(NamedTuple):
    issuer: Issuer
    keys: JwkSet
    expires_at: float
    permit: RulePermit


class JwtVerifier:
    """Verifies tokens and returns the permits of their subjects."""

    def __init__(self, issuers: Sequence[Issuer], rules: AccessRules) -> None:
        self._issuers: Final = {issuer.issuer: issuer for issuer in issuers}
        self._rules: Final = rules
        self._cache: Final[OrderedDict[bytes, _CachedToken]] = OrderedDict()

    def cached_permit(self, token: str, now: float, wall_time: float) -> RulePermit | None:
        """Return the permit of a token that was verified before, or None if ``verify`` is
        needed."""
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._cache.get(digest)
        if (
            cached is None
            or cached.issuer.source.current_if_checked(now) is not cached.keys
            or wall_time >= cached.expires_at
        ):
            return None
        self._cache.move_to_end(digest)
        return cached.permit

    async def verify(self, token: str, now: float, wall_time: float) -> RulePermit:
        """Return the permit of the token's subject. ``now`` is from ``time.monotonic``, and
        ``wall_time`` is from ``time.time``. Raises AccessRejected."""
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._cache.get(digest)
        if cached is not None:
            keys = await cached.issuer.source.current(now)
            if keys is cached.keys and wall_time < cached.expires_at:
                self._cache.move_to_end(digest)
                return cached.permit
            self._cache.pop(digest, None)
        verified = await self._verify_signature(token, now)
        self._cache[digest] = verified
        if len(self._cache) > MAX_CACHED_TOKENS:
            self._cache.popitem(last=False)
        return verified.permit

    async def _verify_signature(self, token: str, now: float) -> _CachedToken:
        issuer, key_id, algorithm = self._read_unverified(token)
        keys = await issuer.source.current(now)
        key = None if keys is None else keys.find(key_id, algorithm)
        if key is None:
            keys = await issuer.source.refreshed(now)
            key = None if keys is None else keys.find(key_id, algorithm)
        if keys is None:
            raise issuer_keys_unavailable()
        if key is None:
            raise invalid_token(detail=f"jwt '{issuer.name}': the key is unknown")
        claims = _verified_claims(token, key, issuer)
        subject = claims.get(issuer.subject)
        if not isinstance(subject, str) or not _is_valid_subject(subject):
            raise invalid_token(
                f"the token's claim '{issuer.subject}' must be a string of 1 to "
                f"{_MAX_SUBJECT_CHARS} printable characters"
            )
        permit = self._rules.permit_for(f"{TOKEN_PREFIX}{issuer.name}:{subject}", claims)
        return _CachedToken(issuer, keys, claims["exp"] + issuer.leeway, permit)

    def _read_unverified(self, token: str) -> tuple[Issuer, str | None, str]:
        """Return the issuer, key id and algorithm that the token claims. These values are not
        verified yet."""
        try:
            header = jwt.get_unverified_header(token)
            unverified = jwt.decode(token, options={"verify_signature": False})
        except _UNREADABLE as error:
            raise invalid_token(detail=type(error).__name__) from None
        issuer_claim, algorithm = unverified.get("iss"), header.get("alg")
        issuer = self._issuers.get(issuer_claim) if isinstance(issuer_claim, str) else None
        if issuer is None:
            raise invalid_token(detail="the issuer is not configured")
        if algorithm not in issuer.algorithms:
            raise invalid_token(detail=f"jwt '{issuer.name}': the algorithm is not allowed")
        if "crit" in header:  # no extension is supported (RFC 7515, 4.1.11)
            raise invalid_token(detail=f"jwt '{issuer.name}': critical headers are not supported")
        return issuer, header.get("kid"), algorithm


def _verified_claims(token: str, key: jwt.PyJWK, issuer: Issuer) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(issuer.algorithms),
            audience=issuer.audiences,
            issuer=issuer.issuer,
            leeway=issuer.leeway,
            options={"require": ["exp", "iss", "aud", issuer.subject]},
        )
        claims["exp"] = float(claims["exp"])  # PyJWT accepts strings, and integers of any length
    except ExpiredSignatureError:
        raise expired_token() from None
    except ImmatureSignatureError:
        raise invalid_token("the token is not valid yet") from None
    except InvalidAudienceError:
        raise invalid_token("the token is for another audience") from None
    except _UNREADABLE as error:
        raise invalid_token(detail=f"jwt '{issuer.name}': {type(error).__name__}") from None
    return claims


def _is_valid_subject(subject: str) -> bool:
    return 0 < len(subject) <= _MAX_SUBJECT_CHARS and subject.isprintable()

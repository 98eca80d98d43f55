"""JSON Web Tokens (RFC 7519), verified as RFC 8725 advises; PyJWT does the cryptography.

1. The token's issuer must be configured, its algorithm one of those allowed, its key one of that
   issuer's, its audience one of ours, and it must expire.
2. The reason why a signature is not accepted goes to the log only. A token with a valid signature
   that has expired is reported as such, because its owner has to get a new one.
3. A verified token is cached by its hash until it expires or its issuer's keys change.
"""

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
    InvalidTokenError,
    PyJWTError,
)

from infergate.access.jwks import KeySet, Source
from infergate.access.refusals import expired_token, invalid_token, keys_away
from infergate.access.rules import TOKEN, Granted, Rules

REMEMBERED: Final = 4096
"""Cached tokens; less than 8 MB with their claims."""
_LONGEST: Final = 256
"""Characters of a subject."""
_UNREADABLE: Final = (PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens are accepted. ``name`` is the operator's name for it, ``issuer`` its
    claim ``iss``; ``leeway`` is in seconds; ``subject`` is the claim that names the client."""

    name: str
    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    leeway: float
    subject: str
    source: Source


class _Known(NamedTuple):
    issuer: Issuer
    keys: KeySet
    ends: float
    permit: Granted


class Tokens:
    """Verifies tokens and returns the permits of their subjects."""

    def __init__(self, issuers: Sequence[Issuer], rules: Rules) -> None:
        self._issuers: Final = {issuer.issuer: issuer for issuer in issuers}
        self._rules: Final = rules
        self._known: Final[OrderedDict[bytes, _Known]] = OrderedDict()

    async def permit(self, token: str, now: float, clock: float) -> Granted:
        """Return the permit of the token's subject. ``now`` is from ``time.monotonic``,
        ``wall_time`` from ``time.time``. Raises AccessRejected."""
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._known.get(digest)
        if cached is not None:
            keys = await cached.issuer.source.keys(now)
            if keys is cached.keys and clock < cached.ends:
                self._known.move_to_end(digest)
                return cached.permit
            self._known.pop(digest, None)
        verified = await self._checked(token, now)
        self._known[digest] = verified
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verified.permit

    async def _checked(self, token: str, now: float) -> _Known:
        issuer, key_id, algorithm = self._named(token)
        keys = await issuer.source.keys(now)
        key = None if keys is None else keys.find(key_id, algorithm)
        if key is None:
            keys = await issuer.source.newer(now)
            key = None if keys is None else keys.find(key_id, algorithm)
        if keys is None:
            raise keys_away()
        if key is None:
            raise invalid_token(detail=f"jwt '{issuer.name}': its key is not known")
        claims = _claims(token, key, issuer)
        subject = claims.get(issuer.subject)
        if not isinstance(subject, str) or not _is_name(subject):
            raise invalid_token(f"the token's claim '{issuer.subject}' holds no name")
        permit = self._rules.permit(f"{TOKEN}{issuer.name}:{subject}", claims)
        return _Known(issuer, keys, claims["exp"] + issuer.leeway, permit)

    def _named(self, token: str) -> tuple[Issuer, str | None, str]:
        """Return the issuer, key id and algorithm that the token claims, not verified yet."""
        try:
            header = jwt.get_unverified_header(token)
            unverified = jwt.decode(token, options={"verify_signature": False})
        except _UNREADABLE as error:
            raise invalid_token(detail=type(error).__name__) from None
        issuer_claim, algorithm = unverified.get("iss"), header.get("alg")
        issuer = self._issuers.get(issuer_claim) if isinstance(issuer_claim, str) else None
        if issuer is None:
            raise invalid_token(detail="its issuer is not configured")
        if algorithm not in issuer.algorithms:
            raise invalid_token(detail=f"jwt '{issuer.name}': its algorithm is not allowed")
        if "crit" in header:  # no extension is supported (RFC 7515, 4.1.11)
            raise invalid_token(detail=f"jwt '{issuer.name}': it has critical headers")
        return issuer, header.get("kid"), algorithm


def _claims(token: str, key: jwt.PyJWK, issuer: Issuer) -> dict[str, Any]:
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
    except InvalidTokenError as error:
        raise invalid_token(detail=f"jwt '{issuer.name}': {type(error).__name__}") from None
    except _UNREADABLE as error:
        raise invalid_token(detail=f"jwt '{issuer.name}': {type(error).__name__}") from None
    return claims


def _is_name(subject: str) -> bool:
    return 0 < len(subject) <= _LONGEST and subject.isprintable()

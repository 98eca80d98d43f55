"""JSON Web Tokens (RFC 7519), checked as RFC 8725 advises; the cryptography is PyJWT's.

*Rule 1.* A token is that of the issuer it names, if that one is configured; its algorithm is one of
those allowed, its key one of that issuer's, its audience one of ours, and it has an end.
*Rule 2.* Why a signature is not believed is for the log. That a token whose signature is right has
expired is told: its owner has to get another.
*Rule 3.* A token that was checked is known by its hash until it ends, or its issuer's keys change.
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
"""Tokens; under 8 MB, claims included."""
_LONGEST: Final = 256
"""Characters of a subject."""
_UNREADABLE: Final = (PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken. ``name`` is the operator's for it, ``issuer`` its claim ``iss``;
    ``leeway`` is in seconds; ``subject`` is the claim that says who somebody is."""

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
    """Tells whose a token is, and what he may."""

    def __init__(self, issuers: Sequence[Issuer], rules: Rules) -> None:
        self._issuers: Final = {each.issuer: each for each in issuers}
        self._rules: Final = rules
        self._known: Final[OrderedDict[bytes, _Known]] = OrderedDict()

    async def permit(self, token: str, now: float, clock: float) -> Granted:
        """``now`` is of ``time.monotonic``, ``clock`` of ``time.time``. Raises Refused."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None:
            keys = await known.issuer.source.keys(now)
            if keys is known.keys and clock < known.ends:
                self._known.move_to_end(digest)
                return known.permit
            self._known.pop(digest, None)
        checked = await self._checked(token, now)
        self._known[digest] = checked
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return checked.permit

    async def _checked(self, token: str, now: float) -> _Known:
        issuer, number, algorithm = self._named(token)
        keys = await issuer.source.keys(now)
        key = None if keys is None else keys.find(number, algorithm)
        if key is None:
            keys = await issuer.source.newer(now)
            key = None if keys is None else keys.find(number, algorithm)
        if keys is None:
            raise keys_away()
        if key is None:
            raise invalid_token(detail=f"jwt '{issuer.name}': its key is not known")
        claims = _claims(token, key, issuer)
        subject = claims.get(issuer.subject)
        if not isinstance(subject, str) or not _is_name(subject):
            raise invalid_token(f"the token's claim '{issuer.subject}' tells no name")
        permit = self._rules.permit(f"{TOKEN}{issuer.name}:{subject}", claims)
        return _Known(issuer, keys, claims["exp"] + issuer.leeway, permit)

    def _named(self, token: str) -> tuple[Issuer, str | None, str]:
        """Whose the token says it is, and which key and algorithm it says it is signed with."""
        try:
            header = jwt.get_unverified_header(token)
            told = jwt.decode(token, options={"verify_signature": False})
        except _UNREADABLE as error:
            raise invalid_token(detail=type(error).__name__) from None
        named, algorithm = told.get("iss"), header.get("alg")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise invalid_token(detail="its issuer is not configured")
        if algorithm not in issuer.algorithms:
            raise invalid_token(detail=f"jwt '{issuer.name}': its algorithm is not allowed")
        if "crit" in header:  # we understand none of what it may ask for (RFC 7515, 4.1.11)
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
        claims["exp"] = float(claims["exp"])  # PyJWT takes texts, and integers of any length
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

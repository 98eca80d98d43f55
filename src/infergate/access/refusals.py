"""Why somebody is not let in: what he is told, and the word by which metrics count it.

*Rule.* No text holds anything of a credential, nor what tells a model that may not be used from one
that is not there.
"""

from __future__ import annotations

import enum
from typing import Final

from infergate.core.errors import GatewayError, Kind, Unauthenticated

_REALM: Final = 'Bearer realm="infergate"'
_INVALID: Final = f'{_REALM}, error="invalid_token"'
_AGAIN: Final = 1.0
"""Seconds after which to try again where the gateway cannot tell."""


class Reason(enum.Enum):
    """Each is the label of a metric."""

    NO_CREDENTIALS = "no_credentials"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    INVALID_TOKEN = "invalid_token"  # noqa: S105 - a word
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a word
    KEYS_AWAY = "keys_away"
    FORBIDDEN = "forbidden"
    REQUESTS = "requests"
    BYTES = "bytes"
    STORE_AWAY = "store_away"


class Refused(Exception):  # noqa: N818 - it is an answer
    """Somebody is not let in, for ``reason``; ``error`` is what he is told."""

    def __init__(self, reason: Reason, error: GatewayError) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.error = error


def no_credentials() -> Refused:
    """Nobody in particular asks, and he may not."""
    return Refused(Reason.NO_CREDENTIALS, Unauthenticated("credentials are required", _REALM))


def malformed(public: str) -> Refused:
    """What should tell who asks does not."""
    return Refused(Reason.MALFORMED, Unauthenticated(public, _INVALID))


def unknown_key() -> Refused:
    """No such key, or not any more."""
    return Refused(Reason.UNKNOWN_KEY, Unauthenticated("the key is not known here", _INVALID))


def invalid_token(public: str = "the token is not valid here", detail: str = "") -> Refused:
    """``detail`` is for the log."""
    return Refused(Reason.INVALID_TOKEN, Unauthenticated(public, _INVALID, detail))


def expired_token() -> Refused:
    """It was valid once: its signature has been checked."""
    return Refused(Reason.EXPIRED_TOKEN, Unauthenticated("the token has expired", _INVALID))


def keys_away() -> Refused:
    """Nobody can tell: not 401, on which clients throw their tokens away."""
    told = "tokens cannot be checked now"
    return Refused(Reason.KEYS_AWAY, GatewayError(Kind.OVERLOADED, told, retry_after=_AGAIN))


def forbidden(what: str) -> Refused:
    """It is known who asks, and he may not."""
    return Refused(
        Reason.FORBIDDEN, GatewayError(Kind.FORBIDDEN, f"{what} is not allowed to this client")
    )


def too_many(reason: Reason, wait: float) -> Refused:
    """``wait`` is in seconds; ``reason`` is REQUESTS or BYTES."""
    return Refused(
        reason,
        GatewayError(
            Kind.RATE_LIMITED,
            f"this client's rate of {reason.value} is exceeded",
            retry_after=wait,
        ),
    )


def store_away() -> Refused:
    """Nobody counts, and then none are let in."""
    told = "rates cannot be counted now"
    return Refused(Reason.STORE_AWAY, GatewayError(Kind.OVERLOADED, told, retry_after=_AGAIN))

"""The reasons for which a client is refused: the error it gets and the label in the metrics.

No error text contains any part of a credential, or shows whether a model that may not be used
exists.
"""

from __future__ import annotations

import enum
from typing import Final

from infergate.core.errors import GatewayError, Kind, Unauthenticated

_REALM: Final = 'Bearer realm="infergate"'
_INVALID: Final = f'{_REALM}, error="invalid_token"'
_AGAIN: Final = 1.0
"""Seconds after which to retry while the gateway cannot decide."""


class Reason(enum.Enum):
    """The reason of a rejection; the value is a metric's label."""

    NO_CREDENTIALS = "no_credentials"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    INVALID_TOKEN = "invalid_token"  # noqa: S105 - a label
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a label
    KEYS_AWAY = "keys_away"
    FORBIDDEN = "forbidden"
    REQUESTS = "requests"
    BYTES = "bytes"
    STORE_AWAY = "store_away"


class Refused(Exception):  # noqa: N818 - an outcome rather than an error
    """The client is refused for ``reason``; ``error`` is the response."""

    def __init__(self, reason: Reason, error: GatewayError) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.error = error


def no_credentials() -> Refused:
    """An anonymous client that may not make the request."""
    return Refused(Reason.NO_CREDENTIALS, Unauthenticated("credentials are required", _REALM))


def malformed(public: str) -> Refused:
    """A credential that cannot be read."""
    return Refused(Reason.MALFORMED, Unauthenticated(public, _INVALID))


def unknown_key() -> Refused:
    """A key that does not exist, or no longer."""
    return Refused(Reason.UNKNOWN_KEY, Unauthenticated("the key is not known here", _INVALID))


def invalid_token(public: str = "the token is not valid here", detail: str = "") -> Refused:
    """A token that failed verification. ``detail`` is for the log only."""
    return Refused(Reason.INVALID_TOKEN, Unauthenticated(public, _INVALID, detail))


def expired_token() -> Refused:
    """A token that has a valid signature but has expired."""
    return Refused(Reason.EXPIRED_TOKEN, Unauthenticated("the token has expired", _INVALID))


def keys_away() -> Refused:
    """The issuer's keys are unavailable. Not 401, on which clients discard their tokens."""
    text = "tokens cannot be checked now"
    return Refused(Reason.KEYS_AWAY, GatewayError(Kind.OVERLOADED, text, retry_after=_AGAIN))


def forbidden(what: str) -> Refused:
    """An identified client that may not do ``action``."""
    return Refused(
        Reason.FORBIDDEN, GatewayError(Kind.FORBIDDEN, f"{what} is not allowed to this client")
    )


def too_many(reason: Reason, wait: float) -> Refused:
    """A rate limit is exceeded. ``wait`` is in seconds; ``reason`` is REQUESTS or BYTES."""
    return Refused(
        reason,
        GatewayError(
            Kind.RATE_LIMITED,
            f"this client's rate of {reason.value} is exceeded",
            retry_after=wait,
        ),
    )


def store_away() -> Refused:
    """Rates cannot be counted, and the operator wants requests refused meanwhile."""
    text = "rates cannot be counted now"
    return Refused(Reason.STORE_AWAY, GatewayError(Kind.OVERLOADED, text, retry_after=_AGAIN))

"""The reasons for rejecting a client. Each reason has an error and a metric label.

No error text contains any part of a credential or reveals whether a forbidden model exists."""

from __future__ import annotations

import enum
from typing import Final

from infergate.core.errors import GatewayError, Kind, UnauthenticatedError

_REALM: Final = 'Bearer realm="infergate"'
_INVALID: Final = f'{_REALM}, error="invalid_token"'
_RETRY_AFTER_SECONDS: Final = 1.0
"""``Retry-After`` in seconds, while credentials or rate limits cannot be checked."""


class RejectionReason(enum.Enum):
    """The reason for a rejection. The value is a metric label."""

    NO_CREDENTIALS = "no_credentials"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    INVALID_TOKEN = "invalid_token"  # noqa: S105 - a label
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a label
    KEYS_UNAVAILABLE = "keys_away"
    FORBIDDEN = "forbidden"
    REQUESTS = "requests"
    BYTES = "bytes"
    STORE_UNAVAILABLE = "store_away"


class AccessRejected(Exception):  # noqa: N818 - an outcome rather than an error
    """The client is rejected for ``reason``; ``error`` is sent to the client."""

    def __init__(self, reason: RejectionReason, error: GatewayError) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.error = error


def no_credentials() -> AccessRejected:
    """Return the rejection of an anonymous client that must authenticate."""
    return AccessRejected(
        RejectionReason.NO_CREDENTIALS, UnauthenticatedError("credentials are required", _REALM)
    )


def malformed(public: str) -> AccessRejected:
    """Return the rejection of a malformed credential."""
    return _invalid(RejectionReason.MALFORMED, public)


def unknown_key() -> AccessRejected:
    """Return the rejection of a key that does not exist or has been removed."""
    return _invalid(RejectionReason.UNKNOWN_KEY, "the API key is unknown")


def invalid_token(public: str = "the token is not valid", detail: str = "") -> AccessRejected:
    """Return the rejection of a token that failed verification. ``detail`` is for the log."""
    return _invalid(RejectionReason.INVALID_TOKEN, public, detail)


def expired_token() -> AccessRejected:
    """Return the rejection of an expired token that has a valid signature."""
    return _invalid(RejectionReason.EXPIRED_TOKEN, "the token has expired")


def _invalid(reason: RejectionReason, public: str, detail: str = "") -> AccessRejected:
    return AccessRejected(reason, UnauthenticatedError(public, _INVALID, detail))


def issuer_keys_unavailable() -> AccessRejected:
    """Return the rejection of a token whose issuer's keys are unavailable. The status is not 401,
    because a client that receives 401 discards its token."""
    return _overloaded(RejectionReason.KEYS_UNAVAILABLE, "tokens cannot be checked now")


def rate_store_unavailable() -> AccessRejected:
    """Return the rejection of a request whose rate limits cannot be checked."""
    return _overloaded(RejectionReason.STORE_UNAVAILABLE, "rate limits cannot be checked now")


def _overloaded(reason: RejectionReason, public: str) -> AccessRejected:
    return AccessRejected(
        reason, GatewayError(Kind.OVERLOADED, public, retry_after=_RETRY_AFTER_SECONDS)
    )


def forbidden(action: str) -> AccessRejected:
    """Return the rejection of an identified client that is not permitted to perform ``action``."""
    return AccessRejected(
        RejectionReason.FORBIDDEN,
        GatewayError(Kind.FORBIDDEN, f"{action} is not permitted for this client"),
    )


def rate_exceeded(reason: RejectionReason, wait: float) -> AccessRejected:
    """Return the rejection of a request that exceeds a rate limit. ``wait`` is in seconds;
    ``reason`` is REQUESTS or BYTES."""
    public = f"the permitted rate of {reason.value} is exceeded"
    return AccessRejected(reason, GatewayError(Kind.RATE_LIMITED, public, retry_after=wait))

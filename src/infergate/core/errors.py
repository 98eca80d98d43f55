"""The error type for every failure of a request.

Each codec maps a :class:`GatewayError` to its protocol with one table keyed by :class:`Kind`; no
other code maps errors."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from typing import Final

from infergate.core.limits import Limits

CONFIGURED_LIMITS: Final = frozenset(field.name for field in dataclasses.fields(Limits))
"""The names of the limits that are configured under ``limits``."""
RETRY_AFTER_HEADER: Final = "retry-after"
"""The header with the number of whole seconds after which the client may retry."""
CHALLENGE_HEADER: Final = "www-authenticate"
"""The header that asks the client to authenticate (RFC 9110, 11.6.1)."""


class Kind(enum.Enum):
    """The kind of an error, independent of any protocol."""

    BAD_REQUEST = "bad_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED = "unsupported"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    NO_BACKEND = "no_backend"
    LOOP_DETECTED = "loop_detected"
    TOO_MANY_HOPS = "too_many_hops"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    BACKEND_GARBAGE = "backend_garbage"
    BACKEND_ERROR = "backend_error"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


CLIENT_ERRORS: Final = frozenset({
    Kind.BAD_REQUEST, Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.NOT_FOUND, Kind.ALREADY_EXISTS,
    Kind.METHOD_NOT_ALLOWED, Kind.UNSUPPORTED, Kind.UNSUPPORTED_ENCODING, Kind.TOO_LARGE,
    Kind.RATE_LIMITED, Kind.TOO_MANY_HOPS, Kind.CANCELLED,
})  # fmt: skip
"""The kinds of errors that the client causes. All other errors are failures of the gateway or of a
backend."""


class Origin(enum.Enum):
    """The origin of an error: the gateway itself, or a backend whose response is relayed."""

    GATEWAY = "gateway"
    BACKEND = "backend"


class GatewayError(Exception):
    """The only exception that codecs, backends and the gateway raise for a failed request.

    ``public`` is sent to the client. It names the tensor, field or route at fault and never
    contains tensor data, secrets or addresses. ``detail`` may contain addresses and is only logged.
    ``retry_after`` is in seconds. It is set if the gateway rejects a request as OVERLOADED or
    RATE_LIMITED, and for the error of a backend that sent Retry-After. ``limit`` is the name of the
    exceeded limit (docs/limits.md), or empty; metrics use it as a label."""

    def __init__(  # noqa: PLR0913 - most arguments are keyword-only
        self,
        kind: Kind,
        public: str,
        *,
        origin: Origin = Origin.GATEWAY,
        detail: str = "",
        retry_after: float | None = None,
        limit: str = "",
    ) -> None:
        super().__init__(public)
        self.kind = kind
        self.public = public
        self.origin = origin
        self.detail = detail
        self.retry_after = retry_after
        self.limit = limit

    def append_limit_key(self) -> None:
        """Append the configuration key of the exceeded limit to ``public``. Do nothing if ``limit``
        cannot be configured or ``public`` already has the key."""
        key = f"limits.{self.limit}"
        if self.limit in CONFIGURED_LIMITS and key not in self.public:
            self.public = f"{self.public} ({key})"
            self.args = (self.public,)

    def reworded(self, public: str, detail: str | None = None) -> GatewayError:
        """Return a copy with another ``public`` text and, if ``detail`` is not None, another
        ``detail``."""
        return GatewayError(
            self.kind,
            public,
            origin=self.origin,
            detail=self.detail if detail is None else detail,
            retry_after=self.retry_after,
            limit=self.limit,
        )

    def __repr__(self) -> str:
        return f"GatewayError({self.kind.name}, {self.public!r}, origin={self.origin.name})"


class UnknownRegionError(GatewayError):
    """An error for a tensor that refers to ``region``, a shared memory region that is not
    registered."""

    def __init__(self, region: str, public: str, kind: Kind = Kind.NOT_FOUND) -> None:
        super().__init__(kind, public)
        self.region = region


class RepositoryControlDisabledError(GatewayError):
    """The operator has not enabled loading and unloading of models."""

    def __init__(self) -> None:
        # The text is the same as in a Triton server that polls its repository.
        super().__init__(
            Kind.NO_BACKEND, "explicit model load / unload is not allowed if polling is enabled"
        )


class UnauthenticatedError(GatewayError):
    """The client is not authenticated; ``challenge`` is the value of ``www-authenticate``."""

    def __init__(self, public: str, challenge: str, detail: str = "") -> None:
        super().__init__(Kind.UNAUTHENTICATED, public, detail=detail)
        self.challenge = challenge


def bad_request(public: str, *, limit: str = "") -> GatewayError:
    """Return the error for an invalid request. ``public`` names the invalid field."""
    return GatewayError(Kind.BAD_REQUEST, public, limit=limit)


def internal_error() -> GatewayError:
    """Return the error for a bug. The caller logs the traceback."""
    return GatewayError(Kind.INTERNAL, "internal error")


def backend_failure(kind: Kind, public: str, detail: str = "") -> GatewayError:
    """Return an error that the backend caused."""
    return GatewayError(kind, public, origin=Origin.BACKEND, detail=detail)


def backend_garbage(public: str, detail: str = "") -> GatewayError:
    """Return the error for a backend's response that violates its protocol."""
    return backend_failure(Kind.BACKEND_GARBAGE, public, detail)


def as_backend_error(error: GatewayError) -> GatewayError:
    """Convert ``error``, raised by a check for both requests and responses, to an error about the
    backend's response."""
    if error.kind is Kind.TOO_LARGE:
        return GatewayError(
            Kind.TOO_LARGE,
            f"the backend's response is too large: {error.public}",
            origin=Origin.BACKEND,
        )
    return backend_garbage(f"the backend's response is invalid: {error.public}")


def retry_after_headers(error: GatewayError) -> dict[str, str]:
    """Return the header for ``error.retry_after``, rounded up to whole seconds, if it is set and
    finite."""
    seconds = error.retry_after
    if seconds is None or not math.isfinite(seconds):
        return {}
    return {RETRY_AFTER_HEADER: str(max(0, math.ceil(seconds)))}


def error_headers(error: GatewayError) -> dict[str, str]:
    """Return the HTTP headers of ``error``: Retry-After, WWW-Authenticate, or none."""
    if isinstance(error, UnauthenticatedError):
        return {CHALLENGE_HEADER: error.challenge}
    return retry_after_headers(error)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in a backend's Retry-After header, or None if the header is absent or not
    a whole number, for example a date. Names in ``headers`` are lower-case."""
    value = headers.get(RETRY_AFTER_HEADER, "")
    return float(value) if re.fullmatch("[0-9]{1,9}", value) else None

"""One error for everything that can go wrong with a request.

A codec turns a :class:`GatewayError` into its protocol's form by one table over :class:`Kind`;
nobody else maps errors. ``public`` is told to the client, ``detail`` only to the log.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from typing import Final

from infergate.core.limits import Limits

LIMITS: Final = frozenset(field.name for field in dataclasses.fields(Limits))
"""Limits that are configured, under ``limits``."""
RETRY_AFTER: Final = "retry-after"
"""The header that tells a client when to try again, in whole seconds."""
CHALLENGE: Final = "www-authenticate"
"""The header that tells a client how to say who he is (RFC 9110, 11.6.1)."""


class Kind(enum.Enum):
    """What went wrong, in the gateway's words. Each codec has one row for each of these."""

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
    CONNECT = "connect"
    TIMEOUT = "timeout"
    BACKEND_GARBAGE = "backend_garbage"
    BACKEND_ERROR = "backend_error"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class Origin(enum.Enum):
    """Who decided it: the gateway itself, or the backend whose answer is relayed."""

    GATEWAY = "gateway"
    BACKEND = "backend"


class GatewayError(Exception):
    """The one declared error of codecs, backends and the gateway.

    ``public`` names the tensor, field or route at fault and never holds tensor data, secrets
    or addresses. ``detail`` may hold addresses and is written to the log only.
    ``retry_after`` is in seconds, for OVERLOADED and RATE_LIMITED. ``limit`` is the name of the
    limit that was met (docs/limits.md), where it was one: a metric counts by it.
    """

    def __init__(  # noqa: PLR0913 - each is told by its name
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

    def name_limit(self) -> None:
        """Add to ``public`` the key by which the limit is configured, where it is."""
        key = f"limits.{self.limit}"
        if self.limit in LIMITS and key not in self.public:
            self.public = f"{self.public} ({key})"

    def __repr__(self) -> str:
        return f"GatewayError({self.kind.name}, {self.public!r}, origin={self.origin.name})"


class UnknownRegion(GatewayError):  # noqa: N818 - it says what is wrong
    """A tensor lies in ``region`` of shared memory, which is not registered."""

    def __init__(self, region: str, public: str, kind: Kind = Kind.NOT_FOUND) -> None:
        super().__init__(kind, public)
        self.region = region


class Unauthenticated(GatewayError):  # noqa: N818 - it says what is wrong
    """The gateway does not know who asks; ``challenge`` is what HTTP tells him to say."""

    def __init__(self, public: str, challenge: str, detail: str = "") -> None:
        super().__init__(Kind.UNAUTHENTICATED, public, detail=detail)
        self.challenge = challenge


def bad_request(public: str, *, limit: str = "") -> GatewayError:
    """The client's mistake; ``public`` names the field."""
    return GatewayError(Kind.BAD_REQUEST, public, limit=limit)


def garbage(public: str, detail: str = "") -> GatewayError:
    """A backend's answer that its protocol does not allow."""
    return GatewayError(Kind.BACKEND_GARBAGE, public, origin=Origin.BACKEND, detail=detail)


def blamed(error: GatewayError) -> GatewayError:
    """What reading a backend's answer found wrong, by checks that requests undergo too, as the
    backend's doing."""
    if error.kind is Kind.TOO_LARGE:
        return GatewayError(
            Kind.TOO_LARGE,
            f"the backend's answer is too large: {error.public}",
            origin=Origin.BACKEND,
        )
    return garbage(f"the backend's answer is wrong: {error.public}")


def retry_headers(error: GatewayError) -> dict[str, str]:
    """The headers that tell ``error.retry_after``, whole seconds rounded up; none where there is
    none to tell."""
    after = error.retry_after
    if after is None or not math.isfinite(after):
        return {}
    return {RETRY_AFTER: str(max(0, math.ceil(after)))}


def refusal_headers(error: GatewayError) -> dict[str, str]:
    """The headers of HTTP that belong to ``error``: when to try again, and how to say who asks."""
    if isinstance(error, Unauthenticated):
        return {CHALLENGE: error.challenge}
    return retry_headers(error)


def retry_seconds(headers: Mapping[str, str]) -> float | None:
    """What a backend's ``headers`` (names in lower case) tell of it; None also for a date."""
    told = headers.get(RETRY_AFTER, "")
    return float(told) if re.fullmatch("[0-9]{1,9}", told) else None

"""Determines the kind of server behind a backend from the configuration or the server's metadata.

*Rule 1.* A detected profile stays valid if a later detection fails, because a server whose metadata
request hangs may still serve inferences.

*Rule 2.* Before the first successful detection, an unreachable, unready or overloaded server causes
an error, and so does a detection that reaches the client's deadline. After a permanent error (such
as NOT_FOUND), the generic profile is used for a minute, and after any other error for a second."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from infergate.backends.single_flight import STALE_SECONDS, SingleFlightCache
from infergate.codecs.base import Capabilities, Profile
from infergate.codecs.profiles import GENERIC
from infergate.core.errors import GatewayError, Kind
from infergate.core.request_context import RequestContext

_LIFETIME_SECONDS: Final = 60.0  # another kind of server may replace the server
_DETECTION_TIMEOUT_SECONDS: Final = 2.0
_UNREACHABLE: Final = frozenset({Kind.CONNECT, Kind.NO_BACKEND, Kind.OVERLOADED})
_PERMANENT_ERRORS: Final = frozenset({Kind.NOT_FOUND, Kind.UNSUPPORTED, Kind.BACKEND_GARBAGE})


class ProfileDetection:
    """Caches the profile that ``fetch`` detects, and adds the ``capabilities`` that every server of
    the protocol has. If the configuration declares a profile, ``declared`` is used and ``fetch`` is
    not called."""

    def __init__(
        self,
        declared: Profile | None,
        fetch: Callable[[RequestContext], Awaitable[Profile]],
        capabilities: Capabilities,
    ) -> None:
        self._capabilities: Final = capabilities
        self._generic: Final = self._complete(GENERIC)
        self.declared: Final = declared and self._complete(declared)
        self._fetch: Final = fetch
        self._last_detected: Profile | None = None
        self._cache: Final = SingleFlightCache(self._detect)

    @property
    def current_profile(self) -> Profile | None:
        """The declared or cached profile, or None if the profile must be detected."""
        return self.declared or self._cache.cached

    @property
    def cached_profile(self) -> Profile:
        """The declared profile, or else the cached profile, or else the generic profile. The server
        is not contacted."""
        return self.declared or self._cache.cached or self._generic

    async def profile(self, context: RequestContext) -> Profile:
        """Return the profile, and detect it if needed. ``context`` must have a deadline. Raises
        GatewayError as described in Rule 2, and TimeoutError if another caller's detection outlasts
        the deadline."""
        return self.declared or await self._cache.get(context)

    def _complete(self, profile: Profile) -> Profile:
        capabilities = self._capabilities
        if not (capabilities.reports_config or capabilities.reports_statistics):
            return profile
        return replace(
            profile,
            reports_config=profile.reports_config or capabilities.reports_config,
            reports_statistics=profile.reports_statistics or capabilities.reports_statistics,
        )

    async def _detect(self, context: RequestContext) -> tuple[Profile, float]:
        client_deadline = context.deadline
        context.shorten_deadline(time.monotonic() + _DETECTION_TIMEOUT_SECONDS)
        try:
            self._last_detected = self._complete(await self._fetch(context))
        except GatewayError as error:
            if self._last_detected is not None:
                return self._last_detected, _LIFETIME_SECONDS
            client_timed_out = error.kind is Kind.TIMEOUT and context.deadline == client_deadline
            if client_timed_out or error.kind in _UNREACHABLE:
                raise
            return (
                self._generic,
                _LIFETIME_SECONDS if error.kind in _PERMANENT_ERRORS else STALE_SECONDS,
            )
        return self._last_detected, _LIFETIME_SECONDS

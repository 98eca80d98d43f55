"""Authorizes every request, whatever its protocol, before a backend is contacted.

- A client that presents a key or a token is identified by that alone, and refused if it is invalid.
  A client without a credential is identified by the first name in its TLS certificate, or else is
  anonymous.
- The error for an anonymous client requests credentials (UNAUTHENTICATED, never FORBIDDEN).
- Each request of a stream is authorized with the credentials of its stream, as valid at that moment
  and under the configuration then active.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from infergate.access import rejection as rejections
from infergate.access.credentials import read_credential
from infergate.access.keys import ApiKeys
from infergate.access.rate_limits import LocalRateStore, RateLimits, RateStoreUnavailableError
from infergate.access.rejection import AccessRejected
from infergate.access.rules import (
    CERTIFICATE_PREFIX,
    HEALTH,
    KEY_PREFIX,
    OPERATION_NAMES,
    STATE_CHANGING,
    AccessRules,
    RulePermit,
)
from infergate.access.watched_file import WatchedFile
from infergate.codecs.base import RequestSummary
from infergate.core.bounded_cache import BoundedCache
from infergate.core.errors import GatewayError
from infergate.core.messages import OPERATION_NAMES as NAMES
from infergate.core.messages import SharedMemoryStatusRequest
from infergate.core.request_context import RequestContext

_MAX_CACHED_PERMITS: Final = 4096
"""Cached permits of keys and certificates."""


RouteLabelLookup = Callable[[str, str, Mapping[str, str]], str]
"""Returns the label of the route for a request's model, version and headers; empty if there is
none."""


class TokenVerifier(Protocol):
    """Implemented by ``tokens.JwtVerifier``, which is imported only if tokens are configured."""

    async def verify(self, token: str, now: float, wall_time: float) -> RulePermit:
        """Return the permit of the token's subject. Raises AccessRejected."""
        ...


class KeyRing:
    """The keys in the configuration and those in its key file."""

    def __init__(self, configured: ApiKeys, file: WatchedFile[ApiKeys] | None) -> None:
        self._configured: Final = configured
        self._file: Final = file

    async def find_owner(self, secret: str, now: float) -> str | None:
        """Return the name of the key's owner; None for an unknown key."""
        name = self._configured.find_owner(secret)
        if name is None and self._file is not None:
            name = (await self._file.current(now)).find_owner(secret)
        return name


class Authorizer:
    """The whole ``access`` section of a configuration."""

    def __init__(  # noqa: PLR0913 - one parameter for each configurable part
        self,
        *,
        rules: AccessRules,
        keys: KeyRing,
        tokens: TokenVerifier | None,
        rates: RateLimits | None,
        local_store: LocalRateStore,
        route_label: RouteLabelLookup,
        on_rejected: Callable[[str], None],
        on_change_denied: Callable[[type, RequestContext, GatewayError], None],
        close_callbacks: Sequence[Callable[[], Awaitable[None]]],
        open_health: bool,
        has_shared_memory: bool,
    ) -> None:
        """``local_store`` holds the rates that are counted in this gateway. ``on_rejected`` is
        called with the reason of each rejection, ``on_change_denied`` for rejected operations that
        would have changed a server's state. ``close_callbacks`` close connections."""
        self._rules: Final = rules
        self._keys: Final = keys
        self._tokens: Final = tokens
        self._rates: Final = rates
        self.local_store: Final = local_store
        self.route_label = route_label
        self._on_rejected: Final = on_rejected
        self._on_change_denied: Final = on_change_denied
        self._close_callbacks: Final = close_callbacks
        self._open_health: Final = open_health
        self._has_shared_memory: Final = has_shared_memory
        self._anonymous: Final = rules.anonymous_permit()
        self._permits: Final = BoundedCache[str, RulePermit](_MAX_CACHED_PERMITS)
        self._successor: Authorizer | None = None

    def hand_over_to(self, successor: Authorizer) -> None:
        """Let ``successor`` decide from now on. A stream may outlive the configuration it was
        opened under, but must not outlive a key that was revoked."""
        self._successor = successor

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        """Authorize the request described by ``summary``; return the summary to continue with and
        set the context's permit. Raises UNAUTHENTICATED, FORBIDDEN, RATE_LIMITED, OVERLOADED."""
        if self._successor is not None:
            return await self._successor.authorize(summary, context)
        operation = summary.operation
        kind = OPERATION_NAMES[operation]
        if kind == HEALTH and self._open_health:
            return summary
        now = time.monotonic()
        try:
            permit = context.permit = await self._identify(context, now)
            if not permit.allows(operation, summary.model):
                raise self._forbidden_rejection(permit, operation, summary.model)
            if self._rates is not None and kind != HEALTH:
                await self._charge_rates(self._rates, permit, summary, context, now)
        except AccessRejected as rejection:
            self._on_rejected(rejection.reason.value)
            if kind in STATE_CHANGING:
                self._on_change_denied(operation, context, rejection.error)
            raise rejection.error from None
        if self._has_shared_memory and not permit.allows(SharedMemoryStatusRequest, ""):
            return replace(
                summary, can_pass_through=False
            )  # parse it, to see tensors in shared memory
        return summary

    async def authenticate(self, context: RequestContext) -> None:
        """Set the permit of ``context``, which opens a stream; each request of the stream is
        authorized separately. Raises UNAUTHENTICATED, OVERLOADED."""
        if self._successor is not None:
            await self._successor.authenticate(context)
            return
        try:
            context.permit = await self._identify(context, time.monotonic())
        except AccessRejected as rejection:
            self._on_rejected(rejection.reason.value)
            raise rejection.error from None

    async def _identify(self, context: RequestContext, now: float) -> RulePermit:
        credential = read_credential(context.headers)
        if credential is not None:
            secret = credential.secret
            if credential.may_be_token and self._tokens is not None and secret.count(".") == 2:
                return await self._tokens.verify(secret, now, time.time())
            name = await self._keys.find_owner(secret, now)
            if name is None:
                raise rejections.unknown_key()
            return self._permit_of(KEY_PREFIX + name)
        if context.peer_identity:
            return self._permit_of(CERTIFICATE_PREFIX + context.peer_identity[0])
        if self._anonymous is None:
            raise rejections.no_credentials()
        return self._anonymous

    def _permit_of(self, identity: str) -> RulePermit:
        permit = self._permits.get(identity)
        if permit is None:
            permit = self._permits[identity] = self._rules.permit_for(identity)
        return permit

    def _forbidden_rejection(
        self, permit: RulePermit, operation: type, model: str
    ) -> AccessRejected:
        if permit is self._anonymous:
            return rejections.no_credentials()
        return rejections.forbidden(_describe_action(operation, model))

    async def _charge_rates(
        self,
        rates: RateLimits,
        permit: RulePermit,
        summary: RequestSummary,
        context: RequestContext,
        now: float,
    ) -> None:
        route = (
            self.route_label(summary.model, summary.version, context.headers)
            if summary.model
            else ""
        )
        try:
            exceeded = await rates.charge(
                permit, summary.model, route, context.record.bytes_in, now
            )
        except RateStoreUnavailableError:
            raise rejections.rate_store_unavailable() from None
        if exceeded is not None:
            raise rejections.rate_exceeded(*exceeded)

    async def close(self) -> None:
        """Close all connections."""
        for close in self._close_callbacks:
            await close()


def _describe_action(operation: type, model: str) -> str:
    names: Mapping[type, str] = NAMES
    return f"{names[operation]} of model '{model[:256]}'" if model else names[operation]

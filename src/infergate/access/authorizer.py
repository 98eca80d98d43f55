"""Authorizes every request, whatever its protocol, before a backend is contacted.

- An anonymous client without permission gets UNAUTHENTICATED, never FORBIDDEN.
- Each request of a stream is authorized with the credentials of the stream, by the configuration
  that is active when the request arrives."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from infergate.access import rejection as rejections
from infergate.access.authenticator import Authenticator
from infergate.access.rate_limits import RateLimits
from infergate.access.rejection import AccessRejected
from infergate.access.rules import HEALTH, RULE_OPERATIONS, STATE_CHANGING, RulePermit
from infergate.codecs.base import RequestSummary
from infergate.core.errors import GatewayError
from infergate.core.messages import OPERATION_NAMES, SharedMemoryStatusRequest
from infergate.core.request_context import RequestContext

RouteLabelLookup = Callable[[str, str, Mapping[str, str]], str]
"""A function that returns the label of the route for a model, a version and headers, or an empty
string if no route matches."""


@dataclass(frozen=True)
class AuthorizerSettings:
    """``open_health`` means that health operations need no credentials. ``has_shared_memory`` means
    that requests may refer to shared memory. ``on_rejected`` is called with the reason of each
    rejection, and ``on_change_denied`` for each rejected operation on the repository, the settings
    or shared memory."""

    open_health: bool
    has_shared_memory: bool
    on_rejected: Callable[[str], None]
    on_change_denied: Callable[[type, RequestContext, GatewayError], None]


class Authorizer:
    """Authenticates and authorizes requests, and charges rate limits, as specified by ``access`` in
    the configuration."""

    def __init__(
        self,
        settings: AuthorizerSettings,
        authenticator: Authenticator,
        rates: RateLimits | None,
        *,
        route_label: RouteLabelLookup,
        close_callbacks: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        """``close_callbacks`` close the connections to external services, such as Redis."""
        self._settings: Final = settings
        self._authenticator: Final = authenticator
        self.rates: Final = rates
        self.route_label = route_label
        self._close_callbacks: Final = close_callbacks
        self._successor: Authorizer | None = None

    def hand_over_to(self, successor: Authorizer) -> None:
        """Let ``successor`` decide from now on. A stream may outlive the configuration under which
        it was opened, but must not outlive a revoked key."""
        self._successor = successor

    def decide(self, summary: RequestSummary, context: RequestContext) -> RequestSummary | None:
        """Authorize like ``authorize``, or return None and change nothing if I/O is needed."""
        if self._successor is not None:
            return self._successor.decide(summary, context)
        operation, rates = summary.operation, self.rates
        kind = RULE_OPERATIONS[operation]
        if kind == HEALTH:
            if self._settings.open_health:
                return summary
            rates = None
        if rates is not None and not rates.is_local:
            return None
        now = time.monotonic()
        try:
            permit = self._authenticator.identify_now(context, now)
            if permit is None:
                return None
            self._admit(permit, summary, context)
            if rates is not None:
                route, size = self._route_label(summary, context), context.record.bytes_in
                rates.charge_now(permit, summary.model, route, size, now)
        except AccessRejected as rejection:
            self._report(rejection, operation, context)
            raise rejection.error from None
        return self._permitted(summary, permit)

    async def authorize(self, summary: RequestSummary, context: RequestContext) -> RequestSummary:
        """Authorize the request described by ``summary`` and set the context's permit. Return the
        summary to continue with. Raises UNAUTHENTICATED, FORBIDDEN, RATE_LIMITED and OVERLOADED."""
        if self._successor is not None:
            return await self._successor.authorize(summary, context)
        decided = self.decide(summary, context)
        if decided is not None:
            return decided
        operation, now = summary.operation, time.monotonic()
        try:
            permit = await self._authenticator.identify(context, now)
            self._admit(permit, summary, context)
            if self.rates is not None and RULE_OPERATIONS[operation] != HEALTH:
                route, size = self._route_label(summary, context), context.record.bytes_in
                await self.rates.charge(permit, summary.model, route, size, now)
        except AccessRejected as rejection:
            self._report(rejection, operation, context)
            raise rejection.error from None
        return self._permitted(summary, permit)

    def _admit(self, permit: RulePermit, summary: RequestSummary, context: RequestContext) -> None:
        context.permit = permit
        if not permit.allows(summary.operation, summary.model):
            if permit is self._authenticator.anonymous:
                raise rejections.no_credentials()
            raise rejections.forbidden(_describe_action(summary.operation, summary.model))

    def _report(self, rejection: AccessRejected, operation: type, context: RequestContext) -> None:
        self._settings.on_rejected(rejection.reason.value)
        if RULE_OPERATIONS[operation] in STATE_CHANGING:
            self._settings.on_change_denied(operation, context, rejection.error)

    def _permitted(self, summary: RequestSummary, permit: RulePermit) -> RequestSummary:
        if self._settings.has_shared_memory and not permit.allows(SharedMemoryStatusRequest, ""):
            # The message is parsed, so that its references to shared memory are checked.
            return replace(summary, can_pass_through=False)
        return summary

    async def authenticate(self, context: RequestContext) -> None:
        """Set the permit of ``context``, the context of a new stream. Each request of the stream is
        authorized separately. Raises UNAUTHENTICATED and OVERLOADED."""
        if self._successor is not None:
            await self._successor.authenticate(context)
            return
        try:
            context.permit = await self._authenticator.identify(context, time.monotonic())
        except AccessRejected as rejection:
            self._settings.on_rejected(rejection.reason.value)
            raise rejection.error from None

    def _route_label(self, summary: RequestSummary, context: RequestContext) -> str:
        model = summary.model
        return self.route_label(model, summary.version, context.headers) if model else ""

    async def close(self) -> None:
        for close in self._close_callbacks:
            await close()


def _describe_action(operation: type, model: str) -> str:
    names: Mapping[type, str] = OPERATION_NAMES
    return f"{names[operation]} of model '{model[:256]}'" if model else names[operation]

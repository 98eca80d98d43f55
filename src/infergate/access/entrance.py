"""Who comes in: every request of every protocol passes here before a backend hears of it.

*Rule 1.* Who says who he is by a key or a token is believed that alone, and refused where it is
wrong. Who says nothing is whom his connection's certificate names first, else anonymous.
*Rule 2.* Anonymous is never told that something is forbidden, but to say who he is.
*Rule 3.* A request of a stream is looked at like any other, with the credentials of its stream as
they are worth now, by the configuration of now.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from infergate.access import refusals
from infergate.access.credentials import presented
from infergate.access.files import Watched
from infergate.access.keys import Keys
from infergate.access.rates import InMemory, Rates, StoreAway
from infergate.access.refusals import Refused
from infergate.access.rules import CERTIFICATE, CHANGES, HEALTH, KEY, OPERATIONS, Granted, Rules
from infergate.codecs.base import Peek
from infergate.core.call import Call
from infergate.core.errors import GatewayError
from infergate.core.messages import OPERATIONS as NAMES
from infergate.core.messages import SharedMemoryStatusRequest

_REMEMBERED: Final = 4096
"""Identities of keys and certificates."""


RouteOf = Callable[[str, str, Mapping[str, str]], str]
"""Of a request's model, version and headers: what logs call its route; empty for none."""


class TokenCheck(Protocol):
    """See ``tokens.Tokens``, which is loaded where tokens are taken."""

    async def permit(self, token: str, now: float, clock: float) -> Granted:
        """Raises Refused."""
        ...


class KeyRing:
    """The keys of the configuration and those of its file."""

    def __init__(self, given: Keys, file: Watched[Keys] | None) -> None:
        self._given: Final = given
        self._file: Final = file

    async def find(self, secret: str, now: float) -> str | None:
        """Whose key it is."""
        name = self._given.find(secret)
        if name is None and self._file is not None:
            name = (await self._file.current(now)).find(secret)
        return name


class Entrance:
    """All of a configuration's ``access``."""

    def __init__(  # noqa: PLR0913 - one for each thing that may be configured
        self,
        *,
        rules: Rules,
        keys: KeyRing,
        tokens: TokenCheck | None,
        rates: Rates | None,
        memory: InMemory,
        route_of: RouteOf,
        refused: Callable[[str], None],
        denied: Callable[[type, Call, GatewayError], None],
        closing: Sequence[Callable[[], Awaitable[None]]],
        open_health: bool,
        shares_memory: bool,
    ) -> None:
        """``memory`` is where rates are counted that are counted here; ``refused`` is told each
        refusal's reason, ``denied`` those of operations that would have changed something;
        ``closing`` lets go of connections."""
        self._rules: Final = rules
        self._keys: Final = keys
        self._tokens: Final = tokens
        self._rates: Final = rates
        self.memory: Final = memory
        self.route_of = route_of
        self._refused: Final = refused
        self._denied: Final = denied
        self._closing: Final = closing
        self._open_health: Final = open_health
        self._shares_memory: Final = shares_memory
        self._anonymous: Final = rules.anonymous()
        self._known: Final[dict[str, Granted]] = {}
        self._after: Entrance | None = None

    def give_way(self, after: Entrance) -> None:
        """From now on ``after`` says who comes in. Streams outlive the configuration that they
        were begun under, but not a key that is taken back."""
        self._after = after

    async def admitted(self, peek: Peek, call: Call) -> Peek:
        """How to go on with a request that ``peek`` tells of; who asks is noted on ``call``. Raises
        UNAUTHENTICATED, FORBIDDEN, RATE_LIMITED, OVERLOADED."""
        if self._after is not None:
            return await self._after.admitted(peek, call)
        operation = peek.operation
        kind = OPERATIONS[operation]
        if kind == HEALTH and self._open_health:
            return peek
        now = time.monotonic()
        try:
            permit = call.permit = await self._permit(call, now)
            if not permit.allows(operation, peek.model):
                raise self._forbidden(permit, operation, peek.model)
            if self._rates is not None and kind != HEALTH:
                await self._count(self._rates, permit, peek, call, now)
        except Refused as refusal:
            self._refused(refusal.reason.value)
            if kind in CHANGES:
                self._denied(operation, call, refusal.error)
            raise refusal.error from None
        if self._shares_memory and not permit.allows(SharedMemoryStatusRequest, ""):
            return replace(peek, forwards=False)  # so that it is seen where its tensors lie
        return peek

    async def known(self, call: Call) -> None:
        """Who opens a stream is noted on ``call``; what he may is seen at each request. Raises
        UNAUTHENTICATED, OVERLOADED."""
        if self._after is not None:
            await self._after.known(call)
            return
        try:
            call.permit = await self._permit(call, time.monotonic())
        except Refused as refusal:
            self._refused(refusal.reason.value)
            raise refusal.error from None

    async def _permit(self, call: Call, now: float) -> Granted:
        credential = presented(call.headers)
        if credential is not None:
            secret = credential.secret
            if credential.may_be_token and self._tokens is not None and secret.count(".") == 2:
                return await self._tokens.permit(secret, now, time.time())
            name = await self._keys.find(secret, now)
            if name is None:
                raise refusals.unknown_key()
            return self._remembered(KEY + name)
        if call.peer_identity:
            return self._remembered(CERTIFICATE + call.peer_identity[0])
        if self._anonymous is None:
            raise refusals.no_credentials()
        return self._anonymous

    def _remembered(self, identity: str) -> Granted:
        known = self._known.get(identity)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[identity] = self._rules.permit(identity)
        return known

    def _forbidden(self, permit: Granted, operation: type, model: str) -> Refused:
        if permit is self._anonymous:
            return refusals.no_credentials()
        return refusals.forbidden(_what(operation, model))

    async def _count(
        self, rates: Rates, permit: Granted, peek: Peek, call: Call, now: float
    ) -> None:
        route = self.route_of(peek.model, peek.version, call.headers) if peek.model else ""
        try:
            full = await rates.take(permit, peek.model, route, call.bytes_in, now)
        except StoreAway:
            raise refusals.store_away() from None
        if full is not None:
            raise refusals.too_many(*full)

    async def close(self) -> None:
        """Let go of connections."""
        for each in self._closing:
            await each()


def _what(operation: type, model: str) -> str:
    named: Mapping[type, str] = NAMES
    return f"{named[operation]} of model '{model[:256]}'" if model else named[operation]

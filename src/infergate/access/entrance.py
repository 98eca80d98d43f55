"""Authorizes every request, whatever its protocol, before a backend is contacted.

- A client that presents a key or a token is identified by that alone, and refused if it is invalid.
  A client without a credential is identified by the first name in its TLS certificate, or else is
  anonymous.
- An anonymous client that is refused is asked for credentials, never told that something is
  forbidden.
- Each request of a stream is authorized with the credentials of its stream, as valid at that moment
  and under the configuration then active.
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
"""Cached permits of keys and certificates."""


RouteOf = Callable[[str, str, Mapping[str, str]], str]
"""Returns the label of the route for a request's model, version and headers; empty if there is
none."""


class TokenCheck(Protocol):
    """Implemented by ``tokens.JwtVerifier``, which is imported only if tokens are configured."""

    async def permit(self, token: str, now: float, clock: float) -> Granted:
        """Return the permit of the token's subject. Raises AccessRejected."""
        ...


class KeyRing:
    """The keys in the configuration and those in its key file."""

    def __init__(self, given: Keys, file: Watched[Keys] | None) -> None:
        self._given: Final = given
        self._file: Final = file

    async def find(self, secret: str, now: float) -> str | None:
        """Return the name of the key's owner; None for an unknown key."""
        name = self._given.find(secret)
        if name is None and self._file is not None:
            name = (await self._file.current(now)).find(secret)
        return name


class Entrance:
    """The whole ``access`` section of a configuration."""

    def __init__(  # noqa: PLR0913 - one parameter for each configurable part
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
        """``local_store`` holds the rates that are counted in this gateway. ``on_rejected`` is
        called with the reason of each rejection, ``on_change_denied`` for rejected operations that
        would have changed a server's state. ``close_callbacks`` close connections."""
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
        """Let ``successor`` decide from now on. A stream may outlive the configuration it was
        opened under, but must not outlive a key that was revoked."""
        self._after = after

    async def admitted(self, peek: Peek, call: Call) -> Peek:
        """Authorize the request described by ``summary``; return the summary to continue with and
        set the permit of ``call``. Raises UNAUTHENTICATED, FORBIDDEN, RATE_LIMITED, OVERLOADED."""
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
        except Refused as rejection:
            self._refused(rejection.reason.value)
            if kind in CHANGES:
                self._denied(operation, call, rejection.error)
            raise rejection.error from None
        if self._shares_memory and not permit.allows(SharedMemoryStatusRequest, ""):
            return replace(peek, forwards=False)  # parse it, to see tensors in shared memory
        return peek

    async def known(self, call: Call) -> None:
        """Set the permit of ``call``, which opens a stream; each request of the stream is
        authorized separately. Raises UNAUTHENTICATED, OVERLOADED."""
        if self._after is not None:
            await self._after.known(call)
            return
        try:
            call.permit = await self._permit(call, time.monotonic())
        except Refused as rejection:
            self._refused(rejection.reason.value)
            raise rejection.error from None

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
        permit = self._known.get(identity)
        if permit is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            permit = self._known[identity] = self._rules.permit(identity)
        return permit

    def _forbidden(self, permit: Granted, operation: type, model: str) -> Refused:
        if permit is self._anonymous:
            return refusals.no_credentials()
        return refusals.forbidden(_what(operation, model))

    async def _count(
        self, rates: Rates, permit: Granted, peek: Peek, call: Call, now: float
    ) -> None:
        route = self.route_of(peek.model, peek.version, call.headers) if peek.model else ""
        try:
            exceeded = await rates.take(permit, peek.model, route, call.bytes_in, now)
        except StoreAway:
            raise refusals.store_away() from None
        if exceeded is not None:
            raise refusals.too_many(*exceeded)

    async def close(self) -> None:
        """Close all connections."""
        for close in self._closing:
            await close()


def _what(operation: type, model: str) -> str:
    names: Mapping[type, str] = NAMES
    return f"{names[operation]} of model '{model[:256]}'" if model else names[operation]

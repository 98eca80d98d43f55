"""Identifies the client of a request.

A client that presents a key or a token is identified only by that credential, and is rejected if
the credential is invalid. A client without a credential is identified by the first name in its TLS
certificate. Without a certificate, it is anonymous."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from infergate.access import rejection as rejections
from infergate.access.credentials import Credential, read_credential
from infergate.access.keys import ApiKeys
from infergate.access.rules import CERTIFICATE_PREFIX, KEY_PREFIX, AccessRules, RulePermit
from infergate.access.watched_file import WatchedFile
from infergate.core.bounded_cache import BoundedCache
from infergate.core.request_context import RequestContext

if TYPE_CHECKING:  # PyJWT is optional
    from infergate.access.tokens import JwtVerifier

_MAX_CACHED_PERMITS: Final = 4096
"""Maximum number of cached permits of keys and certificates."""


class KeyRing:
    """The keys in the configuration and in its key file."""

    def __init__(self, configured: ApiKeys, file: WatchedFile[ApiKeys] | None) -> None:
        self._configured: Final = configured
        self._file: Final = file

    def find_owner_now(self, secret: str, now: float) -> str | None:
        """Return the name of the key's owner, or None if the key is unknown or the key file must
        be read."""
        name = self._configured.find_owner(secret)
        if name is None and self._file is not None:
            current = self._file.current_if_checked(now)
            name = None if current is None else current.find_owner(secret)
        return name

    async def find_owner(self, secret: str, now: float) -> str | None:
        """Return the name of the key's owner in the key file, or None if there is no file or
        no such key. Call this method only if ``find_owner_now`` returned None."""
        return None if self._file is None else (await self._file.current(now)).find_owner(secret)


class Authenticator:
    """Identifies clients by ``keys``, ``tokens`` and certificates."""

    def __init__(self, rules: AccessRules, keys: KeyRing, tokens: JwtVerifier | None) -> None:
        self._rules: Final = rules
        self._keys: Final = keys
        self._tokens: Final = tokens
        self.anonymous: Final = rules.anonymous_permit()
        """The permit of anonymous clients, or None if no rule admits them."""
        self._permits: Final = BoundedCache[str, RulePermit](_MAX_CACHED_PERMITS)

    def identify_now(self, context: RequestContext, now: float) -> RulePermit | None:
        """Return the permit of the client. Return None if ``identify`` must be called, because the
        token is not cached, the key is unknown or the key file must be read. Raises
        AccessRejected."""
        credential = read_credential(context.headers)
        if credential is not None:
            secret, tokens = credential.secret, self._tokens_for(credential)
            if tokens is not None:
                return tokens.cached_permit(secret, now, time.time())
            name = self._keys.find_owner_now(secret, now)
            return None if name is None else self._permit_of(KEY_PREFIX + name)
        if context.peer_identity:
            return self._permit_of(CERTIFICATE_PREFIX + context.peer_identity[0])
        if self.anonymous is None:
            raise rejections.no_credentials()
        return self.anonymous

    async def identify(self, context: RequestContext, now: float) -> RulePermit:
        """Return the permit of the client. Raises AccessRejected."""
        permit = self.identify_now(context, now)
        if permit is not None:
            return permit
        credential = read_credential(context.headers)
        assert credential is not None
        secret, tokens = credential.secret, self._tokens_for(credential)
        if tokens is not None:
            return await tokens.verify(secret, now, time.time())
        name = await self._keys.find_owner(secret, now)
        if name is None:
            raise rejections.unknown_key()
        return self._permit_of(KEY_PREFIX + name)

    def _tokens_for(self, credential: Credential) -> JwtVerifier | None:
        """Return the verifier of tokens, or None if ``credential`` does not have the form of a
        token or no tokens are accepted."""
        is_token = credential.may_be_token and credential.secret.count(".") == 2
        return self._tokens if is_token else None

    def _permit_of(self, identity: str) -> RulePermit:
        permit = self._permits.get(identity)
        if permit is None:
            permit = self._permits[identity] = self._rules.permit_for(identity)
        return permit

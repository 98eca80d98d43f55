"""Reads the credential in the headers or metadata of a request. This module has no I/O.

``Authorization: Bearer …`` (RFC 6750, 2.1) holds a key or a token; ``x-api-key: …`` holds a key.

A request may have one well-formed credential. A request with a malformed credential, or with
several credentials, is rejected and never treated as anonymous (RFC 6750, 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from infergate.access.rejection import malformed
from infergate.core.records import record

BEARER: Final = "authorization"
API_KEY: Final = "x-api-key"
MAX_CREDENTIAL_CHARS: Final = 8192
"""Maximum length of a key or token. A token that lists many groups has about 4000 characters."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The syntax ``token68`` (RFC 9110, 11.2)."""
_SCHEME: Final = re.compile(r"bearer +", re.IGNORECASE)


@record
class Credential:
    """A credential. ``secret`` is a key or, if ``may_be_token`` is true, a key or a token. ``repr``
    does not show the secret."""

    secret: str = field(repr=False)
    may_be_token: bool


def read_credential(headers: Mapping[str, str]) -> Credential | None:
    """Return the credential in ``headers`` (lower-case names), or None if there is no credential.
    Raises AccessRejected for a malformed credential and for several credentials."""
    bearer, key = headers.get(BEARER), headers.get(API_KEY)
    if bearer is None:
        if key is None:
            return None
        return Credential(_check_secret(key, API_KEY), may_be_token=False)
    if key is not None:
        raise malformed(f"{BEARER} and {API_KEY} are both present; send only one of them")
    scheme = _SCHEME.match(bearer)
    if scheme is None:
        raise malformed(f"{BEARER} is not of the form 'Bearer …'")
    return Credential(_check_secret(bearer[scheme.end() :], BEARER), may_be_token=True)


def _check_secret(secret: str, header: str) -> str:
    if len(secret) > MAX_CREDENTIAL_CHARS:
        raise malformed(f"the credential in {header} exceeds {MAX_CREDENTIAL_CHARS} characters")
    if _TOKEN.fullmatch(secret) is None:
        raise malformed(
            f"the credential in {header} must consist of letters, digits and . _ ~ + / -, and may "
            "end with ="
        )
    return secret

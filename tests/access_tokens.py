"""Tokens and key sets for tests. Keys are generated only once per process, because generating them
is slow."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://idp.example"
AUDIENCE = "infergate"


@functools.cache
def rsa_key(name: str = "rsa") -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def ec_key(name: str = "ec") -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def ed_key(name: str = "ed") -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def jwk(key: Any, **fields: Any) -> dict[str, Any]:
    algorithm: Any = ECAlgorithm
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = RSAAlgorithm
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        algorithm = OKPAlgorithm
    document: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**document, **fields}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of a valid token. A claim that is None is omitted."""
    now = int(time.time())
    fields = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "iat": now,
        "exp": now + 600,
        **changed,
    }
    return {name: value for name, value in fields.items() if value is not None}


def token(key: Any = None, algorithm: str = "RS256", kid: str | None = "1", **changed: Any) -> str:
    """Return a signed token with the claims of ``claims(**changed)``."""
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changed), key or rsa_key(), algorithm, headers)

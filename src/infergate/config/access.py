"""Who may ask what, and how often: a part of the schema."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    InstanceOf,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from infergate.access import rules
from infergate.access.keys import Key, parse_file, parse_hash, parse_name
from infergate.config.fields import (
    Duration,
    FilePath,
    Name,
    Pattern,
    Positive,
    PositiveDuration,
    PositiveSize,
    read_by,
)
from infergate.config.mistakes import Finding, or_else
from infergate.config.section import Section
from infergate.config.values import Url, parse_size, parse_text, parse_url, told
from infergate.core.call import ANONYMOUS
from infergate.routing.table import is_glob, is_regex

_RATE: Final = re.compile(r"([^/]+)/ ?(s|m|h)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_COUNT: Final = re.compile(r"[1-9][0-9]{0,8}")
_REDIS: Final = ("redis", "rediss", "unix")
_PREFIXES: Final = (rules.KEY, rules.TOKEN, rules.CERTIFICATE)
_PROVIDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class PerTime:
    """``amount`` (requests or bytes) in ``seconds``."""

    amount: int
    seconds: float
    spelt: str

    def __str__(self) -> str:
        return self.spelt


def _per_time(amount: Callable[[str], int], example: str) -> Callable[[Any], PerTime]:
    def parse(value: Any) -> PerTime:
        match = _RATE.fullmatch(value) if isinstance(value, str) else None
        try:
            number = amount(match[1].strip()) if match else 0
        except ValueError:
            number = 0
        if match is None or number < 1:
            raise ValueError(f"expected a rate like {example}, got {told(value)}")
        return PerTime(number, _SECONDS[match[2]], value)

    return parse


def _parse_count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise ValueError
    return int(text)


def _parse_redis(value: Any) -> str:
    """It is not told: it may hold a password."""
    text = parse_text(value)
    try:
        url = urlsplit(text)
        scheme, _ = url.scheme, url.port
    except ValueError:  # of a password with a slash the beginning would be a port, and be told
        scheme = ""
    if scheme not in _REDIS:
        raise ValueError("expected a URL like redis://host:6379/0, rediss://… or unix:///path")
    return text


def _readable(value: Any, read: ValidatorFunctionWrapHandler) -> Path:
    path: Path = read(value)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        why = error.strerror or "no such path"
        raise PydanticCustomError(
            "mistake", "the file '{path}' cannot be read: {why}", {"path": str(value), "why": why}
        ) from None


def _with_keys(value: Any, read: ValidatorFunctionWrapHandler) -> Path:
    path: Path = read(value)
    try:
        parse_file(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PydanticCustomError(
            "mistake", "the file '{path}': {why}", {"path": str(value), "why": str(error)}
        ) from None
    return path


Requests = Annotated[
    InstanceOf[PerTime],
    read_by(_per_time(_parse_count, "100/s, 600/m or 10000/h")),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "rate", "examples": ["100/s"]}),
]
Bytes = Annotated[
    InstanceOf[PerTime],
    read_by(_per_time(parse_size, "10MiB/s or 1GiB/m")),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "size in a time", "examples": ["10MiB/s"]}),
]
KeyName = Annotated[str, read_by(parse_name), WithJsonSchema({"type": "string", "format": "name"})]
KeyHash = Annotated[
    bytes,
    read_by(parse_hash),
    PlainSerializer(bytes.hex),
    WithJsonSchema({"type": "string", "format": "SHA-256 in hexadecimal"}),
]
File = Annotated[FilePath, WrapValidator(_readable)]
KeyFile = Annotated[File, WrapValidator(_with_keys)]
WebUrl = Annotated[
    InstanceOf[Url],
    read_by(parse_url),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "URL"}),
]
RedisUrl = Annotated[
    str,
    read_by(_parse_redis),
    PlainSerializer(lambda url: f"{urlsplit(url).scheme}:…"),
    WithJsonSchema({"type": "string", "format": "URL"}),
]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Operation = Literal[
    "infer", "metadata", "statistics", "repository", "shared_memory", "settings", "health"
]


class KeyConfig(Section):
    """One key: its owner's name and its hash. `infergate key` makes both a key and its hash."""

    name: KeyName = Field(
        description="Whose key it is; rules call it `key:<name>`. Several keys may have one name, "
        "while one takes the place of another."
    )
    sha256: KeyHash = Field(description="The hash of the key, which is itself written nowhere.")

    @property
    def key(self) -> Key:
        """As look-ups take it."""
        return Key(self.name, self.sha256)


class JwtConfig(Section):
    """An issuer whose JSON Web Tokens are taken."""

    issuer: Name = Field(description="The claim `iss` of its tokens, to the letter.")
    audiences: tuple[Name, ...] = Field(
        min_length=1, description="One of these is in the claim `aud` of its tokens."
    )
    jwks_file: File | None = Field(
        default=None,
        description="Its public keys, a JWK set: a path seen from this file. It is read again when "
        "it changes.",
    )
    jwks_url: WebUrl | None = Field(
        default=None,
        description="Where its public keys are had, over http or https. They are asked for when "
        "they are first needed, when they are older than `refresh`, and for a token whose key is "
        "not known, every 30 s at most; they are kept while the URL is away.",
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"),
        min_length=1,
        description="What its tokens may be signed with. Shared secrets (HS256) and `none` are not "
        "to be had.",
    )
    leeway: Duration = Field(
        default=10.0, description="How far its clock and ours may be apart (`exp`, `nbf`, `iat`)."
    )
    subject: Name = Field(
        default="sub",
        description="The claim that says who somebody is; rules call him "
        "`jwt:<name of this issuer>:<subject>`.",
    )
    refresh: PositiveDuration = Field(
        default=300.0, description="How old keys from a URL become before they are asked for again."
    )

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if (self.jwks_file is None) == (self.jwks_url is None):
            raise PydanticCustomError("mistake", "one of jwks_file and jwks_url is needed")
        if self.jwks_url is not None and self.jwks_url.scheme not in ("http", "https"):
            raise PydanticCustomError("mistake", "jwks_url begins with https:// or http://")
        return self


class RuleConfig(Section):
    """Who may ask what of which models. Rules only allow; what none allows is refused."""

    who: tuple[Pattern, ...] = Field(
        min_length=1,
        description="Identities or patterns of them, as routes' models are: `key:<name>`, "
        "`jwt:<issuer's name>:<subject>`, `cert:<first name of the client's certificate>`. `*` is "
        "everybody whose credentials are good; `anonymous`, by that word alone, who has none.",
    )
    claims: dict[str, tuple[Pattern, ...]] = Field(
        default={},
        description="And only those whose token has all of these claims, each with one of these "
        "values, like `{groups: [ml-*]}`. `realm_access.roles` is a claim within a claim; `scope` "
        "has words with blanks between.",
    )
    models: tuple[Pattern, ...] = Field(
        default=("*",),
        description="Names or patterns, as in routes. What changes the whole server needs `*`.",
    )
    operations: tuple[Operation, ...] = Field(
        default=("infer", "metadata"),
        min_length=1,
        description="`infer`; `metadata`: what models there are, their metadata, configuration and "
        "readiness, gRPC reflection; `statistics`; `repository`: load and unload; `shared_memory`; "
        "`settings`: trace and log settings; `health`, where `open_health` is false.",
    )


class RateConfig(Section):
    """How much may be asked. Every entry that fits a request counts it, and each must have room."""

    who: tuple[Pattern, ...] = Field(
        default=("*",),
        min_length=1,
        description="As in rules, but that `*` is everybody, `anonymous` too.",
    )
    models: tuple[Pattern, ...] = Field(
        default=("*",), min_length=1, description="Names or patterns, as in routes."
    )
    each: tuple[Literal["identity", "route"], ...] = Field(
        default=("identity", "route"),
        description="What is counted by itself; `[identity]` counts all routes of one together, "
        "`[]` everybody and everything.",
    )
    requests: Requests | None = Field(
        default=None,
        description="How many, and in which time; so many may come at once. A stream's requests "
        "count like others; health does not count.",
    )
    requests_burst: Positive | None = Field(
        default=None, description="How many may come at once, if not as many."
    )
    bytes: Bytes | None = Field(
        default=None,
        description="How many bytes of requests' bodies or messages, and in which time; so many "
        "may come at once, and a request of more when none came for that long.",
    )
    bytes_burst: PositiveSize | None = Field(
        default=None, description="How many may come at once, if not as many."
    )

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if self.requests is None and self.bytes is None:
            raise PydanticCustomError("mistake", "requests, bytes or both are needed")
        for key in ("requests", "bytes"):
            if getattr(self, f"{key}_burst") is not None and getattr(self, key) is None:
                raise PydanticCustomError(
                    "mistake", "{key}_burst is of {key}, which is not there", {"key": key}
                )
        return self


class RedisConfig(Section):
    """A Redis (5 or newer) in which several gateways count together."""

    url: RedisUrl = Field(
        repr=False,
        description="redis://user:password@host:6379/0, rediss:// with TLS, or unix:///path. A "
        "password is best left to the environment: `${REDIS_URL}`.",
    )
    timeout: PositiveDuration = Field(
        default=0.1, description="How long a request waits for it, connecting included."
    )
    away: Literal["local", "open", "closed"] = Field(
        default="local",
        description="While it does not answer: each gateway counts for itself, rates are not kept, "
        "or nobody whom a rate concerns is let in.",
    )


class AccessConfig(Section):
    """Who may ask what. Left out: everybody may ask everything. Once it is there, what no rule
    allows is refused."""

    keys: tuple[KeyConfig, ...] = Field(default=(), description="API keys.")
    keys_file: KeyFile | None = Field(
        default=None,
        description="More of them, a path seen from this file: a line each, `name: SHA-256`. It is "
        "read again when it changes.",
    )
    jwt: dict[str, JwtConfig] = Field(
        default={},
        description="Issuers of JSON Web Tokens, each under a name of your choice. Needs "
        "`pip install infergate[jwt]`.",
    )
    rules: tuple[RuleConfig, ...] = Field(
        min_length=1, description="What is allowed; one that fits is enough."
    )
    rates: tuple[RateConfig, ...] = Field(default=(), description="How often, and how much.")
    redis: RedisConfig | None = Field(
        default=None,
        description="Where rates are counted; left out: in memory, which the workers of a gateway "
        "share, and gateways do not. "
        "Needs `pip install infergate[redis]`.",
    )
    open_health: bool = Field(
        default=True,
        description="Whether everybody may ask whether the server lives and is ready, and "
        "grpc.health.v1.",
    )


def check_access(access: AccessConfig) -> Iterator[Finding]:
    """What is wrong between the entries of ``access``."""
    for path, message in (*_packages(access), *_issuers(access), *_keys(access), *_rules(access)):
        yield ("access", *path), message


def _packages(access: AccessConfig) -> Iterator[Finding]:
    if access.jwt and importlib.util.find_spec("jwt") is None:
        yield ("jwt",), "tokens need another package: pip install 'infergate[jwt]'"
    if access.redis is not None:
        if importlib.util.find_spec("redis") is None:
            yield ("redis",), "this needs another package: pip install 'infergate[redis]'"
        if not access.rates:
            yield ("redis",), "it counts rates, and there are none"


def _issuers(access: AccessConfig) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for name, each in access.jwt.items():
        if not _PROVIDER.fullmatch(name):
            yield ("jwt", name), "a name here has letters, digits and . _ - only"
        if each.issuer in first:
            yield ("jwt", name, "issuer"), f"it is that of '{first[each.issuer]}' already"
        first.setdefault(each.issuer, name)


def _keys(access: AccessConfig) -> Iterator[Finding]:
    first: dict[bytes, str] = {}
    for index, key in enumerate(access.keys):
        if key.sha256 in first:
            yield ("keys", index, "sha256"), f"it is the key of '{first[key.sha256]}' already"
        first.setdefault(key.sha256, key.name)


def _rules(access: AccessConfig) -> Iterator[Finding]:
    entries = [("rules", i, each.who) for i, each in enumerate(access.rules)]
    entries += [("rates", i, each.who) for i, each in enumerate(access.rates)]
    for part, index, patterns in entries:
        for number, who in enumerate(patterns):
            if (wrong := _nobody(who, access)) is not None:
                yield (part, index, "who", number), wrong
    for index, rule in enumerate(access.rules):
        if rule.claims and not access.jwt:
            yield ("rules", index, "claims"), "only tokens have claims, and jwt is not there"
        if "health" in rule.operations and access.open_health:
            told = "health is everybody's unless open_health is false"
            yield ("rules", index, "operations"), told


def _nobody(who: str, access: AccessConfig) -> str | None:
    """Why nobody can be ``who``."""
    if who in (rules.ALL, ANONYMOUS) or is_regex(who):
        return None
    if not is_glob(who):
        if not who.startswith(_PREFIXES):
            return f"'{who}' is neither 'anonymous' nor begins with {', '.join(_PREFIXES)}"
        names = [rules.KEY + key.name for key in access.keys]
        if who.startswith(rules.KEY) and access.keys_file is None and who not in names:
            return f"there is no key of that name{or_else(who, names)}"
    if who.startswith(rules.TOKEN):
        issuers = [f"{rules.TOKEN}{name}:" for name in access.jwt]
        if not any(who.startswith(each) or _may_begin(who, each) for each in issuers):
            return f"'{who}' is of no issuer of jwt{or_else(who, issuers)}"
    return None


def _may_begin(glob: str, prefix: str) -> bool:
    """Whether something that begins with ``prefix`` may fit ``glob``."""
    fixed = re.split(r"[*?\[]", glob, maxsplit=1)[0]
    return is_glob(glob) and prefix.startswith(fixed)

"""The sections of routes.yaml on authentication, authorization and rate limiting."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from infergate.access import rules
from infergate.access.keys import ApiKey, parse_file, parse_hash, parse_name
from infergate.config.fields import (
    Duration,
    FilePath,
    Name,
    Pattern,
    Positive,
    PositiveDuration,
    PositiveSize,
    Priority,
    Weight,
    YamlValue,
)
from infergate.config.mistakes import Finding, duplicates, suggestion
from infergate.config.section import Section
from infergate.config.values import Url, describe_value, parse_size, parse_text, parse_url
from infergate.core.priorities import HIGHEST_PRIORITY
from infergate.core.request_context import ANONYMOUS
from infergate.routing.table import is_glob, is_regex

_RATE: Final = re.compile(r"([^/]+)/ ?(s|m|h)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_COUNT: Final = re.compile(r"[1-9][0-9]{0,8}")
_REDIS_SCHEMES: Final = ("redis", "rediss", "unix")
_PREFIXES: Final = (rules.KEY_PREFIX, rules.TOKEN_PREFIX, rules.CERTIFICATE_PREFIX)
_ISSUER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ConfiguredRate:
    """A rate of ``amount`` requests or bytes in ``seconds``. ``text`` is the rate as written in
    routes.yaml."""

    amount: int
    seconds: float
    text: str

    def __str__(self) -> str:
        return self.text


def _rate_parser(
    parse_amount: Callable[[str], int], example: str
) -> Callable[[Any], ConfiguredRate]:
    def parse(value: Any) -> ConfiguredRate:
        match = _RATE.fullmatch(value) if isinstance(value, str) else None
        try:
            number = parse_amount(match[1].strip()) if match else 0
        except ValueError:
            number = 0
        if match is None or number < 1:
            raise ValueError(f"expected a rate like {example}, got {describe_value(value)}")
        return ConfiguredRate(number, _SECONDS[match[2]], value)

    return parse


def _parse_count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise ValueError
    return int(text)


def _parse_redis(value: Any) -> str:
    """Parse a Redis URL. Error messages omit the URL, because it may hold a password."""
    text = parse_text(value)
    try:
        url = urlsplit(text)
        scheme, _ = url.scheme, url.port
    except ValueError:  # the text of the error may contain part of the password
        scheme = ""
    if scheme not in _REDIS_SCHEMES:
        raise ValueError("expected a URL like redis://host:6379/0, rediss://… or unix:///path")
    return text


def _check_readable(value: Any, handler: ValidatorFunctionWrapHandler) -> Path:
    path: Path = handler(value)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        reason = error.strerror or "no such path"
        raise ValueError(f"the file '{value}' cannot be read: {reason}") from None


def _check_keys(value: Any, handler: ValidatorFunctionWrapHandler) -> Path:
    path: Path = handler(value)
    try:
        parse_file(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"the file '{value}': {error}") from None
    return path


_parse_request_rate: Final = _rate_parser(_parse_count, "100/s, 600/m or 10000/h")
_parse_byte_rate: Final = _rate_parser(parse_size, "10MiB/s or 1GiB/m")
RequestRate = Annotated[
    InstanceOf[ConfiguredRate], YamlValue(_parse_request_rate, "rate", str, examples=["100/s"])
]
ByteRate = Annotated[
    InstanceOf[ConfiguredRate],
    YamlValue(_parse_byte_rate, "byte rate", str, examples=["10MiB/s"]),
]
KeyName = Annotated[str, YamlValue(parse_name, "name")]
KeyHash = Annotated[bytes, YamlValue(parse_hash, "SHA-256 in hexadecimal", bytes.hex)]
ReadableFile = Annotated[FilePath, WrapValidator(_check_readable)]
KeyFile = Annotated[ReadableFile, WrapValidator(_check_keys)]
WebUrl = Annotated[InstanceOf[Url], YamlValue(parse_url, "URL", str)]
RedisUrl = Annotated[
    str,
    BeforeValidator(_parse_redis),
    PlainSerializer(lambda url: f"{urlsplit(url).scheme}:…"),
    WithJsonSchema({"type": "string", "format": "URL"}),
    Field(
        repr=False,
        description="`redis://user:password@host:6379/0`, `rediss://` for TLS, or "
        "`unix:///path`. Keep passwords in the environment: `${REDIS_URL}`.",
    ),
]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Operation = Literal[
    "infer", "metadata", "statistics", "repository", "shared_memory", "settings", "health"
]


class KeyConfig(Section):
    """An API key, stored as its hash. `infergate key` generates a key and its hash.

    Example: `{name: ci, sha256: "${CI_KEY_SHA256}"}`."""

    name: KeyName = Field(
        description="The name of the key's owner. The owner's identity in rules is `key:<name>`. "
        "Several keys may share a name, for example during key rotation."
    )
    sha256: KeyHash = Field(
        description="SHA-256 hash of the key, in hexadecimal. The key itself is not stored."
    )

    @property
    def key(self) -> ApiKey:
        """The key in the form that ``access.keys`` looks up."""
        return ApiKey(self.name, self.sha256)


class JwtConfig(Section):
    """An issuer of JSON Web Tokens that are accepted as bearer tokens."""

    issuer: Name = Field(
        description="Required value of the claim `iss`, compared exactly. Example: "
        "`https://idp.example/`."
    )
    audiences: tuple[Name, ...] = Field(
        min_length=1,
        description="Accepted audiences. The claim `aud` must contain at least one of these names. "
        "Example: `[infergate]`.",
    )
    jwks_file: ReadableFile | None = Field(
        default=None,
        description="File with the issuer's public keys (a JWK set). The path is relative to "
        "routes.yaml. The file is reloaded when it changes. Either `jwks_file` or `jwks_url` is "
        "required.",
    )
    jwks_url: WebUrl | None = Field(
        default=None,
        description="URL of the issuer's public keys (JWKS), http or https. Example: "
        "`https://idp.example/.well-known/jwks.json`. infergate fetches the keys on first use, "
        "when they are older than `refresh`, and when a token names an unknown key, but at most "
        "every 30 s (every second while it has no keys). While the URL is unavailable, the cached "
        "keys stay valid.",
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"),
        min_length=1,
        description="Accepted signature algorithms. Shared secrets (HS256) and the algorithm "
        "`none` are not supported.",
    )
    leeway: Duration = Field(
        default=10.0,
        description="Tolerated clock skew for the claims `exp`, `nbf` and `iat`.",
    )
    subject: Name = Field(
        default="sub",
        description="The claim that identifies the client. The identity in rules is `jwt:<name of "
        "this issuer>:<subject>`. Example: `email`.",
    )
    refresh: PositiveDuration = Field(
        default=300.0, description="Maximum age of keys fetched from `jwks_url`."
    )

    @model_validator(mode="after")
    def _check_key_source(self) -> Self:
        if (self.jwks_file is None) == (self.jwks_url is None):
            raise ValueError("exactly one of jwks_file and jwks_url is required")
        if self.jwks_url is not None and self.jwks_url.scheme not in ("http", "https"):
            raise ValueError("jwks_url must begin with https:// or http://")
        return self


class RuleConfig(Section):
    """An authorization rule, which allows clients to run operations on models. Requests that no
    rule allows are rejected.

    Example: `{who: ["key:ci"], models: [bert-*]}`."""

    who: tuple[Pattern, ...] = Field(
        min_length=1,
        description="Identities, as names, globs or regular expressions: `key:<name>`, `jwt:<name "
        "of the issuer>:<subject>`, `cert:<first name in the client certificate>`. `*` matches all "
        "authenticated clients; only the word `anonymous` matches clients without credentials. "
        'Example: `["key:ci", "jwt:corporate:*"]`.',
    )
    claims: dict[str, tuple[Pattern, ...]] = Field(
        default={},
        description="Required claims. The client's token must have all of these claims, each with "
        "a value that matches one of the given patterns. Example: `{groups: [ml-*]}`. "
        "`realm_access.roles` refers to a nested claim; `scope` is a list of words separated by "
        "spaces.",
    )
    models: tuple[Pattern, ...] = Field(
        default=("*",),
        description="Model names, globs or regular expressions, as in `routes`. Operations that "
        "affect the entire server require `*`. Example: `[bert-*, resnet50]`.",
    )
    operations: tuple[Operation, ...] = Field(
        default=("infer", "metadata"),
        min_length=1,
        description="Allowed operations: `infer`; `metadata` (model index, metadata, "
        "configuration, readiness of models, gRPC reflection); `statistics`; `repository` (load "
        "and unload models); `shared_memory`; `settings` (trace and log settings); `health`, if "
        "`open_health` is false.",
    )


class RateConfig(Section):
    """A rate limit (token bucket). A request counts against every rate limit that matches it, and
    is rejected if it exceeds any of them.

    Example: `{who: ["key:*"], requests: 100/s}`."""

    who: tuple[Pattern, ...] = Field(
        default=("*",),
        min_length=1,
        description="Identities that are limited, as in `rules`, except that `*` also matches "
        "`anonymous`.",
    )
    models: tuple[Pattern, ...] = Field(
        default=("*",),
        min_length=1,
        description="Model names, globs or regular expressions, as in `routes`.",
    )
    each: tuple[Literal["identity", "route"], ...] = Field(
        default=("identity", "route"),
        description="How requests are counted. `[identity, route]` counts separately for each "
        "identity on each route. `[identity]` counts for each identity over all routes. `[route]` "
        "counts for each route over all identities. `[]` counts all matching requests together.",
    )
    requests: RequestRate | None = Field(
        default=None,
        description="Maximum number of requests per second, minute or hour: `100/s`, `600/m` or "
        "`10000/h`. Each request of a stream counts. Health checks do not count.",
    )
    requests_burst: Positive | None = Field(
        default=None,
        description="Burst size: the number of requests that may arrive at the same time. By "
        "default, it equals the number in `requests`. Example: `200`.",
    )
    bytes: ByteRate | None = Field(
        default=None,
        description="Maximum number of bytes of request bodies or messages per second, minute or "
        "hour: `10MiB/s` or `1GiB/m`. A request larger than the burst size is accepted when the "
        "bucket is full.",
    )
    bytes_burst: PositiveSize | None = Field(
        default=None,
        description="Burst size in bytes. By default, it equals the number in `bytes`. Example: "
        "`64MiB`.",
    )

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if self.requests is None and self.bytes is None:
            raise ValueError("requests, bytes or both are required")
        for key in ("requests", "bytes"):
            if getattr(self, f"{key}_burst") is not None and getattr(self, key) is None:
                raise ValueError(f"{key}_burst has no effect without {key}")
        return self


class ShareConfig(Section):
    """The share of clients in the queues of backends (`backends.<name>.limits.max_requests`). Each
    matching client gets this share separately. The first entry that matches a client applies.

    Example: `{who: ["key:batch"], weight: 0.5, highest_priority: 7}`."""

    who: tuple[Pattern, ...] = Field(
        default=("*",),
        min_length=1,
        description="Identities, as in `rules`, except that `*` also matches `anonymous`.",
    )
    weight: Weight = Field(
        default=1.0,
        description="While clients wait for the same backend with the same priority, each client "
        "gets slots in proportion to its weight. Example: `4`.",
    )
    highest_priority: Priority = Field(
        default=HIGHEST_PRIORITY,
        description="The highest priority of the client's requests, from `1` (the highest) to `9`. "
        "Requests with a higher priority get this priority. Example: `5`.",
    )


class RedisConfig(Section):
    """A Redis server, version 5 or later, with which several gateways share rate limits.

    Example: `redis: {url: "${REDIS_URL}"}`."""

    url: RedisUrl
    timeout: PositiveDuration = Field(
        default=0.1,
        description="Maximum time that a request waits for Redis, including connecting.",
    )
    when_unavailable: Literal["local", "open", "closed"] = Field(
        default="local",
        description="Behavior while Redis does not respond. With `local`, each gateway counts "
        "separately. With `open`, requests are not limited. With `closed`, requests "
        "that a rate limit matches are rejected.",
    )


class AccessConfig(Section):
    """Access control. Without this section, all clients may use everything. With it, requests that
    no rule allows are rejected (docs/access.md)."""

    keys: tuple[KeyConfig, ...] = Field(default=(), description="API keys.")
    keys_file: KeyFile | None = Field(
        default=None,
        description="File with further API keys: one `name: SHA-256` per line. The path is "
        "relative to routes.yaml. The file is reloaded when it changes.",
    )
    jwt: dict[str, JwtConfig] = Field(
        default={},
        description="Issuers of JSON Web Tokens (JWT), each under a name of your choice. Requires "
        "`pip install infergate[jwt]`. Example: `corporate: {issuer: https://idp.example/, "
        "audiences: [infergate], jwks_url: https://idp.example/jwks.json}`.",
    )
    rules: tuple[RuleConfig, ...] = Field(
        min_length=1,
        description="Authorization rules. A request is allowed if any rule matches. Example: "
        '`[{who: ["*"], operations: [infer, metadata]}]`.',
    )
    rates: tuple[RateConfig, ...] = Field(
        default=(), description="Rate limits. Example: `[{requests: 100/s, bytes: 10MiB/s}]`."
    )
    shares: tuple[ShareConfig, ...] = Field(
        default=(),
        description="Weights and highest priorities of clients in the queues of backends "
        "(docs/overload.md). By default, all clients have the weight 1 and may request any "
        'priority. Example: `[{who: ["key:ci"], weight: 4}]`.',
    )
    redis: RedisConfig | None = Field(
        default=None,
        description="Shared storage for rate limits. By default, rates are counted in memory, "
        "which the workers of a gateway share but separate gateways do not. Requires `pip install "
        "infergate[redis]`.",
    )
    open_health: bool = Field(
        default=True,
        description="Allow everyone to query liveness, readiness and grpc.health.v1. The "
        "credentials of such requests are ignored.",
    )


def check_access(access: AccessConfig) -> Iterator[Finding]:
    """Yield the errors in ``access`` that its schema cannot detect."""
    checks = (_packages, _issuers, _keys, _rules, _shares)
    for path, message in chain.from_iterable(check(access) for check in checks):
        yield ("access", *path), message


def _packages(access: AccessConfig) -> Iterator[Finding]:
    if access.jwt and importlib.util.find_spec("jwt") is None:
        yield ("jwt",), "JSON Web Tokens require an optional package: pip install 'infergate[jwt]'"
    if access.redis is not None:
        if importlib.util.find_spec("redis") is None:
            yield ("redis",), "Redis requires an optional package: pip install 'infergate[redis]'"
        if not access.rates:
            yield ("redis",), "redis has no effect without rates"


def _issuers(access: AccessConfig) -> Iterator[Finding]:
    for name in access.jwt:
        if not _ISSUER_NAME.fullmatch(name):
            yield (
                ("jwt", name),
                (
                    "the name must have at most 64 letters, digits, '.', '_' or '-', and begin "
                    "with a letter or digit"
                ),
            )
    for name, earlier, _ in duplicates((name, jwt.issuer) for name, jwt in access.jwt.items()):
        yield ("jwt", name, "issuer"), f"'{earlier}' already has this issuer"


def _keys(access: AccessConfig) -> Iterator[Finding]:
    for index, earlier, _ in duplicates(enumerate(key.sha256 for key in access.keys)):
        yield ("keys", index, "sha256"), f"'{access.keys[earlier].name}' already has this key"


def _rules(access: AccessConfig) -> Iterator[Finding]:
    for section in ("rules", "rates", "shares"):
        for index, entry in enumerate(getattr(access, section)):
            for position, who in enumerate(entry.who):
                if (problem := _identity_problem(who, access)) is not None:
                    yield (section, index, "who", position), problem
    for index, rule in enumerate(access.rules):
        if rule.claims and not access.jwt:
            problem = "claims require tokens: there is no section access.jwt"
            yield ("rules", index, "claims"), problem
        if "health" in rule.operations and access.open_health:
            message = "health is open to all clients while open_health is true"
            yield ("rules", index, "operations"), message


def _shares(access: AccessConfig) -> Iterator[Finding]:
    is_covered = False
    for index, share in enumerate(access.shares):
        if is_covered:
            yield ("shares", index), "an earlier entry matches all clients"
        is_covered |= rules.ANY in share.who


def _identity_problem(who: str, access: AccessConfig) -> str | None:
    if who in (rules.ANY, ANONYMOUS) or is_regex(who):
        return None
    if not is_glob(who):
        if not who.startswith(_PREFIXES):
            return f"'{who}' must be 'anonymous' or begin with one of {', '.join(_PREFIXES)}"
        names = [rules.KEY_PREFIX + key.name for key in access.keys]
        if who.startswith(rules.KEY_PREFIX) and access.keys_file is None and who not in names:
            return f"there is no key with this name{suggestion(who, names)}"
    if who.startswith(rules.TOKEN_PREFIX):
        issuers = [f"{rules.TOKEN_PREFIX}{name}:" for name in access.jwt]
        if not any(who.startswith(prefix) or _can_begin_with(who, prefix) for prefix in issuers):
            return f"'{who}' matches no issuer in access.jwt{suggestion(who, issuers)}"
    return None


def _can_begin_with(glob: str, prefix: str) -> bool:
    """Return whether ``prefix`` begins with the text before the first wildcard of ``glob``."""
    fixed = re.split(r"[*?\[]", glob, maxsplit=1)[0]
    return is_glob(glob) and prefix.startswith(fixed)

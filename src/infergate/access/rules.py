"""Access rules, which permit identities to perform operations on models. This module has no I/O.

1. A request that no rule allows is rejected. A rule cannot reject requests, so the order of rules
   is irrelevant.
2. ``*`` matches every identified client. Anonymous clients match only the word ``anonymous``.
3. Every rule, whatever its models, also allows its operations on the server as a whole, but
   operations that affect all models need a rule for all models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from infergate.core import messages
from infergate.core.bounded_cache import BoundedCache
from infergate.core.messages import InferRequest
from infergate.core.priorities import HIGHEST_PRIORITY
from infergate.core.request_context import ANONYMOUS
from infergate.routing.table import compile_pattern, is_glob, is_regex, model_matcher

KEY_PREFIX: Final = "key:"
TOKEN_PREFIX: Final = "jwt:"  # noqa: S105 - a prefix of identities
CERTIFICATE_PREFIX: Final = "cert:"
ANY: Final = "*"

HEALTH: Final = "health"
INFER: Final = "infer"
METADATA: Final = "metadata"
REPOSITORY: Final = "repository"
SETTINGS: Final = "settings"
SHARED_MEMORY: Final = "shared_memory"
STATISTICS: Final = "statistics"
RULE_OPERATIONS: Final[Mapping[type, str]] = MappingProxyType(
    {
        messages.ServerLiveRequest: HEALTH,
        messages.ServerReadyRequest: HEALTH,
        messages.ServerMetadataRequest: METADATA,
        messages.ModelIndexRequest: METADATA,
        messages.ModelReadyRequest: METADATA,  # the response reveals which models exist
        messages.ModelMetadataRequest: METADATA,
        messages.ModelConfigRequest: METADATA,
        messages.ServerStatusRequest: METADATA,
        messages.ModelStatisticsRequest: STATISTICS,
        messages.ModelLoadRequest: REPOSITORY,
        messages.ModelUnloadRequest: REPOSITORY,
        messages.TraceSettingsRequest: SETTINGS,
        messages.LogSettingsRequest: SETTINGS,
        messages.SharedMemoryStatusRequest: SHARED_MEMORY,
        messages.SharedMemoryRegisterRequest: SHARED_MEMORY,
        messages.SharedMemoryUnregisterRequest: SHARED_MEMORY,
        InferRequest: INFER,
    }
)
"""The name of each operation in rules."""
STATE_CHANGING: Final = frozenset({REPOSITORY, SETTINGS, SHARED_MEMORY})
_SERVER_WIDE: Final = frozenset({REPOSITORY, SETTINGS})
"""Operations that affect all models if a request names no model. Operations on shared memory do not
affect models."""
_MODEL_OPERATIONS: Final = frozenset(
    {
        InferRequest,
        messages.ModelConfigRequest,
        messages.ModelLoadRequest,
        messages.ModelMetadataRequest,
        messages.ModelReadyRequest,
        messages.ModelUnloadRequest,
    }
)
"""Operations on a model. Their model name may be empty, because a route for all models may lead to
a backend with only one model."""
_SPACE_SEPARATED_CLAIMS: Final = frozenset({"scope", "scp"})
"""Claims that contain words separated by spaces: ``scope`` (RFC 8693, 4.2), and ``scp``, which some
issuers use instead."""

_MAX_CACHED_DECISIONS: Final = 8192
"""Maximum number of cached decisions of a configuration. Clients choose model names, so the number
and length of cached names are limited. The decisions take at most 5 MB if the names are ASCII, and
20 MB otherwise."""
_MAX_CACHED_MODEL_CHARS: Final = 256

Claims = Mapping[str, Any]
NO_CLAIMS: Final[Claims] = MappingProxyType({})
TextPredicate = Callable[[str], bool]


def _compile_text_pattern(pattern: str) -> Callable[[str], object]:
    return compile_pattern(pattern).fullmatch


def matcher(
    patterns: Sequence[str],
    compile_one: Callable[[str], Callable[[str], object]] = _compile_text_pattern,
) -> TextPredicate:
    """Return a predicate for strings that match one of ``patterns``, which have the syntax of model
    patterns in routes. ``compile_one`` compiles a glob or regular expression."""
    if ANY in patterns:
        return lambda _: True
    exact = frozenset(
        pattern for pattern in patterns if not (is_glob(pattern) or is_regex(pattern))
    )
    others = [compile_one(pattern) for pattern in patterns if pattern not in exact]
    return lambda text: text in exact or any(matches(text) for matches in others)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A rule. ``identities``, ``models`` and the values of ``claims`` (keyed by name) are patterns
    as in routes; ``operations`` are values of ``RULE_OPERATIONS``."""

    identities: tuple[str, ...]
    models: tuple[str, ...] = (ANY,)
    operations: frozenset[str] = frozenset({INFER, METADATA})
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientShare:
    """The weight and the highest priority of each client in fair queues. ``identities`` are
    patterns as in routes; ``*`` also matches anonymous clients."""

    identities: tuple[str, ...] = (ANY,)
    weight: float = 1.0
    highest_priority: int = HIGHEST_PRIORITY


DEFAULT_SHARE: Final = ClientShare()


class CompiledRule:
    """A rule with compiled patterns. Each rule of a configuration has a different ``number``."""

    def __init__(self, rule: AccessRule, number: int) -> None:
        self.number: Final = number
        self._matches_identity: Final = matcher(rule.identities)
        self._matches_anonymous: Final = ANONYMOUS in rule.identities
        self._claim_matchers: Final = {
            name: matcher(values) for name, values in rule.claims.items()
        }
        self._matches_model: Final = matcher(rule.models, model_matcher)
        self._has_all_models: Final = ANY in rule.models
        self._operations: Final = rule.operations

    def applies_to(self, identity: str, claims: Claims) -> bool:
        """Return whether ``identity`` (rule 2) and ``claims`` match the rule."""
        if identity == ANONYMOUS:
            return self._matches_anonymous
        return self._matches_identity(identity) and all(
            any(map(matches, claim_values(claims, name)))
            for name, matches in self._claim_matchers.items()
        )

    def allows(self, operation: type, model: str) -> bool:
        """Return whether the rule allows ``operation`` on ``model`` (rule 3)."""
        kind = RULE_OPERATIONS[operation]
        if kind not in self._operations:
            return False
        if model or operation in _MODEL_OPERATIONS:
            return self._matches_model(model)
        return self._has_all_models or kind not in _SERVER_WIDE


def claim_values(claims: Claims, name: str) -> tuple[str, ...]:
    """Return the strings in the claim ``name``. If no claim has this name, ``name`` is a path of
    names separated by dots."""
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    match value:
        case str() if name in _SPACE_SEPARATED_CLAIMS:
            return tuple(value.split())
        case str():
            return (value,)
        case list():
            return tuple(text for text in value if isinstance(text, str))
    return ()


_Decisions = BoundedCache[tuple[int, type, str], bool]
"""Decisions, keyed by the applicable rules, the operation and the model. The rules are bits
of an integer, because a tuple of rules would be hashed rule by rule for each request."""


class RulePermit:
    """The combined permission of all ``rules`` for one identity. All permits of a configuration
    share the cache ``decisions``."""

    __slots__ = ("_decisions", "_rule_bits", "_rules", "highest_priority", "identity", "weight")

    def __init__(
        self,
        identity: str,
        rules: tuple[CompiledRule, ...],
        share: ClientShare = DEFAULT_SHARE,
        decisions: _Decisions | None = None,
    ) -> None:
        self.identity: str = identity
        self.weight: float = share.weight
        self.highest_priority: int = share.highest_priority
        self._rules: Final = rules
        self._rule_bits: Final = sum(1 << rule.number for rule in rules)
        self._decisions: Final = _new_decisions() if decisions is None else decisions

    def allows(self, operation: type, model: str) -> bool:
        """Return whether any rule allows ``operation`` on ``model`` (rule 1)."""
        key = self._rule_bits, operation, model
        cached = self._decisions.get(key)
        if cached is not None:
            return cached
        allowed = any(rule.allows(operation, model) for rule in self._rules)
        if len(model) <= _MAX_CACHED_MODEL_CHARS:
            self._decisions[key] = allowed
        return allowed


def _new_decisions() -> _Decisions:
    return BoundedCache(_MAX_CACHED_DECISIONS)


class AccessRules:
    """All rules and ``shares`` of a configuration. The first share that matches an identity
    applies."""

    def __init__(self, rules: Sequence[AccessRule], shares: Sequence[ClientShare] = ()) -> None:
        self._rules: Final = tuple(map(CompiledRule, rules, itertools.count()))
        self._shares: Final = [(matcher(share.identities), share) for share in shares]
        self._decisions: Final = _new_decisions()

    def permit_for(self, identity: str, claims: Claims = NO_CLAIMS) -> RulePermit:
        """Return the permit of ``identity``, whose token has ``claims``."""
        applicable = tuple([rule for rule in self._rules if rule.applies_to(identity, claims)])
        return RulePermit(identity, applicable, self._share_of(identity), self._decisions)

    def _share_of(self, identity: str) -> ClientShare:
        return next((share for matches, share in self._shares if matches(identity)), DEFAULT_SHARE)

    def anonymous_permit(self) -> RulePermit | None:
        """Return the permit of anonymous clients, or None if no rule matches them."""
        is_permitted = any(rule.applies_to(ANONYMOUS, NO_CLAIMS) for rule in self._rules)
        return self.permit_for(ANONYMOUS) if is_permitted else None

"""Access rules: which identity may use which operation on which model. Pure.

1. Rules only allow. A request that no rule allows is refused, and the order of rules does not
   matter.
2. ``*`` matches every identified client. Anonymous clients match only the word ``anonymous``.
3. An operation on the server is allowed by a rule for any model; one that changes the server, only
   by a rule for all models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from infergate.core.call import ANONYMOUS
from infergate.core.messages import (
    InferRequest,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedMemoryRegisterRequest,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
    TraceSettingsRequest,
)
from infergate.routing.table import compiled, is_glob, is_regex, model_matcher

KEY: Final = "key:"
TOKEN: Final = "jwt:"  # noqa: S105 - a prefix of identities
CERTIFICATE: Final = "cert:"
ALL: Final = "*"

HEALTH: Final = "health"
INFER: Final = "infer"
METADATA: Final = "metadata"
REPOSITORY: Final = "repository"
SETTINGS: Final = "settings"
SHARED_MEMORY: Final = "shared_memory"
STATISTICS: Final = "statistics"
OPERATIONS: Final[Mapping[type, str]] = MappingProxyType(
    {
        ServerLiveRequest: HEALTH,
        ServerReadyRequest: HEALTH,
        ServerMetadataRequest: METADATA,
        ModelIndexRequest: METADATA,
        ModelReadyRequest: METADATA,  # it queries a backend, and reveals which models exist
        ModelMetadataRequest: METADATA,
        ModelConfigRequest: METADATA,
        ServerStatusRequest: METADATA,
        ModelStatisticsRequest: STATISTICS,
        ModelLoadRequest: REPOSITORY,
        ModelUnloadRequest: REPOSITORY,
        TraceSettingsRequest: SETTINGS,
        LogSettingsRequest: SETTINGS,
        SharedMemoryStatusRequest: SHARED_MEMORY,
        SharedMemoryRegisterRequest: SHARED_MEMORY,
        SharedMemoryUnregisterRequest: SHARED_MEMORY,
        InferRequest: INFER,
    }
)
"""The name of each operation in rules."""
CHANGES: Final = frozenset({REPOSITORY, SETTINGS, SHARED_MEMORY})
"""Operations that change servers' state."""
_WHOLE: Final = frozenset({REPOSITORY, SETTINGS})
"""Operations that, used on the server, affect all models. Shared memory regions belong to no
model."""
_OF_A_MODEL: Final = frozenset(
    {
        InferRequest,
        ModelConfigRequest,
        ModelLoadRequest,
        ModelMetadataRequest,
        ModelReadyRequest,
        ModelUnloadRequest,
    }
)
"""Operations that always concern a model. For these an empty name is a name like any other, because
a route for all models may take the request to a backend that has only one model."""
_SCOPES: Final = frozenset({"scope", "scp"})
"""Claims that hold words separated by spaces (RFC 8693, 4.2)."""

_REMEMBERED: Final = 256
"""Cached decisions of an identity. Clients choose model names, so their number and length are
limited."""
_LONGEST: Final = 256

Claims = Mapping[str, Any]
NO_CLAIMS: Final[Claims] = MappingProxyType({})
Matches = Callable[[str], bool]


def _any_text(pattern: str) -> Callable[[str], object]:
    return compiled(pattern).fullmatch


def matcher(
    patterns: Sequence[str], of_one: Callable[[str], Callable[[str], object]] = _any_text
) -> Matches:
    """Return a predicate for texts that match one of ``patterns``, spelled like the models of
    routes. ``compile_one`` compiles a glob or regular expression."""
    if ALL in patterns:
        return lambda _: True
    exact = frozenset(
        pattern for pattern in patterns if not (is_glob(pattern) or is_regex(pattern))
    )
    others = [of_one(pattern) for pattern in patterns if pattern not in exact]
    return lambda text: text in exact or any(matches(text) for matches in others)


@dataclass(frozen=True, slots=True)
class Rule:
    """``identities``, ``models`` and the values of ``claims`` (keyed by name) are patterns as in
    routes; ``operations`` are values of ``OPERATION_NAMES``."""

    who: tuple[str, ...]
    models: tuple[str, ...] = (ALL,)
    operations: frozenset[str] = frozenset({INFER, METADATA})
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Grant:
    """A rule with its patterns compiled."""

    def __init__(self, rule: Rule) -> None:
        self._who: Final = matcher(rule.who)
        self._takes_anonymous: Final = ANONYMOUS in rule.who
        self._claims: Final = {name: matcher(values) for name, values in rule.claims.items()}
        self._models: Final = matcher(rule.models, model_matcher)
        self._has_all_models: Final = ALL in rule.models
        self._operations: Final = rule.operations

    def is_for(self, identity: str, claims: Claims) -> bool:
        """Return whether the rule is for ``identity`` (rule 2) and all its claims match."""
        if identity == ANONYMOUS:
            return self._takes_anonymous
        return self._who(identity) and all(
            any(map(matches, values_of(claims, name))) for name, matches in self._claims.items()
        )

    def allows(self, operation: type, model: str) -> bool:
        """Return whether the rule allows ``operation`` on ``model`` (rule 3)."""
        kind = OPERATIONS[operation]
        if kind not in self._operations:
            return False
        if model or operation in _OF_A_MODEL:
            return self._models(model)
        return self._has_all_models or kind not in _WHOLE


def values_of(claims: Claims, name: str) -> tuple[str, ...]:
    """Return the texts of the claim ``name``. A claim that does not exist under this name is looked
    up as a path of names separated by dots."""
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    match value:
        case str() if name in _SCOPES:
            return tuple(value.split())
        case str():
            return (value,)
        case list():
            return tuple(text for text in value if isinstance(text, str))
    return ()


class Granted:
    """What all rules together allow one identity. Implements ``Permit``."""

    __slots__ = ("_grants", "_known", "identity")

    def __init__(self, identity: str, grants: Sequence[Grant]) -> None:
        self.identity: str = identity
        self._grants: Final = grants
        self._known: Final[dict[tuple[type, str], bool]] = {}

    def allows(self, operation: type, model: str) -> bool:
        """Return whether any rule allows ``operation`` on ``model`` (rule 1)."""
        key = operation, model
        cached = self._known.get(key)
        if cached is not None:
            return cached
        allowed = any(grant.allows(operation, model) for grant in self._grants)
        if len(model) <= _LONGEST:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = allowed
        return allowed


class Rules:
    """All rules of a configuration."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._grants: Final = tuple(map(Grant, rules))

    def permit(self, identity: str, claims: Claims = NO_CLAIMS) -> Granted:
        """Return the permit of ``identity``, whose token has ``claims``."""
        return Granted(
            identity, [grant for grant in self._grants if grant.is_for(identity, claims)]
        )

    def anonymous(self) -> Granted | None:
        """Return the permit of anonymous clients; None if no rule is for them."""
        grants = [grant for grant in self._grants if grant.is_for(ANONYMOUS, NO_CLAIMS)]
        return Granted(ANONYMOUS, grants) if grants else None

"""Which rules let whom ask what of which models. Pure.

*Rule 1.* Rules only allow: what none of them allows is refused, and their order does not matter.
*Rule 2.* ``*`` is everybody who is known. Who is not is ``anonymous``, and only by that very word.
*Rule 3.* What concerns the server and not one model is allowed by a rule for any models; what
changes it, by one for all models.
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
TOKEN: Final = "jwt:"  # noqa: S105 - how identities begin
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
        ModelReadyRequest: METADATA,  # it asks a backend, and tells which models there are
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
"""What rules call each operation."""
CHANGES: Final = frozenset({REPOSITORY, SETTINGS, SHARED_MEMORY})
"""Those that change servers' state."""
_WHOLE: Final = frozenset({REPOSITORY, SETTINGS})
"""Those that, asked of the server, concern all models. Regions of shared memory are of no model."""
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
"""Those that are never asked of the server. One without a name is of the model called so: a route
for any model may take it to a backend that has but one."""
_SCOPES: Final = frozenset({"scope", "scp"})
"""Claims that are words with blanks between (RFC 8693, 4.2)."""

_REMEMBERED: Final = 256
"""Models that are remembered of an identity. Clients choose names: they and their length are
bounded."""
_LONGEST: Final = 256

Claims = Mapping[str, Any]
NO_CLAIMS: Final[Claims] = MappingProxyType({})
Matches = Callable[[str], bool]


def _any_text(pattern: str) -> Callable[[str], object]:
    return compiled(pattern).fullmatch


def matcher(
    patterns: Sequence[str], of_one: Callable[[str], Callable[[str], object]] = _any_text
) -> Matches:
    """What tells whether a text is one of ``patterns``, spelt like routes' models. ``of_one``
    compiles a glob or regular expression."""
    if ALL in patterns:
        return lambda _: True
    exact = frozenset(each for each in patterns if not (is_glob(each) or is_regex(each)))
    others = [of_one(each) for each in patterns if each not in exact]
    return lambda text: text in exact or any(matches(text) for matches in others)


@dataclass(frozen=True, slots=True)
class Rule:
    """``who``, ``models`` and the values of ``claims`` (by their names) are patterns as routes have
    them; ``operations`` are values of :data:`OPERATIONS`."""

    who: tuple[str, ...]
    models: tuple[str, ...] = (ALL,)
    operations: frozenset[str] = frozenset({INFER, METADATA})
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Grant:
    """What one rule lets those ask whom it is for."""

    def __init__(self, rule: Rule) -> None:
        self._who: Final = matcher(rule.who)
        self._takes_anonymous: Final = ANONYMOUS in rule.who
        self._claims: Final = {name: matcher(values) for name, values in rule.claims.items()}
        self._models: Final = matcher(rule.models, model_matcher)
        self._has_all_models: Final = ALL in rule.models
        self._operations: Final = rule.operations

    def is_for(self, identity: str, claims: Claims) -> bool:
        """Rule 2, and whether all claims are there."""
        if identity == ANONYMOUS:
            return self._takes_anonymous
        return self._who(identity) and all(
            any(map(matches, values_of(claims, name))) for name, matches in self._claims.items()
        )

    def allows(self, operation: type, model: str) -> bool:
        """Rule 3."""
        kind = OPERATIONS[operation]
        if kind not in self._operations:
            return False
        if model or operation in _OF_A_MODEL:
            return self._models(model)
        return self._has_all_models or kind not in _WHOLE


def values_of(claims: Claims, name: str) -> tuple[str, ...]:
    """The texts of the claim ``name``; one that is not there by this name is looked for along its
    dots."""
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
            return tuple(each for each in value if isinstance(each, str))
    return ()


class Granted:
    """What all rules together let one identity ask. A :class:`infergate.core.call.Permit`."""

    __slots__ = ("_grants", "_known", "identity")

    def __init__(self, identity: str, grants: Sequence[Grant]) -> None:
        self.identity: str = identity
        self._grants: Final = grants
        self._known: Final[dict[tuple[type, str], bool]] = {}

    def allows(self, operation: type, model: str) -> bool:
        """Rule 1."""
        key = operation, model
        known = self._known.get(key)
        if known is not None:
            return known
        found = any(each.allows(operation, model) for each in self._grants)
        if len(model) <= _LONGEST:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found


class Rules:
    """All of a configuration."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._grants: Final = tuple(map(Grant, rules))

    def permit(self, identity: str, claims: Claims = NO_CLAIMS) -> Granted:
        """What ``identity`` may, whose token has ``claims``."""
        return Granted(identity, [each for each in self._grants if each.is_for(identity, claims)])

    def anonymous(self) -> Granted | None:
        """What those may who do not say who they are; None: no rule is for them."""
        grants = [each for each in self._grants if each.is_for(ANONYMOUS, NO_CLAIMS)]
        return Granted(ANONYMOUS, grants) if grants else None

"""The routing table, which finds the route of a model name. The first matching route is used."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from infergate.comparison.settings import MirrorComparison
from infergate.core.bounded_cache import BoundedCache
from infergate.core.datatypes import Datatype
from infergate.core.name_rules import STRICT_RULE, NameRule
from infergate.core.priorities import DEFAULT_PRIORITY
from infergate.core.route_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from infergate.core.wire import NO_HEADERS
from infergate.routing.rewrite_inverse import invert_rewrite

_ALL: Final = "*"
"""The pattern that matches every model."""
_MAX_CACHED_NAMES: Final = 4096
_MAX_CACHED_NAME_CHARS: Final = 256
"""Limits for cached model names, because clients choose the names."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The names that the backend receives. If a name is empty or missing, the backend receives the
    client's name."""

    model: str = ""
    version: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def renames(self) -> bool:
        """Whether any name is rewritten."""
        return bool(self.model or self.version or self.inputs or self.outputs)

    @property
    def renames_tensors(self) -> bool:
        """Whether tensor names are rewritten, which requires decoding messages."""
        return bool(self.inputs or self.outputs)


@dataclass(frozen=True, slots=True)
class SplitTarget:
    """A backend that gets ``percent`` of a route's inferences, under the names in ``rewrite``."""

    backend: str
    percent: float
    rewrite: Rewrite


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """A backend that gets copies of ``percent`` of a route's inferences, at most ``max_concurrent``
    at the same time, under the names in ``rewrite``. If ``comparison`` is set, the backend's
    responses are compared before they are discarded."""

    backend: str
    percent: float = 100.0
    max_concurrent: int = 16
    comparison: MirrorComparison | None = None
    rewrite: Rewrite = field(default_factory=Rewrite)


@dataclass(frozen=True, slots=True)
class Route:
    """A route. ``pattern`` is a name, a glob (``bert-*``) or a regex (``/…/``).

    ``timeout`` is in seconds; None means the backend's timeout. If ``idle_timeout`` is set, it
    limits the time between two responses of a stream. If ``validate`` is False and client and
    backend speak the same protocol, messages pass through unchecked, because the operator trusts
    the clients. ``labels`` are the class names of outputs for classification, keyed by the client's
    output name. ``cast`` maps a datatype to its substitute in protocols that do not support the
    datatype.

    The route applies only to requests that match all ``headers`` (lower-case names; the values are
    globs). ``split`` lists other backends that get a share of the inferences. If a request has the
    header ``split_by`` and no sequence, the header's value determines the backend. ``fallback`` is
    the backend that is used if the route's backend cannot be reached. ``priority`` applies in the
    queue of the backend. If ``has_layers`` is set, layers or observers receive the route's
    inferences in canonical form."""

    pattern: str
    backend: str
    version: str = ""
    rewrite: Rewrite = field(default_factory=Rewrite)
    timeout: float | None = None
    idle_timeout: float | None = None
    retry: RetryPolicy = DEFAULT_RETRY_POLICY
    validate: bool = True
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cast: Mapping[Datatype, Datatype] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    split: Sequence[SplitTarget] = ()
    split_by: str = ""
    fallback: str = ""
    mirror: MirrorTarget | None = None
    has_layers: bool = False
    priority: int = DEFAULT_PRIORITY

    def matches_headers(self, headers: Mapping[str, str]) -> bool:
        """Return whether ``headers`` (lower-case names) match the route's headers."""
        return all(
            (value := headers.get(name)) is not None and fnmatch.fnmatchcase(value, pattern)
            for name, pattern in self.headers.items()
        )

    @property
    def label(self) -> str:
        """The route's name in metrics and logs."""
        return f"{self.pattern}@{self.version}" if self.version else self.pattern

    @property
    def has_other_targets(self) -> bool:
        """Whether an inference may go to targets other than the route's backend."""
        is_mirrored = self.mirror is not None and self.mirror.percent > 0
        return bool(self.fallback) or is_mirrored or any(item.percent for item in self.split)

    @property
    def is_exact(self) -> bool:
        """Whether the pattern is the name of one model."""
        return not (is_regex(self.pattern) or is_glob(self.pattern))

    def backend_model(self, model: str) -> str:
        """Return the backend's name for ``model``. A rewrite may refer to groups of a regex."""
        if not self.rewrite.model:
            return model
        if is_regex(self.pattern) and (match := compile_pattern(self.pattern).fullmatch(model)):
            return match.expand(self.rewrite.model)
        return self.rewrite.model

    def client_model_lookup(self) -> Callable[[str], str | None]:
        """Return a function that maps the backend's name of a model to the client's name, or to
        None if the client's name cannot be derived. A result is valid only if the route table finds
        this route for it."""
        if self.is_exact:
            backend_name = self.backend_model(self.pattern)
            return lambda name: self.pattern if name == backend_name else None
        if not self.rewrite.model:
            return lambda name: name
        invert = None
        if is_regex(self.pattern):
            invert = invert_rewrite(self.pattern[1:-1], self.rewrite.model)
        return invert or (lambda _: None)

    def backend_version(self, version: str) -> str:
        """Return the version to request from the backend."""
        return self.rewrite.version or version

    def client_version(self, requested: str, reported: str) -> str:
        """Return the version to report to the client, given the backend's ``reported`` version."""
        return (requested or self.version or reported) if self.rewrite.version else reported


def is_regex(pattern: str) -> bool:
    """Return whether ``pattern`` is a regular expression (``/…/``), which must match the complete
    name."""
    return len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/")


def is_glob(pattern: str) -> bool:
    """Return whether ``pattern`` is a glob: it contains ``*``, ``?`` or ``[``."""
    return any(c in pattern for c in "*?[")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a glob or regex pattern. Raises ``re.error``."""
    return re.compile(pattern[1:-1] if is_regex(pattern) else fnmatch.translate(pattern))


def model_matcher(pattern: str) -> Callable[[str], object]:
    """Return a predicate that is true for model names that match ``pattern``. The pattern ``*``
    matches every name. In other globs, wildcards do not match ``/``, as in a shell. Raises
    ``re.error``."""
    if pattern == _ALL:
        return lambda _: True
    if is_regex(pattern):
        return compile_pattern(pattern).fullmatch
    segments = [compile_pattern(part).fullmatch for part in pattern.split("/")]

    def matches(name: str) -> bool:
        parts = name.split("/")
        return len(parts) == len(segments) and all(
            segment(text) for segment, text in zip(segments, parts, strict=True)
        )

    return matches


def serving_backends(routes: Iterable[Route]) -> frozenset[str]:
    """Return the names of the backends whose responses clients may receive. Backends that get only
    mirrored copies, or 0 % of a split, are not included."""
    names: set[str] = set()
    for route in routes:
        names.update((route.backend, route.fallback))
        names.update(target.backend for target in route.split if target.percent)
    return frozenset(names)


class RouteTable:
    """All routes, in order. The cost of a lookup does not depend on the number of exact routes."""

    def __init__(self, routes: Iterable[Route], name_rule: NameRule = STRICT_RULE) -> None:
        self.name_rule: Final = name_rule
        self.routes: Final = tuple(routes)
        self._exact: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, Callable[[str], object]]] = []
        for index, route in enumerate(self.routes):
            if route.is_exact:
                self._exact.setdefault(route.pattern, []).append(index)
            else:
                self._patterns.append((index, model_matcher(route.pattern)))
        self._candidates_cache: Final = BoundedCache[str, tuple[Route, ...]](_MAX_CACHED_NAMES)

    def candidates(self, model: str) -> tuple[Route, ...]:
        """Return the routes whose patterns match ``model``, in order."""
        cached = self._candidates_cache.get(model)
        if cached is not None:
            return cached
        indexes = self._exact.get(model, []) + [
            i for i, matches in self._patterns if matches(model)
        ]
        routes = tuple(self.routes[i] for i in sorted(indexes))
        if routes and len(model) <= _MAX_CACHED_NAME_CHARS:
            self._candidates_cache[model] = routes
        return routes

    def depends_on_headers(self, model: str) -> bool:
        """Return whether the route for ``model`` may depend on the request's headers."""
        return any(route.headers for route in self.candidates(model))

    def find(
        self, model: str, version: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> Route | None:
        """Return the first route that matches, or None. An empty ``version`` matches only routes
        without a version."""
        for route in self._candidates_cache.get(model) or self.candidates(model):
            if (not route.version or route.version == version) and (
                not route.headers or route.matches_headers(headers)
            ):
                return route
        return None

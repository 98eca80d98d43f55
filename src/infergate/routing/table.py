"""Which route a model name takes: pure look-up, first match wins."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from infergate.core.datatypes import Datatype
from infergate.core.names import STRICT, NameRule
from infergate.core.retrying import DEFAULT, RetryPolicy
from infergate.core.wire import NO_HEADERS
from infergate.routing.inverse import inverse

_ALL: Final = "*"
"""The pattern of every model."""
_REMEMBERED: Final = 4096
"""Names matched by pattern that are remembered, so that a pattern costs once a name."""
_LONGEST: Final = 256
"""Characters of a name that is remembered. Clients choose names: the memory is bounded by both."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What the backend calls things. Empty or missing: the same as the client."""

    model: str = ""
    version: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def renames(self) -> bool:
        """Whether anything is called otherwise."""
        return bool(self.model or self.version or self.inputs or self.outputs)

    @property
    def renames_tensors(self) -> bool:
        """Whether tensors must be decoded from their message to be renamed."""
        return bool(self.inputs or self.outputs)


@dataclass(frozen=True, slots=True)
class Target:
    """A backend that gets ``percent`` of a route's inferences, and what that calls things."""

    backend: str
    percent: float
    rewrite: Rewrite


@dataclass(frozen=True, slots=True)
class Mirror:
    """A backend that ``percent`` of a route's inferences are sent to as well, at most ``most`` at
    once, whose answers nobody gets."""

    backend: str
    percent: float = 100.0
    most: int = 16


@dataclass(frozen=True, slots=True)
class Route:
    """``pattern`` as the config spells it: a name, a glob (``bert-*``) or ``/a regex/``.

    ``timeout`` in seconds; None takes the backend's. ``idle_timeout`` bounds the pauses of a stream
    instead, if there is one. ``retry`` says what becomes of what fails. ``validate`` False lets a
    trusted client's message through unread where both sides speak the same protocol. ``labels``
    name the classes of an output, which the client calls so, where the gateway classifies.
    ``cast`` says what stands for a datatype where a protocol cannot carry it.

    Only requests with all of ``headers``, names in lower case and globs of values, take it.
    ``split`` are other backends that have a share of its inferences, by the value of the header
    ``split_by``, if there is one; ``fallback`` is asked where its backend cannot be reached.
    """

    pattern: str
    backend: str
    version: str = ""
    rewrite: Rewrite = field(default_factory=Rewrite)
    timeout: float | None = None
    idle_timeout: float | None = None
    retry: RetryPolicy = DEFAULT
    validate: bool = True
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cast: Mapping[Datatype, Datatype] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    split: Sequence[Target] = ()
    split_by: str = ""
    fallback: str = ""
    mirror: Mirror | None = None

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with ``headers``, names in lower case, may take it."""
        return all(
            (value := headers.get(name)) is not None and fnmatch.fnmatchcase(value, pattern)
            for name, pattern in self.headers.items()
        )

    @property
    def label(self) -> str:
        """How metrics and logs call this route."""
        return f"{self.pattern}@{self.version}" if self.version else self.pattern

    @property
    def branches(self) -> bool:
        """Whether an inference may go elsewhere than to its backend."""
        return bool(self.split or self.fallback or self.mirror)

    @property
    def is_exact(self) -> bool:
        """Whether the pattern is one model's name."""
        return not (is_regex(self.pattern) or is_glob(self.pattern))

    def backend_model(self, model: str) -> str:
        """What the backend calls the client's ``model``. A regex route's groups may be used."""
        if not self.rewrite.model:
            return model
        if is_regex(self.pattern) and (match := compiled(self.pattern).fullmatch(model)):
            return match.expand(self.rewrite.model)
        return self.rewrite.model

    def client_models(self) -> Callable[[str], str | None]:
        """What tells how clients may call what the backend calls so: None where they cannot, or
        where that cannot be told. It is so only if the name is found to take this route."""
        if self.is_exact:
            theirs = self.backend_model(self.pattern)
            return lambda told: self.pattern if told == theirs else None
        if not self.rewrite.model:
            return lambda told: told
        undo = inverse(self.pattern[1:-1], self.rewrite.model) if is_regex(self.pattern) else None
        if undo is None:
            return lambda _: None
        return undo

    def backend_version(self, version: str) -> str:
        """The version to ask the backend for."""
        return self.rewrite.version or version

    def client_version(self, asked: str, told: str) -> str:
        """The version to tell the client, who asked for ``asked`` while the backend ``told``."""
        return (asked or self.version or told) if self.rewrite.version else told


def is_regex(pattern: str) -> bool:
    """``/…/`` is a regular expression that must match the whole name."""
    return len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/")


def is_glob(pattern: str) -> bool:
    """``*``, ``?`` and ``[…]`` make a glob."""
    return any(c in pattern for c in "*?[")


def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression of a glob or regex pattern. Raises ``re.error``."""
    return re.compile(pattern[1:-1] if is_regex(pattern) else fnmatch.translate(pattern))


def model_matcher(pattern: str) -> Callable[[str], object]:
    """What tells whether a model's name matches ``pattern``. ``*`` alone matches every name; in a
    longer glob, as in a shell, no wildcard matches ``/``. Raises ``re.error``."""
    if pattern == _ALL:
        return lambda _: True
    if is_regex(pattern):
        return compiled(pattern).fullmatch
    segments = [compiled(each).fullmatch for each in pattern.split("/")]

    def matches(name: str) -> bool:
        given = name.split("/")
        return len(given) == len(segments) and all(
            segment(text) for segment, text in zip(segments, given, strict=True)
        )

    return matches


def unheard(routes: Iterable[Route]) -> frozenset[str]:
    """The backends that only get copies."""
    heard: set[str] = set()
    copied: set[str] = set()
    for route in routes:
        heard.update((route.backend, route.fallback, *(each.backend for each in route.split)))
        if route.mirror is not None:
            copied.add(route.mirror.backend)
    return frozenset(copied - heard)


class RouteTable:
    """All routes in the config's order. Cost of a look-up does not grow with exact routes."""

    def __init__(self, routes: Iterable[Route], names: NameRule = STRICT) -> None:
        self.names: Final = names
        self.routes: Final = tuple(routes)
        self._exact: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, Callable[[str], object]]] = []
        for index, route in enumerate(self.routes):
            if route.is_exact:
                self._exact.setdefault(route.pattern, []).append(index)
            else:
                self._patterns.append((index, model_matcher(route.pattern)))
        self._matched: dict[str, tuple[Route, ...]] = {}

    def candidates(self, model: str) -> tuple[Route, ...]:
        """The routes whose pattern matches ``model``, in order."""
        known = self._matched.get(model)
        if known is not None:
            return known
        hits = self._exact.get(model, []) + [i for i, matches in self._patterns if matches(model)]
        found = tuple(self.routes[i] for i in sorted(hits))
        if found and len(model) <= _LONGEST:  # nor are unknown names worth remembering
            if len(self._matched) >= _REMEMBERED:
                self._matched.clear()
            self._matched[model] = found
        return found

    def find(
        self, model: str, version: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> Route | None:
        """The first route for ``model``, ``version`` ("" = any) and a request's ``headers``."""
        for route in self.candidates(model):
            if (not route.version or route.version == version) and (
                not route.headers or route.admits(headers)
            ):
                return route
        return None

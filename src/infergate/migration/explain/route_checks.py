"""Explains the choice of a route: the first mismatch of every earlier route, and all targets of the
matching route. This module has no I/O."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from infergate.routing.table import Route, model_matcher

_FULL_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class RouteCheck:
    """A route of the configuration. ``mismatch`` is the reason why the request does not match, or
    empty for the matching route."""

    number: int
    """The position in ``routes``, from 1."""
    label: str
    mismatch: str


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A backend to which a route may send the request. ``route`` is a copy of the route with this
    backend as its only target."""

    role: str
    """``backend``, ``split``, ``fallback``, ``mirror`` or ``baseline``."""
    when: str
    """The requests that the target receives, in words."""
    route: Route


def check_routes(
    routes: Sequence[Route], model: str, version: str, headers: Mapping[str, str]
) -> tuple[list[RouteCheck], Route | None]:
    """Return a check for each route up to the first match, and the matching route or None."""
    checks: list[RouteCheck] = []
    for number, route in enumerate(routes, 1):
        mismatch = _mismatch(route, model, version, headers)
        checks.append(RouteCheck(number, route.label, mismatch))
        if not mismatch:
            return checks, route
    return checks, None


def _mismatch(route: Route, model: str, version: str, headers: Mapping[str, str]) -> str:
    if route.is_exact and route.pattern != model:
        return f"the model is '{model}', not '{route.pattern}'"
    if not route.is_exact and not model_matcher(route.pattern)(model):
        return f"the model '{model}' does not match the pattern {route.pattern}"
    if route.version and route.version != version:
        requested = f"version '{version}'" if version else "no version"
        return f"the request has {requested}; the route is for version '{route.version}'"
    for name, pattern in route.headers.items():
        value = headers.get(name)
        if value is None:
            return f"the request has no header '{name}' (expected '{pattern}')"
        if not fnmatch.fnmatchcase(value, pattern):
            return f"the header '{name}' does not match '{pattern}'"
    return ""


def targets_of(route: Route) -> Iterator[RouteTarget]:
    """Yield the targets of ``route``: its backend, then the split, the fallback, the mirror and the
    baseline of the comparison with the mirror."""
    # A route with several targets, or with layers, translates every message. ``has_layers`` makes
    # the copy with a single target do so too.
    translated = route.has_other_targets or route.has_layers
    single = replace(route, split=(), fallback="", mirror=None, has_layers=translated)
    share = _FULL_PERCENT - sum(target.percent for target in route.split)
    when = f"{share:g}% of requests" if route.split else "all requests"
    yield RouteTarget("backend", when, single)
    by = f"; the value of the header '{route.split_by}' decides" if route.split_by else ""
    for target in route.split:
        to_target = replace(single, backend=target.backend, rewrite=target.rewrite)
        yield RouteTarget("split", f"{target.percent:g}% of requests{by}", to_target)
    if route.fallback:
        when = "requests whose backend cannot be reached, except requests of a sequence"
        yield RouteTarget("fallback", when, replace(single, backend=route.fallback))
    mirror = route.mirror
    if mirror is None:
        return
    when = f"a copy of {mirror.percent:g}% of requests"
    to_mirror = replace(single, backend=mirror.backend, rewrite=mirror.rewrite)
    yield RouteTarget("mirror", when, to_mirror)
    baseline = mirror.comparison.baseline if mirror.comparison is not None else None
    if baseline is not None:
        # A baseline without its own backend sends the request again to the route's backend.
        when = f"a further copy of {baseline.percent:g}% of the requests that the mirror gets"
        to_baseline = replace(single, backend=baseline.backend or route.backend)
        yield RouteTarget("baseline", when, to_baseline)

"""Checks the rules and baselines of comparisons, and the folders for mismatches."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping
from pathlib import Path

from infergate.comparison.rules import ComparisonRuleError, OutputRule
from infergate.config.comparison import CompareConfig, KeepConfig, OutputRuleConfig
from infergate.config.mistakes import Finding, KeyPath, suggestion
from infergate.config.models import DeclaredModelConfig
from infergate.config.outline import Outline
from infergate.config.routes import RouteConfig
from infergate.core.datatypes import DATATYPES_BY_NAME, FLOATS, Datatype

_FLOAT_NAMES = tuple(datatype.value for datatype in Datatype if datatype in FLOATS)


def comparison_findings(outline: Outline) -> Iterator[Finding]:
    """Yield an error for each rule that cannot apply to any response, each baseline with a backend
    that the route already uses, and each folder with conflicting uses."""
    yield from _folders(outline)
    for index, route in outline.routes.items():
        mirror = route.mirror
        if mirror is None or mirror.compare is None:
            continue
        base: KeyPath = ("routes", index, "mirror", "compare")
        compare = mirror.compare
        for name in compare.tolerances:
            if (problem := _datatype_problem(name)) is not None:
                yield (*base, "tolerances", name), problem
        yield from _rules(base, compare.outputs, _declared_outputs(route, outline.models))
        yield from _baseline(base, compare, route)


def _folders(outline: Outline) -> Iterator[Finding]:
    recordings = None if outline.recording_path is None else _absolute(outline.recording_path)
    first: dict[str, tuple[int, KeepConfig]] = {}
    for index, route in outline.routes.items():
        compare = None if route.mirror is None else route.mirror.compare
        if compare is None or compare.keep is None:
            continue
        keep, folder = compare.keep, _absolute(compare.keep.path)
        path: KeyPath = ("routes", index, "mirror", "compare", "keep", "path")
        if folder == recordings:
            problem = f"'{keep.path}' is already the folder of recording.path"
            yield path, f"{problem}; name another folder"
        earlier, other = first.setdefault(folder, (index, keep))
        if (keep.count, keep.bytes, keep.age) != (other.count, other.bytes, other.age):
            reason = "both routes must have the same count, bytes and age"
            yield path, f"'{keep.path}' is already the folder of routes[{earlier}]; {reason}"


def _absolute(path: Path) -> str:
    """Return the absolute ``path``, without reading the file system, which may not respond."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve reads the file system


def _datatype_problem(name: str) -> str | None:
    if name not in DATATYPES_BY_NAME:
        return f"'{name}' is not a datatype{suggestion(name, _FLOAT_NAMES)}"
    if name not in _FLOAT_NAMES:
        return f"{name} is compared exactly; only {', '.join(_FLOAT_NAMES)} have a tolerance"
    return None


def _declared_outputs(
    route: RouteConfig, models: Mapping[str, DeclaredModelConfig | None]
) -> Mapping[str, Datatype]:
    """Return the datatypes of the declared outputs by name. The result is empty if the route's
    pattern is not the name of a declared model."""
    model = models.get(route.model)
    return {} if model is None else {tensor.name: tensor.datatype for tensor in model.outputs}


def _rules(
    base: KeyPath, rules: Mapping[str, OutputRuleConfig], declared: Mapping[str, Datatype]
) -> Iterator[Finding]:
    for name, rule in rules.items():
        path: KeyPath = (*base, "outputs", name)
        if declared and name not in declared:
            yield path, f"the model has no output '{name}'{suggestion(name, declared)}"
        elif declared:
            try:
                OutputRule(**dict(rule)).check_datatype(name, declared[name])
            except ComparisonRuleError as error:
                yield path, str(error)
        if rule.ignore and rule.model_fields_set != {"ignore"}:
            yield (*path, "ignore"), "an ignored output cannot have other rules"


def _baseline(base: KeyPath, compare: CompareConfig, route: RouteConfig) -> Iterator[Finding]:
    baseline = compare.baseline
    if baseline is None or not baseline.backend or route.mirror is None:
        return
    path: KeyPath = (*base, "baseline", "backend")
    if baseline.backend == route.mirror.backend:
        yield path, f"'{baseline.backend}' is the mirror itself; name a copy of the route's backend"
    elif baseline.backend == route.backend:
        hint = "omit 'backend' to send requests to it twice"
        yield path, f"'{baseline.backend}' already serves this route; {hint}"

"""Parts of a valid routes.yaml that have no effect. They are allowed, so that the first step of a
rollout, or a rollback, changes only one number."""

from __future__ import annotations

from collections.abc import Iterator

from infergate.config.mistakes import Finding, KeyPath
from infergate.config.routes import named_backends
from infergate.config.schema import Config


def warning_findings(config: Config) -> Iterator[Finding]:
    """Yield a warning for each backend and each target of a route that gets no requests."""
    used = {name for route in config.routes for _, name in named_backends(route)}
    for name in config.backends:
        if name not in used:
            yield ("backends", name), f"no route uses the backend '{name}'"
    for index, route in enumerate(config.routes):
        for position, target in enumerate(route.split):
            if not target.percent:
                at_split: KeyPath = ("routes", index, "split", position, "percent")
                yield at_split, f"the backend '{target.backend}' gets no requests of this split"
        mirror = route.mirror
        if mirror is None:
            continue
        if not mirror.percent:
            at_mirror: KeyPath = ("routes", index, "mirror", "percent")
            yield at_mirror, f"the mirror is off: '{mirror.backend}' gets no copies"
        baseline = None if mirror.compare is None else mirror.compare.baseline
        if baseline is not None and not baseline.percent:
            yield (
                ("routes", index, "mirror", "compare", "baseline", "percent"),
                "the baseline is off: no response is compared with it",
            )

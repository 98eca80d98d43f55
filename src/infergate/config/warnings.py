"""Warnings about a valid routes.yaml: settings without effect, and settings with an effect that the
operator may not expect. Settings without effect are not errors, so that a rollout can start and be
rolled back by changing only a percentage."""

from __future__ import annotations

from collections.abc import Iterator

from infergate.config.mistakes import Finding, KeyPath
from infergate.config.routes import named_backends
from infergate.config.schema import Config
from infergate.core.priorities import DEFAULT_PRIORITY


def warning_findings(config: Config) -> Iterator[Finding]:
    """Yield the warnings about ``config``."""
    yield from _without_effect(config)
    yield from _unlimited_priorities(config)
    yield from _webp_without_helpers(config)


def _without_effect(config: Config) -> Iterator[Finding]:
    """Yield a warning for each backend, split target, mirror and baseline that gets no requests."""
    used = {name for route in config.routes for _, name in named_backends(route)}
    for name in config.backends:
        if name not in used:
            yield ("backends", name), f"no route uses the backend '{name}'"
    for index, route in enumerate(config.routes):
        for position, target in enumerate(route.split):
            if not target.percent:
                percent_path: KeyPath = ("routes", index, "split", position, "percent")
                yield percent_path, f"the split sends no requests to '{target.backend}'"
        mirror = route.mirror
        if mirror is None:
            continue
        if not mirror.percent:
            mirror_path: KeyPath = ("routes", index, "mirror", "percent")
            yield mirror_path, f"the mirror is off: '{mirror.backend}' gets no copies"
        baseline = None if mirror.compare is None else mirror.compare.baseline
        if baseline is not None and not baseline.percent:
            yield (
                ("routes", index, "mirror", "compare", "baseline", "percent"),
                "the baseline is off: no response is compared with it",
            )


def _unlimited_priorities(config: Config) -> Iterator[Finding]:
    """Yield a warning for the first route that sets a priority for a backend with a queue, if
    authenticated clients may request any priority."""
    if config.access is None or config.access.shares:
        return
    for index, route in enumerate(config.routes):
        if route.priority == DEFAULT_PRIORITY:
            continue
        for _, name in named_backends(route):
            limits = config.backends[name].limits
            if limits.max_requests:
                yield (
                    ("routes", index, "priority"),
                    (
                        "any client may request a higher priority, up to 1, with the header "
                        f"'{limits.priority_header}'; 'highest_priority' in access.shares limits it"
                    ),
                )
                return


def _webp_without_helpers(config: Config) -> Iterator[Finding]:
    if config.helpers:
        return
    for index, route in enumerate(config.routes):
        steps = () if route.transforms is None else route.transforms.inputs
        for position, step in enumerate(steps):
            if step.decode_image is not None:
                yield (
                    ("routes", index, "transforms", "inputs", position, "decode_image"),
                    (
                        "without helper processes ('helpers: 0'), a large WebP image delays all "
                        "other requests while it is decoded"
                    ),
                )

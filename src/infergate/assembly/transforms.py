"""Builds the layers that transform the tensors of routes."""

from __future__ import annotations

from collections.abc import Callable

from infergate.config.plugins import PluginStepConfig
from infergate.config.routes import RouteConfig
from infergate.core.counters import PluginCounters
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.limits import Limits
from infergate.core.offload import Offload
from infergate.gateway.route_layers import RouteLayer
from infergate.plugin_host.runner import PluginRunner
from infergate.transforms.step import Step

RunnerOf = Callable[[PluginStepConfig], PluginRunner]
"""Returns the runner of a step's plug-in. Raises PluginError."""


def _create_runner(step: PluginStepConfig) -> PluginRunner:
    from infergate.assembly.plugins import make_transform  # noqa: PLC0415 - only if configured

    return make_transform(step, PluginCounters())


def make_transform_layer(
    route: RouteConfig,
    limits: Limits,
    offload: Offload | None,
    runner_of: RunnerOf = _create_runner,
) -> RouteLayer | None:
    """Return the layer for the transforms of ``route``, or None if the route has no transforms.
    ``offload`` runs long steps. ``runner_of`` returns the runner of a step's plug-in; the default
    creates a new plug-in. Raises PluginError."""
    if route.transforms is None:
        return None
    # These modules delay the start, so they are imported only if they are needed.
    from infergate.config.transform_steps import make_transforms  # noqa: PLC0415
    from infergate.gateway.transformed_route import TransformLayer  # noqa: PLC0415

    def make_plugin(step: PluginStepConfig) -> Step:
        from infergate.plugin_host.transform_step import PluginStep  # noqa: PLC0415 - if needed

        return PluginStep(runner=runner_of(step), timeout=step.timeout, limits=limits)

    casts = {DATATYPES_BY_NAME[name]: substitute for name, substitute in route.cast.items()}
    transforms = make_transforms(route.transforms, make_plugin)
    return TransformLayer(transforms, limits, offload, route.labels, casts)

"""The layers that transform the tensors of routes."""

from __future__ import annotations

from infergate.config.routes import RouteConfig
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.limits import Limits
from infergate.core.offload import Offload
from infergate.gateway.route_layers import RouteLayer


def make_transform_layer(
    route: RouteConfig, limits: Limits, offload: Offload | None
) -> RouteLayer | None:
    """Return the layer for the transforms of ``route``, or None if it has none. ``offload`` runs
    their long work."""
    if route.transforms is None:
        return None
    # Imported only if they are needed, because they delay the start.
    from infergate.config.transform_steps import make_transforms  # noqa: PLC0415
    from infergate.gateway.transformed_route import TransformLayer  # noqa: PLC0415

    casts = {DATATYPES_BY_NAME[name]: substitute for name, substitute in route.cast.items()}
    return TransformLayer(make_transforms(route.transforms), limits, offload, route.labels, casts)

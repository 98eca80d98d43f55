"""The layers of routes, in their order from the client inwards: request hooks, the response cache,
and transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infergate.config.routes import RouteConfig
from infergate.config.schema import Config
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.limits import Limits
from infergate.core.offload import Offload
from infergate.gateway.route_layers import RouteLayer

LayerFactory = Callable[[RouteConfig], RouteLayer | None]
"""Returns the layer that the route's configuration asks for, or None."""


def make_layers(
    config: Config, factories: Sequence[LayerFactory]
) -> Mapping[int, Sequence[RouteLayer]]:
    """Return the layers of the routes by position. The layer of the first factory is next to the
    client."""
    layers = {
        position: [layer for make in factories if (layer := make(route)) is not None]
        for position, route in enumerate(config.routes)
    }
    return {position: found for position, found in layers.items() if found}


def transform_layers(limits: Limits, offload: Offload | None) -> LayerFactory:
    """Return the factory of transforms. ``offload`` runs their long work."""

    def make(route: RouteConfig) -> RouteLayer | None:
        if route.transforms is None:
            return None
        # Imported only if they are needed, because they delay the start.
        from infergate.config.transform_steps import make_transforms  # noqa: PLC0415
        from infergate.gateway.transformed_route import TransformLayer  # noqa: PLC0415

        casts = {DATATYPES_BY_NAME[name]: substitute for name, substitute in route.cast.items()}
        return TransformLayer(
            make_transforms(route.transforms), limits, offload, route.labels, casts
        )

    return make

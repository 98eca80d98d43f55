"""The layers of routes, in their order from the client inwards: request hooks, the response cache,
and transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infergate.config.routes import RouteConfig
from infergate.config.schema import Config
from infergate.gateway.route_layers import RouteLayer

LayerFactory = Callable[[RouteConfig], RouteLayer | None]
"""Returns the layer that the route's configuration requires, or None."""


def make_layers(
    config: Config, factories: Sequence[LayerFactory]
) -> Mapping[int, Sequence[RouteLayer]]:
    """Return the layers of each route that has layers, by the route's position. The layer of the
    first factory is closest to the client."""
    layers = {
        position: [layer for make in factories if (layer := make(route)) is not None]
        for position, route in enumerate(config.routes)
    }
    return {position: route_layers for position, route_layers in layers.items() if route_layers}

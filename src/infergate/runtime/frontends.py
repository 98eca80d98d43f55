"""Makes the frontends of envelopes, and the health and reflection services of a gRPC listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infergate.codecs.base import Codec
from infergate.codecs.protos import SCHEMA
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.gateway.authorized import authorized_services
from infergate.gateway.frontend import Frontend
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.services import GatewayServices, gateway_services
from infergate.runtime.access import Authorizer

MakeFrontend = Callable[[Codec[Any, Any]], Frontend[Any, Any]]
"""Makes the frontend of a codec. All frontends of a configuration share the gateway, the limits and
the authorizer."""


def envelope_claims(
    config: Config, listener: str, make_frontend: MakeFrontend
) -> dict[str, Frontend[Any, Any]]:
    """Return the frontends of the envelopes that ``listener`` serves, by their claims."""
    claims: dict[str, Frontend[Any, Any]] = {}
    for name, options in compiled.envelope_options(config, listener).items():
        from infergate.codecs.envelopes import ENVELOPES  # noqa: PLC0415 - only if enabled

        codec = ENVELOPES[name](**options)
        claims |= dict.fromkeys(codec.claims, make_frontend(codec))
    return claims


def own_services(
    claims: Mapping[str, Frontend[Any, Any]], gateway: RoutingGateway, authorizer: Authorizer | None
) -> GatewayServices:
    """Return the health and reflection services of a listener that serves ``claims``."""
    services = gateway_services(SCHEMA, tuple(claims), gateway.readiness)
    if authorizer is None:
        return services
    build_error = next(iter(claims.values())).codec.build_error
    return authorized_services(services, authorizer, build_error)

"""Makes the frontends of the listeners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infergate.codecs.base import Codec
from infergate.codecs.protos import SCHEMA
from infergate.config import compile as compiled
from infergate.config.schema import Config
from infergate.core.limits import Limits
from infergate.core.offload import Offload
from infergate.gateway.authorized import authorized_services
from infergate.gateway.frontend import Frontend, RequestAuthorizer
from infergate.gateway.gateway import RoutingGateway
from infergate.gateway.inference_gateway import InferenceGateway
from infergate.gateway.services import GatewayServices, gateway_services
from infergate.gateway.steps import Steps
from infergate.runtime.access import Authorizer


@dataclass(frozen=True, slots=True)
class FrontendFactory:
    """Makes the frontend of each codec. All frontends of a configuration share the factory's
    attributes."""

    gateway: InferenceGateway
    limits: Limits
    offload: Offload | None
    authorizer: RequestAuthorizer | None
    steps: Steps

    def make(self, codec: Codec[Any, Any]) -> Frontend[Any, Any]:
        return Frontend(codec, self.gateway, self.limits, self.offload, self.authorizer, self.steps)


def envelope_claims(
    config: Config, listener: str, factory: FrontendFactory
) -> dict[str, Frontend[Any, Any]]:
    """Return the frontends of the envelopes that ``listener`` serves, by their claims."""
    claims: dict[str, Frontend[Any, Any]] = {}
    for name, options in compiled.envelope_options(config, listener).items():
        from infergate.codecs.envelopes import ENVELOPES  # noqa: PLC0415 - only if enabled

        codec = ENVELOPES[name](**options)
        claims |= dict.fromkeys(codec.claims, factory.make(codec))
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

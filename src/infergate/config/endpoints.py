"""The sections of routes.yaml on endpoints: load balancing, health checks, outlier detection."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, WithJsonSchema

from infergate.config.fields import (
    Duration,
    HeaderName,
    NonNegative,
    Positive,
    PositiveDuration,
    WholePercent,
)
from infergate.config.section import Section
from infergate.config.values import Url, describe_value, parse_url

_MAX_WEIGHT: Final = 1000
_KEYS: Final = frozenset({"url", "weight", "name"})
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def parse_endpoint(value: Any) -> Url:
    """Parse an endpoint: a URL, or a mapping like ``{url: http://a:8000, weight: 3, name: large}``.

    Raises ValueError."""
    if not isinstance(value, dict):
        return parse_url(value)
    unknown = sorted(str(key) for key in value.keys() - _KEYS)
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'; an endpoint has url, weight and name")
    if "url" not in value:
        raise ValueError("an endpoint needs a url, like {url: http://10.0.0.7:8000, weight: 3}")
    weight = value.get("weight", 1)
    if type(weight) is not int or not 1 <= weight <= _MAX_WEIGHT:
        raise ValueError(f"weight must be from 1 to {_MAX_WEIGHT}, got {describe_value(weight)}")
    name = value.get("name", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name or "x"):
        raise ValueError(
            f"name must be up to 64 letters, digits, '.', '_' or '-', got {describe_value(name)}"
        )
    return replace(parse_url(value["url"]), weight=weight, name=name)


def endpoint_text(url: Url) -> str | dict[str, Any]:
    """Return ``url`` in the form that ``parse_endpoint`` reads."""
    if url.weight == 1 and not url.name:
        return str(url)
    named = {"name": url.name} if url.name else {}
    return {"url": str(url), "weight": url.weight, **named}


EndpointUrl = Annotated[
    InstanceOf[Url],
    BeforeValidator(parse_endpoint),
    PlainSerializer(endpoint_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "URL"},
                {
                    "type": "object",
                    "properties": {
                        "url": {"type": "string", "format": "URL"},
                        "weight": {"type": "integer", "minimum": 1, "maximum": _MAX_WEIGHT},
                        "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
                    },
                    "required": ["url"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class BalanceConfig(Section):
    """Load balancing over the endpoints of a backend.

    Example: `balance: {policy: consistent-hash, hash_header: x-user-id}`."""

    policy: Literal["least-request", "round-robin", "consistent-hash"] = Field(
        default="least-request",
        description="`least-request` picks two endpoints at random and uses the endpoint with "
        "fewer requests in progress. `round-robin` uses each endpoint in turn. `consistent-hash` "
        "sends requests with equal values of `hash_header` to the same endpoint, on every "
        "gateway; when endpoints are added or removed, few values move to another endpoint. All "
        "policies respect weights. Requests of a sequence stay on one endpoint under every policy.",
    )
    hash_header: HeaderName = Field(
        default="x-request-id",
        description="The request header (gRPC: metadata) that `consistent-hash` hashes. Example: "
        "`x-user-id`. `x-request-id` is the request id, which infergate generates if the client "
        "does not send it. Requests without the header are balanced by `least-request`.",
    )
    slow_start: Duration = Field(
        default=10.0,
        description="Slow start: the time over which the weight of a new or recovered endpoint "
        "rises from a tenth to its full value. `consistent-hash` ignores it. With `0`, the "
        "endpoint gets its full weight immediately.",
    )
    panic_threshold: WholePercent = Field(
        default=0,
        description="Panic threshold: if less than this percentage of the endpoints is available, "
        "health is ignored and requests go to all endpoints. Health is always ignored when no "
        "endpoint is available. Example: `50`, Envoy's default.",
    )


class OutlierConfig(Section):
    """Outlier detection, as in Envoy: an endpoint whose requests
    fail is ejected, that is, it receives no requests for a while."""

    consecutive_errors: NonNegative = Field(
        default=5,
        description="Number of consecutive failures after which an endpoint is ejected. `0` "
        "disables outlier detection. An attempt fails if the endpoint was unreachable, broke the "
        "connection, sent an invalid response, exceeded the `timeout` of the route or backend or "
        "the `per_try_timeout`, or returned HTTP 502, 503 or 504 or gRPC UNAVAILABLE to an "
        "inference of a model that the backend has served before. Broken connections and invalid "
        "responses may be the fault of the request, so they eject an endpoint only if an immediate "
        "health check also fails. This check does not depend on `health.checks`.",
    )
    base_ejection_time: PositiveDuration = Field(
        default=30.0,
        description="Duration of an endpoint's first ejection. The second ejection lasts twice as "
        "long, the third lasts three times as long, and so on. Each period of this length without "
        "an ejection shortens the next ejection by `base_ejection_time`.",
    )
    max_ejection_time: PositiveDuration = Field(
        default=300.0, description="Maximum duration of an ejection."
    )
    max_ejection_percent: WholePercent = Field(
        default=10,
        description="Maximum percentage of the endpoints that may be ejected at the same time. One "
        "endpoint may be ejected regardless of this percentage, but never the last available "
        "endpoint.",
    )


class HealthConfig(Section):
    """Active health checks. They use the readiness operation of V2 or of the legacy API, or
    GraphPipe's metadata. If a server has no such operation, gRPC's health service or a GET request
    is used."""

    checks: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="`auto` checks endpoints while the backend has more than one endpoint and "
        "`connections` is `0`. The results also determine the gateway's readiness. Servers of a "
        "backend without checks are queried whenever the gateway's readiness is requested.",
    )
    interval: PositiveDuration = Field(
        default=5.0,
        description="Interval between two checks of an endpoint, with a random jitter of 10 %.",
    )
    timeout: PositiveDuration = Field(default=2.0, description="Timeout of a check.")
    rise: Positive = Field(
        default=2,
        description="Number of consecutive successful checks after which an endpoint counts as "
        "healthy again.",
    )
    fall: Positive = Field(
        default=3,
        description="Number of consecutive failed checks after which an endpoint counts as down. "
        "The first check of an endpoint takes effect immediately.",
    )

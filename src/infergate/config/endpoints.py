"""How requests are spread over a backend's endpoints, and how those are looked after."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, InstanceOf, PlainSerializer, WithJsonSchema

from infergate.config.fields import Duration, HeaderName, Positive, PositiveDuration, read_by
from infergate.config.section import Section
from infergate.config.values import Url, parse_url, told

_MOST_WEIGHT: Final = 1000
_KEYS: Final = frozenset({"url", "weight", "name"})
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def parse_endpoint(value: Any) -> Url:
    """A URL, or one with its weight or name: ``{url: http://a:8000, weight: 3, name: large}``."""
    if not isinstance(value, dict):
        return parse_url(value)
    unknown = sorted(str(key) for key in value.keys() - _KEYS)
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'; an endpoint has a url, a weight and a name")
    if "url" not in value:
        raise ValueError("an endpoint needs a url, like {url: http://10.0.0.7:8000, weight: 3}")
    weight = value.get("weight", 1)
    if type(weight) is not int or not 1 <= weight <= _MOST_WEIGHT:
        raise ValueError(f"weight must be from 1 to {_MOST_WEIGHT}, got {told(weight)}")
    name = value.get("name", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name or "x"):
        raise ValueError(f"name must be letters, digits, '.', '_' and '-', got {told(name)}")
    return parse_url(value["url"]).described(weight, name)


def endpoint_text(url: Url) -> str | dict[str, Any]:
    """``url`` as the config spells it."""
    if url.weight == 1 and not url.name:
        return str(url)
    named = {"name": url.name} if url.name else {}
    return {"url": str(url), "weight": url.weight, **named}


EndpointUrl = Annotated[
    InstanceOf[Url],
    read_by(parse_endpoint),
    PlainSerializer(endpoint_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "URL"},
                {
                    "type": "object",
                    "properties": {
                        "url": {"type": "string", "format": "URL"},
                        "weight": {"type": "integer", "minimum": 1, "maximum": _MOST_WEIGHT},
                        "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
                    },
                    "required": ["url"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Percent = Annotated[int, Field(ge=0, le=100)]


class BalanceConfig(Section):
    """Which of several endpoints is asked."""

    policy: Literal["least-request", "round-robin", "consistent-hash"] = Field(
        default="least-request",
        description="`least-request`: of two drawn at random the one with fewer requests under "
        "way; `round-robin`: each in turn; `consistent-hash`: requests with the same value of "
        "`hash_header` go to the same one, in every gateway, and few move when endpoints come and "
        "go. Weights count in each. Requests of a sequence always keep to one endpoint, whatever "
        "this says.",
    )
    hash_header: HeaderName = Field(
        default="x-request-id",
        description="For `consistent-hash`: the header (gRPC: metadata) of the request whose value "
        "decides. `x-request-id` is the request's id, which infergate gives to those that have "
        "none. Requests without the header go as by `least-request`.",
    )
    slow_start: Duration = Field(
        default=10.0,
        description="How long an endpoint that is new or comes back takes part with less than its "
        "share, which grows from a tenth. Not with `consistent-hash`. 0: it has all of it at once.",
    )
    panic_threshold: Percent = Field(
        default=0,
        description="Where fewer than so many percent of the endpoints may be asked, all are "
        "asked, as they are in any case where none is left (Envoy: 50).",
    )


class OutlierConfig(Section):
    """When an endpoint is let alone because requests to it fail (Envoy's outlier detection)."""

    consecutive_errors: Annotated[int, Field(ge=0)] = Field(
        default=5,
        description="Failures in a row after which an endpoint is ejected: it could not be "
        "reached, broke off, was too slow by the route's or backend's `timeout`, or answered HTTP "
        "502, 503, 504 or gRPC UNAVAILABLE to an inference of a model that the backend has served "
        "before. A request may be the reason why an endpoint breaks "
        "off: where such failures are needed for the number, a health check has to fail as well, "
        "which is made at once, whatever `health.checks` says. 0: never.",
    )
    base_ejection_time: PositiveDuration = Field(
        default=30.0,
        description="For how long the first time; twice as long the second, three times the third. "
        "A time as long as this without being ejected takes one back.",
    )
    max_ejection_time: PositiveDuration = Field(default=300.0, description="For how long at most.")
    max_ejection_percent: Percent = Field(
        default=10,
        description="How many percent of the endpoints may be ejected at a time. One always may "
        "be, but never the last that may be asked.",
    )


class HealthConfig(Section):
    """How the servers are asked whether they are ready, in the backend's own protocol: V2's and the
    legacy API's readiness, GraphPipe's metadata; where a server has none such, by gRPC's health
    service or a GET."""

    checks: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="`auto`: while there is more than one endpoint to choose from, and "
        "`connections` sets no bound. What is asked tells `readiness` too; of a backend whose "
        "servers are not asked, whoever wants to know the gateway's readiness asks.",
    )
    interval: PositiveDuration = Field(
        default=5.0,
        description="Between two checks of an endpoint, a tenth more or less by chance.",
    )
    timeout: PositiveDuration = Field(default=2.0, description="For a check's answer.")
    rise: Positive = Field(
        default=2, description="Checks in a row that must go well for an endpoint to be up again."
    )
    fall: Positive = Field(
        default=3,
        description="Checks in a row that must fail for an endpoint to be down. The first check "
        "of all decides by itself.",
    )

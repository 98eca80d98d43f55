"""What routes.yaml says of requests that fail, are slow, or are too many."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema

from infergate.config.fields import HedgeAfter, Name, PositiveDuration, PositiveSize
from infergate.config.section import Section
from infergate.core.limits import HEADER_BUDGET
from infergate.core.retrying import DEFAULT
from infergate.routing.budget import LEAST, SHARE

Share = Annotated[
    float,
    Field(gt=0, le=100),
    WithJsonSchema({"type": "number", "format": "percent", "exclusiveMinimum": 0, "maximum": 100}),
]
"""Percent; parts of one are told, too."""


class RetryConfig(Section):
    """What becomes of a request that fails. Nothing is tried again past its deadline, nor once the
    client has had a byte of the answer; a sequence never goes to another endpoint."""

    times: Annotated[int, Field(ge=0, le=10)] = Field(
        default=DEFAULT.retries,
        description="Tries beyond the first: on another endpoint where there is one, at once where "
        "nothing was sent, else after up to 25 ms, 75 ms, 175 ms, and then 250 ms each.",
    )
    per_try_timeout: PositiveDuration | None = Field(
        default=None,
        description="What each try has of the request's timeout, on an `idempotent` route; left "
        "out: all of it.",
    )


class HedgeConfig(Section):
    """A second try of a request that is slow, on another endpoint; the first good answer is taken
    and the other try cancelled."""

    after: HedgeAfter = Field(
        description="How long to wait for the first: a duration, or `p95`, say, for as long as "
        "95 % of the route's last 500 to 1000 answers took (once there were 50)."
    )


class BackendLimits(Section):
    """How much of a backend is asked at once, of which only inferences count; and how large the
    headers may be that it is sent."""

    max_requests: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Inferences at a time, streams included, to all endpoints together; the others "
        "wait in the order they came, no longer than their deadlines. 0: as many as come.",
    )
    max_queue: Annotated[int, Field(ge=0)] = Field(
        default=100,
        description="How many wait, where `max_requests` bounds them; further ones are refused at "
        "once: HTTP 503 with Retry-After, gRPC UNAVAILABLE.",
    )
    retry_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        default=round(SHARE * 100),
        description="What share of the inferences in progress may be tries beyond the first, "
        "hedges included; beyond that failures are told as they come.",
    )
    retry_least: Annotated[int, Field(ge=0)] = Field(
        default=LEAST,
        description="How many tries beyond the first there may be at a time whatever the share.",
    )
    forwarded_headers: PositiveSize = Field(
        default=HEADER_BUDGET,
        description="Bytes of all client headers passed on by `forward_headers`: names, values, "
        "and 32 for each. `tracestate` is cut to 512 characters and 32 members, `baggage` to 64 "
        "members and what is left of this; an invalid `traceparent` is left out, and `tracestate` "
        "with it. Beyond it a request is refused: HTTP 413, gRPC RESOURCE_EXHAUSTED. Servers close "
        "connections over longer headers (aiohttp and Triton: 8190 bytes).",
    )


class MirrorConfig(Section):
    """A backend that inferences are sent to as well, when their own answers are there. Its answers
    nobody gets."""

    backend: Name = Field(description="The name of a backend.")
    percent: Share = Field(
        default=100.0,
        description="How many percent of the route's inferences; of a sequence all or none.",
    )
    max_requests: Annotated[int, Field(ge=1)] = Field(
        default=16, description="How many at a time; further ones are dropped, and counted."
    )

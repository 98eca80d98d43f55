"""The sections of routes.yaml on retries, hedging, mirroring and the limits of a backend."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from infergate.config.comparison import CompareConfig
from infergate.config.fields import (
    HeaderName,
    HedgeAfter,
    Name,
    NonNegative,
    Percent,
    Positive,
    PositiveDuration,
    PositiveSize,
    WholePercent,
)
from infergate.config.rewrite import RewriteConfig
from infergate.config.section import Section
from infergate.core.limits import FORWARDED_HEADER_BYTES
from infergate.core.priorities import PRIORITY_HEADER
from infergate.core.route_policy import DEFAULT_RETRY_POLICY
from infergate.routing.budget import DEFAULT_MIN_RETRIES, DEFAULT_SHARE


class RetryConfig(Section):
    """Retry policy. A request is not retried after its deadline, or after a byte of the response
    was sent to the client. A request of a sequence never moves to another endpoint."""

    times: Annotated[int, Field(ge=0, le=10)] = Field(
        default=DEFAULT_RETRY_POLICY.max_retries,
        description="Maximum number of retries. A retry uses another endpoint if there is one. A "
        "request that was not sent is retried immediately. Other requests are retried after a "
        "random backoff of up to 25 ms, 75 ms, 175 ms, and then 250 ms each. `0` disables retries.",
    )
    per_try_timeout: PositiveDuration | None = Field(
        default=None,
        description="Timeout of each attempt, within the request's timeout. Requires `idempotent: "
        "true`. Example: `500ms`. By default, an attempt may use all the remaining time.",
    )


class HedgeConfig(Section):
    """Hedged requests: a slow request is also sent to a second endpoint. The first successful
    response is used, and the other attempt is cancelled.

    Example: `hedge: {after: p95}`."""

    after: HedgeAfter = Field(
        description="Delay of the second attempt: a duration such as `50ms`, or a percentile of "
        "the route's response times such as `p95`. The percentile is computed from the last 500 to "
        "1000 responses, after at least 50 responses."
    )


class BackendLimits(Section):
    """Limits of a backend: concurrent inferences, the queue, the retry budget, and the size of
    forwarded headers. Only inferences count toward `max_requests` and `max_queue`."""

    max_requests: NonNegative = Field(
        default=0,
        description="Maximum number of concurrent inferences, streams included, over all "
        "endpoints of the backend. Further inferences wait, at most until their deadline, in a "
        "queue that is fair between clients and respects priorities (docs/overload.md). Example: "
        "`32`. With `0`, the number is not limited, except for `python`, where the limit is 8.",
    )
    max_queue: NonNegative = Field(
        default=100,
        description="Maximum number of inferences that wait because of `max_requests`. When the "
        "queue is full, inferences are rejected (load shedding) with HTTP 503 and Retry-After, or "
        "with gRPC UNAVAILABLE. Inferences of the lowest priority are rejected first and, within "
        "a priority, the latest inference of the client with the most waiting inferences.",
    )
    priority_header: HeaderName = Field(
        default=PRIORITY_HEADER,
        description="The header (gRPC: metadata) with the priority of an inference in the queue, "
        "from `1` (highest) to `9`. It takes precedence over V2's parameter `priority` and the "
        "`priority` of the route. Other values are ignored.",
    )
    retry_percent: WholePercent = Field(
        default=round(DEFAULT_SHARE * 100),
        description="Retry budget: the maximum number of concurrent retries and hedges, as a "
        "percentage of the requests in progress. Beyond the budget, failures are returned "
        "without a retry.",
    )
    min_retries: NonNegative = Field(
        default=DEFAULT_MIN_RETRIES,
        description="Number of concurrent retries and hedges that are allowed regardless of "
        "`retry_percent`.",
    )
    forwarded_headers: PositiveSize = Field(
        default=FORWARDED_HEADER_BYTES,
        description="Maximum total size of the client headers selected by `forward_headers`: the "
        "bytes of names and values, plus 32 bytes for each header. Requests over this limit are "
        "rejected with HTTP 413 or gRPC RESOURCE_EXHAUSTED. `tracestate` is first cut to 512 "
        "bytes and 32 members, and `baggage` to 64 members and the remaining size. An invalid "
        "`traceparent` is dropped together with `tracestate`. The limit exists because servers "
        "close a connection if headers are too long (aiohttp and Triton: over 8190 bytes).",
    )


class MirrorConfig(Section):
    """Traffic mirroring: a backend receives copies of inferences after the client has its response.
    Responses to the copies are compared with the served responses if `compare` is set, and then
    discarded."""

    backend: Name = Field(description="The name of the backend that receives the copies.")
    rewrite: RewriteConfig | None = Field(
        default=None,
        description="Names of the model and its tensors at this backend. By default, the route's "
        "`rewrite` applies.",
    )
    percent: Percent = Field(
        default=100.0,
        description="Percentage of the route's inferences to copy. The inferences of a sequence "
        "are either all copied or all skipped. Inferences that use shared memory are never copied. "
        "`0` turns the mirror off. Example: `10`.",
    )
    max_requests: Positive = Field(
        default=16,
        description="Maximum number of copies in progress. Further copies are dropped and counted "
        "in `infergate_mirrored_requests_total`.",
    )
    compare: CompareConfig | None = Field(
        default=None,
        description="Compare the responses to the copies with the served responses. `{}` compares "
        "with the default rules. By default, responses are not compared.",
    )

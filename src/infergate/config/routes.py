"""The sections of routes.yaml that describe routes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from infergate.config.cache import RouteCacheConfig
from infergate.config.fields import (
    HeaderName,
    Labels,
    Name,
    Pattern,
    Percent,
    PositiveDuration,
    Priority,
    TensorType,
    Text,
)
from infergate.config.mistakes import KeyPath
from infergate.config.payload_log import RoutePayloadLogConfig
from infergate.config.recording import RecordConfig
from infergate.config.rewrite import RewriteConfig
from infergate.config.section import Section
from infergate.config.traffic import HedgeConfig, MirrorConfig, RetryConfig
from infergate.config.transforms import TransformsConfig
from infergate.core.priorities import DEFAULT_PRIORITY


class TargetConfig(Section):
    """A backend that receives a percentage of a route's inferences, such as a canary."""

    backend: Name = Field(
        description="The backend's name. It may be the route's own backend, with another `rewrite`."
    )
    percent: Percent = Field(
        description="Percentage of the inferences, up to 100; fractions are allowed. `0` turns the "
        "target off. Example: `5`."
    )
    rewrite: RewriteConfig | None = Field(
        default=None,
        description="Names of the model and its tensors at this backend. By default, the route's "
        "`rewrite` applies.",
    )


class RouteConfig(Section):
    """A rule that sends requests for certain models to a backend."""

    model: Pattern = Field(
        description="Model names that match: a name, a glob such as `bert-*`, or `/a regular "
        "expression/`, which must match the whole name."
    )
    version: Text = Field(
        default="",
        description='Match only requests for this model version. Example: `"2"`. By default, the '
        "route matches requests with any version and without a version.",
    )
    backend: Name = Field(description="The name of the backend, a key of `backends`.")
    rewrite: RewriteConfig = Field(
        default=RewriteConfig(),
        description="Names of the model and its tensors at the backend, if they differ from the "
        "clients' names.",
    )
    timeout: PositiveDuration | None = Field(
        default=None,
        description="Timeout of a request, and of each response of a stream. By default, the "
        "backend's `timeout` applies. A shorter deadline set by the client takes precedence.",
    )
    idle_timeout: PositiveDuration | None = Field(
        default=None,
        description="Maximum pause between two responses of a stream. By default, it equals "
        "`timeout`.",
    )
    priority: Priority = Field(
        default=DEFAULT_PRIORITY,
        description="Priority of the route's inferences in the queues of backends with "
        "`limits.max_requests`, from `1` (highest) to `9` (docs/overload.md). A request may set "
        "another priority in the header that the backend's `limits.priority_header` names, or in "
        "V2's parameter `priority`.",
    )
    idempotent: bool = Field(
        default=False,
        description="Declare that an inference may safely run twice, as with stateless models. "
        "Inferences that were already sent are then also retried if the connection broke, the "
        "attempt timed out (`retry.per_try_timeout`), or the server returned 502, 503 or 504 "
        "(gRPC: UNAVAILABLE). With `false`, only requests that were not sent are retried. "
        "Inferences of a sequence are never sent twice.",
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="Retry policy.")
    cache: RouteCacheConfig | None = Field(
        default=None,
        description="Cache responses, and send identical concurrent inferences only once "
        "(docs/cache.md). This requires `idempotent: true`, and a model that gives equal responses "
        "to equal inferences. By default, nothing is cached.",
    )
    hedge: HedgeConfig | None = Field(
        default=None,
        description="Hedged requests: send a slow inference a second time, to another endpoint. "
        "This requires `idempotent: true`. Streams are not hedged. By default, requests are not "
        "hedged.",
    )
    headers: dict[HeaderName, Text] = Field(
        default={},
        description="Match only requests with all these headers (gRPC: metadata). Each value may "
        "be a glob. Example: `{x-tenant: team-*}`. The model index lists only models of routes "
        "without `headers`.",
    )
    split: tuple[TargetConfig, ...] = Field(
        default=(),
        description="Traffic splitting (canary, A/B): further backends that each receive a "
        "percentage of the inferences. `backend` receives the remaining inferences and all "
        "metadata requests. Example: `[{backend: canary, percent: 5}]`.",
    )
    split_by: HeaderName | None = Field(
        default=None,
        description="The header (gRPC: metadata) whose value assigns a request to a backend of "
        "the split: equal values go to the same backend, on every gateway. Example: `x-user-id`. "
        "By default, and for requests without the header, the request id is used. A sequence "
        "always stays on one backend.",
    )
    fallback: Text = Field(
        default="",
        description="The name of a backend that receives inferences for which no endpoint of "
        "`backend` could be reached. Inferences of a sequence do not fall back.",
    )
    mirror: MirrorConfig | None = Field(
        default=None,
        description="Traffic mirroring (shadowing): a backend that receives copies of inferences.",
    )
    hooks: tuple[Name, ...] = Field(
        default=(),
        description="Request hooks, by their names in the top-level `hooks`. They run in this "
        "order before an inference, and in reverse order after it. Inferences with shared memory "
        "are rejected. Example: `[guard]`.",
    )
    record: RecordConfig | None = Field(
        default=None,
        description="Record inferences in files (docs/recording.md). By default, nothing is "
        "recorded.",
    )
    payload_log: RoutePayloadLogConfig | None = Field(
        default=None,
        description="Send inferences to the payload log. This requires the top-level "
        "`payload_log`. Inferences with shared memory are not logged. By default, nothing is "
        "logged.",
    )
    transforms: TransformsConfig | None = Field(
        default=None,
        description="Changes of the tensors between clients and the backend "
        "(docs/transforms.md), such as decoding images. By default, tensors are not changed.",
    )
    validate_: bool = Field(
        default=True,
        alias="validate",
        description="Validate messages that are passed through to a backend of the same protocol. "
        "`false` skips parsing the JSON of these messages, and is only for trusted clients.",
    )
    cast: dict[str, TensorType] = Field(
        default={},
        description="Substitutes for datatypes that a protocol of the route does not support. "
        "Example: `{BF16: FP32, BOOL: UINT8}`. Only BOOL (missing in GraphPipe) and BF16 (missing "
        "in GraphPipe and the legacy API) can be cast, and only to a datatype that can hold all "
        "their values. Clients of a protocol without the datatype see, receive and send the "
        "substitute. Values from clients are cast back: a nonzero number becomes true, and a "
        "float is rounded. Without a cast, a tensor of such a datatype is an error.",
    )
    labels: dict[str, Labels] = Field(
        default={},
        description="Class labels of outputs, in order, as a list or as the path (relative to "
        "routes.yaml) of a text file with one label per line. Example: `{probs: "
        "labels/imagenet.txt}`. The labels are used when infergate classifies an output because "
        "the backend does not support classification.",
    )


def named_rewrites(route: RouteConfig) -> Iterator[tuple[KeyPath, RewriteConfig]]:
    """Yield each rewrite of ``route``, with its path below ``route``."""
    yield ("rewrite",), route.rewrite
    for index, target in enumerate(route.split):
        if target.rewrite is not None:
            yield ("split", index, "rewrite"), target.rewrite
    if route.mirror is not None and route.mirror.rewrite is not None:
        yield ("mirror", "rewrite"), route.mirror.rewrite


def named_backends(route: RouteConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield the name of each backend that ``route`` refers to, with its path below ``route``."""
    yield ("backend",), route.backend
    for index, target in enumerate(route.split):
        yield ("split", index, "backend"), target.backend
    if route.fallback:
        yield ("fallback",), route.fallback
    if route.mirror is not None:
        yield ("mirror", "backend"), route.mirror.backend
        compare = route.mirror.compare
        if compare is not None and compare.baseline is not None and compare.baseline.backend:
            yield ("mirror", "compare", "baseline", "backend"), compare.baseline.backend

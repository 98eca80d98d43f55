"""The sections of routes.yaml that describe routes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from infergate.config.fields import (
    HeaderName,
    Labels,
    Name,
    Pattern,
    PositiveDuration,
    TensorType,
    Text,
)
from infergate.config.mistakes import Path
from infergate.config.section import Section
from infergate.config.traffic import HedgeConfig, MirrorConfig, RetryConfig, Share


class RewriteConfig(Section):
    """What the backend calls things. What is left out is called as the client calls it."""

    model: Text = Field(
        default="",
        description="The backend's name of the model. After a regular expression, `\\1` or "
        "`\\g<name>` is what its group matched.",
    )
    version: Text = Field(default="", description="The version to ask the backend for.")
    inputs: dict[str, Name] = Field(
        default={}, description="The client's name of an input: the backend's name of it."
    )
    outputs: dict[str, Name] = Field(
        default={}, description="The client's name of an output: the backend's name of it."
    )


class TargetConfig(Section):
    """A backend that gets a share of a route's inferences."""

    backend: Name = Field(description="The name of a backend, which may be the route's own.")
    percent: Share = Field(description="How many percent of the inferences.")
    rewrite: RewriteConfig | None = Field(
        default=None, description="What it calls things; left out: as the route's `rewrite` says."
    )


class RouteConfig(Section):
    """Which requests go to which backend."""

    model: Pattern = Field(
        description="A model's name, a glob (`bert-*`) or `/a regular expression/` that matches "
        "the whole name."
    )
    version: Text = Field(default="", description="Only requests for this version; left out: any.")
    backend: Name = Field(description="The name of a backend.")
    rewrite: RewriteConfig = Field(
        default=RewriteConfig(), description="What the backend calls things."
    )
    timeout: PositiveDuration | None = Field(
        default=None,
        description="For one request, and each answer of a stream; left out: the backend's. A "
        "client's shorter deadline wins.",
    )
    idle_timeout: PositiveDuration | None = Field(
        default=None,
        description="Longest pause between two answers of a stream; left out: `timeout`.",
    )
    idempotent: bool = Field(
        default=False,
        description="Whether an inference may be carried out twice without harm, as those of "
        "models without state may: then one that was sent is tried again, too, if its connection "
        "broke, its try was too slow, or the server answered 502, 503 or 504 (gRPC: UNAVAILABLE). "
        "Those of sequences never are.",
    )
    retry: RetryConfig = Field(
        default=RetryConfig(), description="What becomes of a request that fails."
    )
    hedge: HedgeConfig | None = Field(
        default=None,
        description="When an inference that is slow is sent a second time, on an `idempotent` "
        "route; left out: never. Streams never are.",
    )
    headers: dict[HeaderName, Text] = Field(
        default={},
        description="Only requests with these headers (gRPC: metadata): their names, and values or "
        "globs of values. The index of models tells only of routes without.",
    )
    split: tuple[TargetConfig, ...] = Field(
        default=(),
        description="Other backends that get a share of the inferences, as a canary does; the rest "
        "goes to `backend`, which also answers all questions about the model.",
    )
    split_by: HeaderName | None = Field(
        default=None,
        description="The header (gRPC: metadata) whose value decides which share a request is in, "
        "always the same, in every gateway; left out, or where a request has none: its id. "
        "Sequences are never torn apart.",
    )
    fallback: Text = Field(
        default="",
        description="The name of a backend that gets inferences which could not be sent to "
        "`backend`, for none of the endpoints that were tried could be reached. Those of sequences "
        "never go there.",
    )
    mirror: MirrorConfig | None = Field(
        default=None, description="A backend that gets copies of inferences."
    )
    validate_: bool = Field(
        default=True,
        alias="validate",
        description="Whether a message that goes on as it came is checked first. `false` spares "
        "reading JSON of clients that are trusted.",
    )
    cast: dict[str, TensorType] = Field(
        default={},
        description="What stands for a datatype where a protocol cannot carry it, like `{BF16: "
        "FP32, BOOL: UINT8}`: only BOOL (GraphPipe lacks it) and BF16 (GraphPipe and the legacy "
        "API do), to a datatype that holds all their values. Clients of such a protocol are told, "
        "given and send that instead; what they send is cast back: a number other than 0 is true, "
        "a float is rounded. Without it such a tensor is an error.",
    )
    labels: dict[str, Labels] = Field(
        default={},
        description="The client's name of an output: the names of its classes, first to last, as a "
        "list or as the path (from this file) of a text file with one a line. They are told where "
        "a client asks for classes and the backend has none to give, so that infergate picks them "
        "from its values.",
    )


def named_backends(route: RouteConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path below ``route`` and the name of every backend that it refers to."""
    yield ("backend",), route.backend
    for index, target in enumerate(route.split):
        yield ("split", index, "backend"), target.backend
    if route.fallback:
        yield ("fallback",), route.fallback
    if route.mirror is not None:
        yield ("mirror", "backend"), route.mirror.backend

"""The one typed schema of routes.yaml.

Every key is a field here with its description and default: the reference page and the JSON schema
are made from them. What concerns more than one entry (a route's backend, two listeners on one
address) is ``check``'s matter.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from infergate.config import protocols
from infergate.config.access import AccessConfig
from infergate.config.endpoints import BalanceConfig, EndpointUrl, HealthConfig, OutlierConfig
from infergate.config.fields import (
    Dimension,
    Duration,
    HeaderGlob,
    Name,
    Positive,
    PositiveDuration,
    PositiveSize,
    ProfileName,
    Protocol,
    TensorType,
    Text,
    Workers,
)
from infergate.config.listeners import Listeners
from infergate.config.log import LogConfig
from infergate.config.reload import DrainConfig, ReloadConfig
from infergate.config.routes import RouteConfig
from infergate.config.section import Section
from infergate.config.tls import BackendTls
from infergate.config.tracing import TracingConfig
from infergate.config.traffic import BackendLimits
from infergate.core.limits import DEFAULT_LIMITS

# ---- backends -----------------------------------------------------------------------------------


class BackendConfig(Section):
    """A server, or several alike, that models are served from."""

    protocol: Protocol = Field(
        description="What it speaks: `v2-rest`, `v2-grpc`, `trtis-http` or `trtis-grpc` for the "
        "legacy TensorRT Inference Server, `graphpipe`, or `builtin` for the models inside "
        "infergate itself."
    )
    endpoints: tuple[EndpointUrl, ...] = Field(
        default=(),
        description="Where it is, at least one URL: http:// or https:// (with a path before /v2 if "
        "need be; the port defaults to 80 or 443) or http+unix:/path, for v2-rest and others "
        "over HTTP; grpc:// or grpcs:// with a port for v2-grpc and trtis-grpc; for graphpipe also "
        "size-prefixed messages over tcp://host:port or unix:/path; none for builtin. https and "
        "grpcs trust the system's certificates, or those that "
        "SSL_CERT_FILE and SSL_CERT_DIR name. One of several may have a weight, and each a name: "
        "`{url: http://a:8000/t0ken, weight: 3, name: large}`. Logs, metrics and the console show "
        "the name, else the URL, whose path is hidden. A host name stands for all its addresses, "
        "each of which is an endpoint with the name's weight (`dns_refresh`). `balance` says which "
        "is asked; those of a sequence go to one, always the same (docs/decisions/0013).",
    )
    balance: BalanceConfig = Field(
        default=BalanceConfig(), description="How it is chosen which of several endpoints is asked."
    )
    health: HealthConfig = Field(
        default=HealthConfig(), description="How servers are asked whether they are ready."
    )
    outliers: OutlierConfig = Field(
        default=OutlierConfig(), description="When an endpoint that fails is let alone."
    )
    dns_refresh: Duration = Field(
        default=5.0,
        description="How often the names of endpoints are looked up: addresses that are new get "
        "requests, those that are gone finish what they have. IPv4 addresses where there are any, "
        "else IPv6. A name that has none any more keeps those it had. 0: whenever a connection is "
        "made, and a name is one endpoint; so is `localhost` always.",
    )
    timeout: PositiveDuration = Field(
        default=30.0,
        description="For one request, and each answer of a stream, where its route says nothing "
        "else.",
    )
    connect_time: PositiveDuration | None = Field(
        None,
        description="Connecting to an endpoint of it; left out: `limits.connect_time`.",
    )
    tls: BackendTls | None = Field(
        default=None, description="Whom https:// and grpcs:// endpoints trust, and what they show."
    )
    connections: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Requests at a time to each endpoint; the others wait for their turn. 1 for "
        "servers that serve one connection at a time, as graphpipe-py's. 0: as many as come. Not "
        "over gRPC.",
    )
    profile: ProfileName = Field(
        default="auto",
        description="Which server's habits to expect; `auto` asks the server who it is.",
    )
    forward_headers: tuple[HeaderGlob, ...] = Field(
        default=("traceparent", "tracestate", "baggage", "x-request-id"),
        description="Names or globs of client headers (gRPC: metadata) passed on to the backend.",
    )
    return_headers: tuple[HeaderGlob, ...] = Field(
        default=("endpoint-load-metrics",),
        description="Names or globs of the backend's headers passed back to the client.",
    )
    limits: BackendLimits = Field(
        default=BackendLimits(), description="How much of it is asked at once."
    )
    shared_memory: Literal["copy", "forward"] = Field(
        default="copy",
        description="Where `control.shared_memory` is on: `copy` reads and writes clients' regions "
        "here, whatever the backend; `forward` registers them with the backend as well, and asks "
        "it by their names: for one endpoint, on the same host, that has the extension (Triton, "
        "the legacy server). Only so can regions on GPUs be used.",
    )

    @model_validator(mode="after")
    def _endpoints_fit(self) -> Self:
        if self.protocol == protocols.BUILTIN and self.endpoints:
            raise PydanticCustomError(
                "mistake", "protocol 'builtin' runs inside infergate and takes no endpoints"
            )
        if self.protocol != protocols.BUILTIN and not self.endpoints:
            raise PydanticCustomError(
                "mistake",
                "protocol '{protocol}' needs endpoints: a list of at least one URL",
                {"protocol": self.protocol},
            )
        if self.connections and "http" not in protocols.schemes(self.protocol):
            raise PydanticCustomError(
                "mistake",
                "connections is for protocols over HTTP, which '{protocol}' is not",
                {"protocol": self.protocol},
            )
        if self.protocol == protocols.BUILTIN and self.limits.max_requests:
            raise PydanticCustomError(
                "mistake", "limits.max_requests is for servers; 'builtin' runs inside infergate"
            )
        return self

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        if self.tls is not None:
            plain = [u for u in self.endpoints if u.scheme not in protocols.TLS_SCHEMES]
            if plain or not self.endpoints:
                raise PydanticCustomError(
                    "mistake",
                    "tls is for endpoints over https:// or grpcs://{other}",
                    {"other": f", which '{plain[0]}' is not" if plain else ""},
                )
        return self

    @model_validator(mode="after")
    def _memory_fits(self) -> Self:
        if self.shared_memory == "forward":
            if self.protocol not in protocols.sharing():
                raise PydanticCustomError(
                    "mistake",
                    "shared_memory 'forward' is for {known}, which '{protocol}' is none of",
                    {"known": ", ".join(protocols.sharing()), "protocol": self.protocol},
                )
            if len(self.endpoints) > 1:
                raise PydanticCustomError(
                    "mistake", "shared_memory 'forward' is for one endpoint, on this host"
                )
        return self


# ---- models -----------------------------------------------------------------------------------


class TensorConfig(Section):
    """An input or output of a model."""

    name: Name = Field(description="As clients call it.")
    datatype: TensorType = Field(description="As the Open Inference Protocol spells it.")
    shape: tuple[Dimension, ...] = Field(
        description="Its dimensions, with the batch dimension; -1 is any size."
    )


class ModelConfig(Section):
    """What a model needs that its backend cannot tell."""

    max_batch_size: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="The largest batch, told in its metadata; 0: shapes have no batch dimension.",
    )
    inputs: tuple[TensorConfig, ...] = Field(default=(), description="Its inputs.")
    outputs: tuple[TensorConfig, ...] = Field(default=(), description="Its outputs.")
    platform: Text = Field(
        default="", description="The framework it runs in, told in its metadata."
    )
    versions: tuple[Text, ...] = Field(default=(), description="The versions told in its metadata.")


# ---- what may be changed ----------------------------------------------------------------------


class ControlConfig(Section):
    """Operations that change servers' state. All are off unless switched on."""

    repository: bool = Field(
        default=False,
        description="Whether clients may load and unload models: on every endpoint of the model's "
        "backend. The index of models is always served.",
    )
    shared_memory: bool = Field(
        default=False,
        description="Whether clients of the same host may register regions of shared memory and "
        "keep inputs and outputs there. Whoever reaches a listener can then have any object of "
        "/dev/shm read and written that infergate's user may.",
    )
    settings: bool = Field(
        default=False,
        description="Whether clients may see and change trace and log settings: those of a model "
        "go to its backend, those of the server to every backend that has them.",
    )


# ---- bounds and habits ------------------------------------------------------------------------


class LimitsConfig(Section):
    """What one request, one connection and all of them together may ask."""

    body: PositiveSize = Field(
        default=DEFAULT_LIMITS.body,
        description="A request or answer, and what a compressed one may inflate to.",
    )
    json_: PositiveSize = Field(
        default=DEFAULT_LIMITS.json,
        alias="json",
        description="The JSON part of a body, and each event of a server's stream.",
    )
    json_inline: PositiveSize = Field(
        default=DEFAULT_LIMITS.json_inline,
        description="JSON up to this is read and written by the process that serves, longer by one "
        "of its `helpers`.",
    )
    headers: PositiveSize | None = Field(
        default=None,
        description="All header lines or metadata of one request. Left out: 16KiB, and 64KiB on "
        "`listeners.http`, where NV-InferRequest of the legacy API is one of them.",
    )
    response_header: PositiveSize | None = Field(
        default=None,
        description="The longest header line of a backend's response. Left out: 64KiB, and 100KiB "
        "of `trtis-http`, whose NV-InferResponse holds all classes.",
    )
    header_count: Positive = Field(
        default=DEFAULT_LIMITS.header_count, description="Header lines of one request."
    )
    tensors: Positive = Field(
        default=DEFAULT_LIMITS.tensors, description="Inputs, or requested outputs, of one request."
    )
    rank: Positive = Field(default=DEFAULT_LIMITS.rank, description="Dimensions of one tensor.")
    header_time: PositiveDuration = Field(
        default=DEFAULT_LIMITS.header_time,
        description="From the first byte of a request to the end of its headers.",
    )
    idle_body_time: PositiveDuration = Field(
        default=DEFAULT_LIMITS.idle_body_time, description="Longest pause inside a request body."
    )
    keepalive_time: PositiveDuration = Field(
        default=DEFAULT_LIMITS.keepalive_time,
        description="How long an idle client connection stays open.",
    )
    connect_time: PositiveDuration = Field(
        default=DEFAULT_LIMITS.connect_time, description="Connecting to an endpoint."
    )
    streams: Positive = Field(
        default=DEFAULT_LIMITS.streams, description="Concurrent HTTP/2 streams of one connection."
    )
    regions: Positive = Field(
        default=DEFAULT_LIMITS.regions,
        description="Regions of shared memory that are registered at once; each holds a file open.",
    )
    connections: Positive = Field(
        default=DEFAULT_LIMITS.connections,
        description="Connections of clients to all listeners of a process, but for the admin's. "
        "Three quarters of the files that the system lets the process open are the most.",
    )
    in_flight: Positive = Field(
        default=DEFAULT_LIMITS.in_flight, description="Requests being served at once."
    )
    in_flight_bytes: PositiveSize = Field(
        default=DEFAULT_LIMITS.in_flight_bytes,
        description="Bytes of memory that requests hold at once: bodies, what is made of them, "
        "and answers that wait for slow readers, who are disconnected beyond it (docs/limits.md).",
    )


class Config(Section):
    """A whole routes.yaml."""

    listeners: Listeners = Field(default=Listeners(), description="The ports clients come to.")
    backends: dict[str, BackendConfig] = Field(
        min_length=1, description="The servers behind, each under a name of your choice."
    )
    routes: tuple[RouteConfig, ...] = Field(
        min_length=1, description="Which model goes where; the first that matches is taken."
    )
    models: dict[str, ModelConfig] = Field(
        default={}, description="Declared models, each under the name that clients use."
    )
    allow_slash_in_model_names: bool = Field(
        default=False,
        description="Whether a model's name may consist of several segments, like `team-a/bert`. "
        "Towards REST backends the name stays one segment of the path (`team-a%2Fbert`), and "
        "clients spell it so; legacy HTTP has no form for it. In globs, also those of access "
        "rules, no wildcard matches `/`: `team-a/*` matches `team-a/bert`, and `team-*` does not.",
    )
    control: ControlConfig = Field(
        default=ControlConfig(), description="Which operations that change state are switched on."
    )
    access: AccessConfig | None = Field(
        default=None,
        description="Who may ask what, and how often; left out: everybody everything.",
    )
    limits: LimitsConfig = Field(
        default=LimitsConfig(), description="What requests and connections may ask."
    )
    readiness: Literal["strict", "lenient"] = Field(
        default="strict",
        description="/readyz and V2 ready say yes: `strict` when every backend is ready, "
        "`lenient` when any is.",
    )
    workers: Workers = Field(
        default=1,
        description="Processes that serve, on the same ports; another one is started where one "
        "ends. Limits of what is under way at once are each one's own, and so are `helpers`. Not "
        "with `control.shared_memory`. `--workers` goes before it.",
    )
    helpers: Annotated[int, Field(ge=0, le=64)] = Field(
        default=3,
        description="Processes that read and write long JSON and inflate long HTTP bodies, so that "
        "these keep no other request waiting; clients share them fairly. Each starts when first "
        "needed. 0: the serving process does it.",
    )
    engine: Literal["own", "compat"] = Field(
        default="own",
        description="What speaks gRPC and HTTP to clients and backends: `own` is "
        "infergate's HTTP/2 and HTTP/1.1, for a fraction of the CPU, on uvloop where that is "
        "installed; `compat` the gRPC library and aiohttp's parser, should a client or a server "
        "want them.",
    )
    drain: DrainConfig = Field(default=DrainConfig(), description="How the process ends.")
    reload: ReloadConfig = Field(
        default=ReloadConfig(),
        description="When another configuration is taken while infergate runs.",
    )
    log: LogConfig = Field(default=LogConfig(), description="How the log is written.")
    tracing: TracingConfig = Field(
        default=TracingConfig(), description="Whether requests are traced."
    )

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        grpc = self.listeners.grpc
        if self.engine == "compat" and grpc is not None and grpc.tls is not None:
            for key, value in (("client_certificates", "optional"), ("min_version", "1.3")):
                if getattr(grpc.tls, key) == value:
                    raise PydanticCustomError(
                        "mistake",
                        "listeners.grpc.tls.{key}: '{value}' is for engine 'own': the library of "
                        "gRPC cannot do it",
                        {"key": key, "value": value},
                    )
        return self

    @classmethod
    def default(cls) -> Self:
        """The embedded demo: every model of the builtin backend, on the default ports."""
        return cls.model_validate(
            {
                "backends": {"demo": {"protocol": protocols.BUILTIN}},
                "routes": ({"model": "*", "backend": "demo"},),
                "drain": {"delay": 0},
            }
        )

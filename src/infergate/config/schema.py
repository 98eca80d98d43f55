"""The one typed schema of routes.yaml.

Every key is a field here with its description and default: the reference page and the JSON schema
are made from them. What concerns more than one entry (a route's backend, two listeners on one
address) is ``check``'s matter.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from infergate.config import protocols
from infergate.config.fields import (
    Dimension,
    Duration,
    EndpointUrl,
    FileMode,
    HeaderGlob,
    Labels,
    ListenAddress,
    Name,
    NonFinite,
    Pattern,
    Positive,
    PositiveDuration,
    PositiveSize,
    ProfileName,
    Protocol,
    Size,
    SocketAddress,
    TensorType,
    Text,
)
from infergate.core.limits import DEFAULT_LIMITS
from infergate.transport.base import Address


class Section(BaseModel):
    """A mapping of the file: strict, no unknown key, not to be changed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# ---- listeners --------------------------------------------------------------------------------


class V2Rest(Section):
    """How the V2 REST frontend writes."""

    non_finite: NonFinite = Field(
        default="literal",
        description="How NaN and infinities are written in JSON: `literal` as the bare words "
        'NaN, Infinity, -Infinity (Triton, Python); `string` as "NaN"; `null` as null.',
    )
    compress_min: Size = Field(
        default=256,
        description="The smallest answer that is compressed for a client that accepts it.",
    )


class V2Grpc(Section):
    """How the V2 gRPC frontend writes."""

    contents: Literal["raw", "typed"] = Field(
        default="raw",
        description="How output tensors are written: `raw` in raw_output_contents (Triton), "
        "`typed` in each tensor's contents.",
    )
    stream: Literal["triton", "plain"] = Field(
        default="triton",
        description="What ModelStreamInfer answers with: `triton`, a ModelStreamInferResponse "
        "which holds the answer or an error; `plain`, as MLServer, the answer itself, and an error "
        "ends the stream.",
    )


class Trtis(Section):
    """How clients of the legacy TensorRT Inference Server API are answered."""

    level: Literal["1.9", "1.15"] = Field(
        default="1.9",
        description="The server's release whose words are used where releases differ; status as "
        "JSON comes with 1.15.",
    )
    server_id: Text = Field(
        default="inference:0", description="What the server calls itself in every status."
    )
    data_type: bool = Field(
        default=False,
        description="Tell outputs' datatypes. Clients before release 1.12 cannot read answers that "
        "do.",
    )


class GraphPipeErrors(Section):
    """How clients of GraphPipe are refused."""

    errors: Literal["status", "response"] = Field(
        default="status",
        description="`status`: by an HTTP status and the message as text, which every client but "
        "Java's notices; `response`: by the errors of an InferResponse under status 200, which "
        "only Python's does.",
    )


class HttpListener(Section):
    """The HTTP port."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8000),
        description="host:port to listen on. 0.0.0.0 is every interface, port 0 a free port.",
    )
    v2: V2Rest = Field(default=V2Rest(), description="How V2 REST is written.")
    trtis: Trtis = Field(default=Trtis(), description="How the legacy HTTP API is written.")
    graphpipe: GraphPipeErrors = Field(
        default=GraphPipeErrors(), description="How GraphPipe is written."
    )


class GrpcListener(Section):
    """The gRPC port."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8001), description="host:port to listen on."
    )
    v2: V2Grpc = Field(default=V2Grpc(), description="How V2 gRPC is written.")
    trtis: Trtis = Field(default=Trtis(), description="How the legacy gRPC service is written.")


class AdminListener(Section):
    """The admin port."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8002), description="host:port to listen on."
    )


class GraphPipeListener(Section):
    """A port or socket for unmodified GraphPipe clients: any path means one model."""

    address: SocketAddress = Field(
        description="host:port, tcp://host:port or unix:/path to listen on."
    )
    model: Name = Field(description="The model, as routes call it.")
    framing: Literal["http", "size-prefixed"] = Field(
        default="http",
        description="`http`, what every released client speaks; or `size-prefixed`: a raw socket "
        "where each message follows its length, a uint32 in little-endian.",
    )
    errors: Literal["status", "response"] = Field(
        default="status",
        description="As on the HTTP port. On a raw socket, which has no status, every error is a "
        "response.",
    )
    accept_both_lengths: bool = Field(
        default=False,
        description="Take HTTP requests that have Content-Length beside `Transfer-Encoding: "
        "chunked`, as the client operation of TensorFlow sends them: the first of a connection, "
        "which ends with it. Not behind a proxy that shares connections.",
    )
    mode: FileMode = Field(
        default=0o660, description="Who may connect to a unix socket: its file's permissions."
    )

    @model_validator(mode="after")
    def _framing_fits(self) -> Self:
        if self.framing == "size-prefixed":
            for key in ("errors", "accept_both_lengths"):
                if key in self.model_fields_set and getattr(self, key) in ("status", True):
                    raise PydanticCustomError(
                        "mistake",
                        "a size-prefixed listener has no HTTP: leave out '{key}'",
                        {"key": key},
                    )
        return self


class Listeners(Section):
    """The ports clients come to. One that is left out has its defaults, `null` switches it off."""

    http: HttpListener | None = Field(
        default=HttpListener(),
        description="HTTP: V2 REST at /v2, the legacy API at /api, GraphPipe at "
        "/graphpipe/<model>.",
    )
    grpc: GrpcListener | None = Field(
        default=GrpcListener(), description="gRPC: the V2 and the legacy service."
    )
    admin: AdminListener | None = Field(
        default=AdminListener(), description="/metrics, /healthz and /readyz."
    )
    graphpipe: tuple[GraphPipeListener, ...] = Field(
        default=(),
        description="Ports and sockets for unmodified GraphPipe clients, a model each.",
    )


FRONTENDS: Final = ("http", "grpc")
"""The listeners that take clients' requests, besides those of one model."""


# ---- backends and routes ----------------------------------------------------------------------


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
        "SSL_CERT_FILE and SSL_CERT_DIR name.",
    )
    timeout: PositiveDuration = Field(
        default=30.0, description="For one request, where its route says nothing else."
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
        return self


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
        description="For one request; left out: the backend's. A client's shorter deadline wins.",
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
        default=DEFAULT_LIMITS.json, alias="json", description="The JSON part of a body."
    )
    json_inline: PositiveSize = Field(
        default=DEFAULT_LIMITS.json_inline,
        description="JSON up to this is read and written by the process that serves, longer by one "
        "of its `helpers`.",
    )
    headers: PositiveSize = Field(
        default=DEFAULT_LIMITS.headers, description="All header lines or metadata of one request."
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
    in_flight: Positive = Field(
        default=DEFAULT_LIMITS.in_flight, description="Requests being served at once."
    )
    in_flight_bytes: PositiveSize = Field(
        default=DEFAULT_LIMITS.in_flight_bytes,
        description="Bytes of request bodies being served at once.",
    )


class DrainConfig(Section):
    """How SIGTERM and SIGINT end the process."""

    delay: Duration = Field(
        default=5.0,
        description="How long /readyz already fails while requests are still accepted, so that "
        "load balancers look elsewhere first.",
    )
    timeout: Duration = Field(
        default=30.0,
        description="How long requests may then take to finish before they are cancelled.",
    )


class LogConfig(Section):
    """What is written to the terminal."""

    format: Literal["text", "json"] = Field(
        default="text", description="For a person or for a machine. `--log-format` goes before it."
    )
    access: bool = Field(default=True, description="Whether each request is a line.")


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
    control: ControlConfig = Field(
        default=ControlConfig(), description="Which operations that change state are switched on."
    )
    limits: LimitsConfig = Field(
        default=LimitsConfig(), description="What requests and connections may ask."
    )
    readiness: Literal["strict", "lenient"] = Field(
        default="strict",
        description="/readyz and V2 ready say yes: `strict` when every backend is ready, "
        "`lenient` when any is.",
    )
    helpers: Annotated[int, Field(ge=0, le=64)] = Field(
        default=2,
        description="Processes that read and write long JSON, so that it keeps no other request "
        "waiting; each starts when it is first needed. 0: the serving process does it.",
    )
    drain: DrainConfig = Field(default=DrainConfig(), description="How the process ends.")
    log: LogConfig = Field(default=LogConfig(), description="How the log is written.")

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


COMING: Final = frozenset({("control", "shared_memory")})
"""Agreed keys that come with a later version."""

"""The ports clients come to, and how clients are answered there: a part of the schema."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from infergate.config.access import KeyConfig
from infergate.config.fields import (
    FileMode,
    HostName,
    ListenAddress,
    Name,
    NonFinite,
    Size,
    SocketAddress,
    Text,
)
from infergate.config.section import Section
from infergate.config.tls import ListenerTls
from infergate.transport.base import Address


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
    tls: ListenerTls | None = Field(default=None, description="TLS; left out: plain text.")
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
    tls: ListenerTls | None = Field(default=None, description="TLS; left out: plain text.")
    v2: V2Grpc = Field(default=V2Grpc(), description="How V2 gRPC is written.")
    trtis: Trtis = Field(default=Trtis(), description="How the legacy gRPC service is written.")


class AdminListener(Section):
    """The admin port."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8002), description="host:port to listen on."
    )
    tls: ListenerTls | None = Field(default=None, description="TLS; left out: plain text.")
    keys: tuple[KeyConfig, ...] = Field(
        default=(),
        description="If there are any, one of these keys is needed for what changes anything "
        "(whatever is not GET or HEAD), as `Authorization: Bearer` or `x-api-key`. What is read "
        "here stays everybody's who reaches the port.",
    )
    console: bool = Field(
        default=True,
        description="Whether /console is there: a page that shows what goes on, and the JSON that "
        "it and `infergate routes`, `backends` and `health` read (docs/console.md).",
    )
    actions: bool = Field(
        default=False,
        description="Whether the console may do something: send requests to models (*try it*), "
        "past `access`, and reload the configuration (as `reload.post`). With `access` it needs "
        "`keys` here. Each is told to the audit log.",
    )
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names by which the console and /config are shown, besides IP addresses, "
        "localhost and names that are no public domain's: any other may be an attacker's, who has "
        "it point here (DNS rebinding). /metrics and probes are answered by any name.",
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
    tls: ListenerTls | None = Field(
        default=None, description="TLS; left out: plain text. Not on unix sockets."
    )

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        if self.tls is not None and self.address.unix:
            raise PydanticCustomError("mistake", "tls is for TCP: a unix socket stays on this host")
        return self

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
        default=AdminListener(),
        description="/metrics, /healthz, /readyz, /config and /console.",
    )
    graphpipe: tuple[GraphPipeListener, ...] = Field(
        default=(),
        description="Ports and sockets for unmodified GraphPipe clients, a model each.",
    )


FRONTENDS: Final = ("http", "grpc")
"""The listeners that take clients' requests, besides those of one model."""

"""The sections of routes.yaml on listeners and their response formats."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from infergate.codecs.base import TransportKind
from infergate.config import protocols
from infergate.config.access import KeyConfig
from infergate.config.envelopes import EnvelopesConfig
from infergate.config.fields import (
    FileMode,
    HostName,
    ListenAddress,
    Name,
    NonFinite,
    Protocol,
    Size,
    SocketAddress,
    Text,
)
from infergate.config.plugins import PluginOptions
from infergate.config.section import Section
from infergate.config.tls import ListenerTls
from infergate.transport.base import Address

_LISTENER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


class V2RestConfig(Section):
    """The response format of the V2 REST protocol."""

    non_finite: NonFinite = Field(
        default="literal",
        description="How NaN and infinities are written in JSON. `literal` writes NaN, Infinity "
        'and -Infinity without quotes (like Triton and Python), `string` writes "NaN", and `null` '
        "writes null.",
    )
    compress_min: Size = Field(
        default=256,
        description="Minimum size of a response that is compressed, for clients that accept "
        "compression. Example: `4KiB`.",
    )


class V2GrpcConfig(Section):
    """The response format of the V2 gRPC protocol."""

    contents: Literal["raw", "typed"] = Field(
        default="raw",
        description="Where output tensors are written. `raw` writes them to raw_output_contents, "
        "like Triton. `typed` writes them to the contents field of each tensor.",
    )
    stream: Literal["triton", "plain"] = Field(
        default="triton",
        description="The response message of ModelStreamInfer. With `triton`, it is a "
        "ModelStreamInferResponse that holds a response or an error. With `plain`, as in MLServer, "
        "it is a ModelInferResponse, and an error ends the stream.",
    )


class TrtisConfig(Section):
    """The response format of the legacy TensorRT Inference Server API."""

    level: Literal["1.9", "1.15"] = Field(
        default="1.9",
        description="The server release to imitate where releases differ. Status as JSON requires "
        "`1.15`.",
    )
    server_id: Text = Field(
        default="inference:0",
        description="The server's id in status responses. Example: `inference:1`.",
    )
    data_type: bool = Field(
        default=False,
        description="Include the datatypes of outputs in responses. Clients older than release "
        "1.12 cannot parse such responses.",
    )


class TfsGrpcConfig(Section):
    """The response format of TensorFlow Serving's gRPC API."""

    contents: Literal["auto", "raw", "typed"] = Field(
        default="auto",
        description="Where output tensors are written. `raw` writes them to tensor_content, and "
        "`typed` to the field of their type, such as float_val, as TensorFlow Serving does by "
        "default. `auto` is like `raw` for tensors of more than 65536 integers or 16-bit floats, "
        "and like `typed` for all other tensors. Strings are always in string_val.",
    )


class GraphPipeConfig(Section):
    """The error format of responses to GraphPipe clients."""

    errors: Literal["status", "response"] = Field(
        default="status",
        description="`status` sends an HTTP error status with the message as text. All clients "
        "except the Java client detect this status. `response` sends status 200 and an "
        "InferResponse with errors, which only the Python client detects.",
    )


class HttpListener(Section):
    """The listener for all protocols over HTTP."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8000),
        description="Address to listen on, `host:port`. `0.0.0.0` listens on all interfaces, and "
        "port `0` selects a free port. Example: `0.0.0.0:8000`.",
    )
    tls: ListenerTls | None = Field(
        default=None, description="TLS settings. Without them, the listener uses plain text."
    )
    v1: Literal["tfs-rest", "kserve-v1"] = Field(
        default="tfs-rest",
        description="The protocol under /v1, which TensorFlow Serving and KServe's V1 protocol "
        "share. An additional listener can serve the other protocol.",
    )
    v2: V2RestConfig = Field(default=V2RestConfig(), description="Response format of V2 REST.")
    trtis: TrtisConfig = Field(
        default=TrtisConfig(), description="Response format of the legacy HTTP API."
    )
    graphpipe: GraphPipeConfig = Field(
        default=GraphPipeConfig(), description="Response format of GraphPipe."
    )
    envelopes: EnvelopesConfig = Field(
        default=EnvelopesConfig(),
        description="The APIs of cloud platforms and of OpenAI that this listener also serves "
        "(docs/envelopes.md). All are off by default.",
    )


class GrpcListener(Section):
    """The listener for all gRPC services."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8001),
        description="Address to listen on, `host:port`. Example: `0.0.0.0:8001`.",
    )
    tls: ListenerTls | None = Field(
        default=None, description="TLS settings. Without them, the listener uses plain text."
    )
    v2: V2GrpcConfig = Field(default=V2GrpcConfig(), description="Response format of V2 gRPC.")
    trtis: TrtisConfig = Field(
        default=TrtisConfig(), description="Response format of the legacy gRPC service."
    )
    tfs: TfsGrpcConfig = Field(
        default=TfsGrpcConfig(), description="Response format of TensorFlow Serving's gRPC API."
    )


class AdminListener(Section):
    """The admin listener: metrics, probes, the configuration, comparisons and the console."""

    address: ListenAddress = Field(
        default=Address("127.0.0.1", 8002),
        description="Address to listen on, `host:port`. Example: `0.0.0.0:8002`.",
    )
    tls: ListenerTls | None = Field(
        default=None, description="TLS settings. Without them, the listener uses plain text."
    )
    keys: tuple[KeyConfig, ...] = Field(
        default=(),
        description="API keys for operations that change something (all methods except GET and "
        "HEAD), sent as `Authorization: Bearer` or `x-api-key`. Reading needs no key. Without "
        "keys in this list, no operation needs a key. `infergate key` generates a key.",
    )
    console: bool = Field(
        default=True,
        description="Serve the web console at /console, and the JSON that the console and the "
        "commands `infergate top`, `routes`, `backends`, `health` and `trace` read "
        "(docs/console.md).",
    )
    actions: bool = Field(
        default=False,
        description="Allow actions in the console: sending requests to models (*try it*), which "
        "bypasses `access`, and reloading the configuration, like `reload.post`. Also allow DELETE "
        "/comparisons. If `access` is configured, `actions: true` requires `keys`. Each action is "
        "written to the audit log.",
    )
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Additional host names by which browsers may open the console and /config. IP "
        "addresses, localhost and names outside public domains are always accepted. Other names "
        "are rejected to protect against DNS rebinding. /metrics and the probes accept any host. "
        "Example: `[infergate.example.com]`.",
    )


class SocketListenerConfig(Section):
    """A listener on a port or a unix socket."""

    address: SocketAddress = Field(
        description="Address to listen on: `host:port`, `tcp://host:port` or `unix:/path`. "
        "Example: `unix:/run/infergate/models.sock`."
    )
    mode: FileMode = Field(
        default=0o660,
        description="File permissions of a unix socket, in octal and in quotes. They decide who "
        'can connect. Example: `"600"`.',
    )
    tls: ListenerTls | None = Field(
        default=None,
        description="TLS settings. Without them, the listener uses plain text. Unix "
        "sockets do not support TLS.",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls is not None and self.address.unix:
            raise ValueError("tls is for TCP listeners, not for unix sockets")
        return self


class GraphPipeListener(SocketListenerConfig):
    """A port or unix socket that serves one model to unmodified GraphPipe clients, on any URL path.

    Example: `{address: 0.0.0.0:9000, model: squeezenet}`."""

    model: Name = Field(description="The model's name, which is matched against `routes`.")
    framing: Literal["http", "size-prefixed"] = Field(
        default="http",
        description="`http` is the framing of all released clients. `size-prefixed` is a raw "
        "socket on which the length of each message, a little-endian uint32, precedes the message.",
    )
    errors: Literal["status", "response"] = Field(
        default="status",
        description="How errors are returned, as in `listeners.http.graphpipe`. A raw socket has "
        "no status and always uses `response`.",
    )
    accept_both_lengths: bool = Field(
        default=False,
        description="Accept HTTP requests with both Content-Length and `Transfer-Encoding: "
        "chunked`, as sent by GraphPipe's TensorFlow operation. Only the first request of a "
        "connection may have both, and the connection is closed after it. Do not use this option "
        "behind a proxy that shares connections between clients, because it allows request "
        "smuggling.",
    )

    @model_validator(mode="after")
    def _check_framing(self) -> Self:
        if self.framing == "size-prefixed":
            for key in ("errors", "accept_both_lengths"):
                if key in self.model_fields_set and getattr(self, key) in ("status", True):
                    raise ValueError(
                        f"a size-prefixed listener does not use HTTP: leave out '{key}'"
                    )
        return self


class AdditionalListener(SocketListenerConfig):
    """An additional port or unix socket, which serves only the listed protocols. It uses the
    response formats of `listeners.http` and `listeners.grpc`.

    Example: `{address: 0.0.0.0:8500, protocols: [tfs-grpc]}`."""

    protocols: Annotated[tuple[Protocol, ...], Field(min_length=1)] = Field(
        description="The protocols that clients may speak, all over HTTP or all over gRPC. If "
        "several protocols have the same path, the first in the list serves it. The first protocol "
        "in the list also answers requests for unknown paths. Example: `[kserve-v1, v2-rest]`."
    )
    envelopes: EnvelopesConfig = Field(
        default=EnvelopesConfig(),
        description="The APIs of cloud platforms and of OpenAI, as in `listeners.http`, if the "
        "protocols are over HTTP.",
    )

    @model_validator(mode="after")
    def _check_envelopes(self) -> Self:
        kind = protocols.transport_kinds()[self.protocols[0]]
        if self.envelopes.model_fields_set and kind is not TransportKind.HTTP:
            raise ValueError(
                f"envelopes require a protocol over HTTP, unlike '{self.protocols[0]}'"
            )
        return self

    @model_validator(mode="after")
    def _check_protocols(self) -> Self:
        kinds = protocols.transport_kinds()
        for name in self.protocols:
            if kinds[name] is None:
                raise ValueError(f"'{name}' runs inside infergate; no listener can serve it")
            if self.protocols.count(name) > 1:
                raise ValueError(f"'{name}' is listed twice")
            if kinds[name] is not kinds[self.protocols[0]]:
                raise ValueError(
                    f"'{self.protocols[0]}' and '{name}' need separate listeners: one uses HTTP, "
                    "the other gRPC"
                )
        return self


class Listeners(Section):
    """The listeners. An omitted listener uses its defaults; `null` disables it.

    Example: `{http: {address: 0.0.0.0:8000}, grpc: null}`."""

    http: HttpListener | None = Field(
        default=HttpListener(),
        description="The HTTP listener. It serves V2 REST under /v2, TensorFlow Serving or "
        "KServe's V1 protocol under /v1, the legacy API under /api, and GraphPipe under "
        "`/graphpipe/<model>`.",
    )
    grpc: GrpcListener | None = Field(
        default=GrpcListener(),
        description="The gRPC listener. It serves the V2 service, the legacy service and "
        "TensorFlow Serving's service.",
    )
    admin: AdminListener | None = Field(
        default=AdminListener(),
        description="The admin listener. It serves /metrics, /healthz, /readyz, /config and "
        "/console.",
    )
    graphpipe: tuple[GraphPipeListener, ...] = Field(
        default=(),
        description="Ports and unix sockets for unmodified GraphPipe clients. Each serves one "
        "model.",
    )
    codecs: dict[str, PluginOptions] = Field(
        default={},
        description="Options of protocols from plug-ins, by protocol, for clients on all "
        "listeners. Each plug-in defines and validates its options. Example: `{my-protocol: "
        "{strict: true}}`.",
    )
    additional: dict[str, AdditionalListener] = Field(
        default={},
        description="Additional ports and unix sockets, each under a name of your choice, for "
        "clients that expect a protocol at its usual port. Example: `{tfs: {address: 0.0.0.0:8500, "
        "protocols: [tfs-grpc]}}`.",
    )

    @field_validator("additional")
    @classmethod
    def _check_names(cls, value: dict[str, AdditionalListener]) -> dict[str, AdditionalListener]:
        for name in value:
            if not _LISTENER_NAME.fullmatch(name):
                raise ValueError(
                    f"'{name[:64]}' is not a valid listener name; expected up to 32 lower-case "
                    "letters, digits, hyphens and underscores, beginning with a letter or digit"
                )
        return value


FRONTEND_LISTENERS: Final = ("http", "grpc")
"""The inference listeners that are enabled by default."""

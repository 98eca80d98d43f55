"""The typed schema of routes.yaml.

Each key is a field with a description and a default, from which the reference page and the JSON
schema are generated. Errors that involve several entries, such as a route to an unknown backend,
are found by ``check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from infergate.codecs.base import TransportKind
from infergate.config import protocols
from infergate.config.access import AccessConfig
from infergate.config.cache import CacheConfig
from infergate.config.endpoints import BalanceConfig, EndpointUrl, HealthConfig, OutlierConfig
from infergate.config.fields import (
    Duration,
    HeaderGlob,
    NonNegative,
    Positive,
    PositiveDuration,
    PositiveSize,
    ProfileName,
    Protocol,
    Text,
    Workers,
)
from infergate.config.kubernetes import KubernetesConfig
from infergate.config.listeners import AdditionalListener, GrpcListener, Listeners
from infergate.config.log import LogConfig
from infergate.config.mistakes import Mistake
from infergate.config.models import DeclaredModelConfig
from infergate.config.payload_log import PayloadLogConfig
from infergate.config.plugins import HookConfig, PluginOptions
from infergate.config.recording import RecordingConfig
from infergate.config.reload import DrainConfig, ReloadConfig
from infergate.config.routes import RouteConfig
from infergate.config.section import Section
from infergate.config.tensorflow_serving import TensorFlowServingConfig
from infergate.config.tls import BackendTls
from infergate.config.tracing import TracingConfig
from infergate.config.traffic import BackendLimits
from infergate.core.limits import DEFAULT_LIMITS

# ---- backends -----------------------------------------------------------------------------------


class BackendConfig(Section):
    """A backend (called upstream or, in Envoy, cluster): one or more replicas of a model server."""

    protocol: Protocol = Field(
        description="The protocol that the servers speak: `v2-rest`, `v2-grpc`, `trtis-http` or "
        "`trtis-grpc` (the legacy TensorRT Inference Server), `graphpipe`, `tfs-grpc` or "
        "`tfs-rest` (TensorFlow Serving), `kserve-v1` (KServe's `:predict`; needs `models`), "
        "`builtin` for the models embedded in infergate, `python` for a Python model (`model`), or "
        "the protocol of an installed codec."
    )
    endpoints: tuple[EndpointUrl, ...] = Field(
        default=(),
        description="URLs of the servers. At least one URL is required, except for `builtin` and "
        "`python`, which have no URL. Example: `[http://10.0.0.7:8000, http://10.0.0.8:8000]`. "
        "Protocols over HTTP use `http://`, `https://` (port 80 or 443 by default, with an "
        "optional path prefix, which precedes `/v2` or `/v1`) or `http+unix:/path`. `v2-grpc`, "
        "`trtis-grpc` and `tfs-grpc` use `grpc://` or `grpcs://` with a port. `graphpipe` may "
        "also use `tcp://host:port` or `unix:/path` for size-prefixed messages. Unless `tls.ca` "
        "is set, `https` and `grpcs` trust the system's certificates, or the certificates in "
        "SSL_CERT_FILE and SSL_CERT_DIR. An endpoint may have a load balancing weight (1 to 1000) "
        "and a name: `{url: http://a:8000/t0ken, weight: 3, name: large}`. Logs, metrics and the "
        "console show the name or, by default, the URL with its path hidden. A host name is "
        "resolved to all its addresses, and each address is a separate endpoint with the "
        "configured weight (`dns_refresh`). `balance` selects the endpoint of a request; all "
        "requests of a sequence go to the same endpoint (docs/decisions/0013).",
    )
    model: Text = Field(
        default="",
        description="For `python`: the class of the model, as `module:Class` or as the name of an "
        "entry point of the group `infergate.backends` (docs/plugins.md). Example: "
        "`my_package:MyModel`.",
    )
    options: PluginOptions = Field(
        default={},
        description="Options of the Python model or of an installed codec. The plug-in defines "
        "and validates them.",
    )
    balance: BalanceConfig = Field(
        default=BalanceConfig(),
        description="Load balancing: how the endpoint of a request is selected.",
    )
    health: HealthConfig = Field(
        default=HealthConfig(), description="Active health checks of the endpoints."
    )
    outliers: OutlierConfig = Field(
        default=OutlierConfig(),
        description="Outlier detection (passive health checking): when a failing "
        "endpoint is ejected.",
    )
    dns_refresh: Duration = Field(
        default=5.0,
        description="Interval at which host names of endpoints are resolved. New addresses "
        "receive requests, and removed addresses finish their requests in progress. IPv6 "
        "addresses are used only for a name that has no IPv4 address. A name that no longer "
        "resolves keeps its last addresses. With `0`, each name is a single endpoint, like "
        "`localhost`, and is resolved for each new connection.",
    )
    kubernetes: KubernetesConfig | None = Field(
        default=None,
        description="Watch the EndpointSlices of the Kubernetes service named by the only "
        "endpoint, so that pods are added and removed immediately. DNS is used until the API "
        "server responds. `{}` is enough if the URL has the pods' port.",
    )
    timeout: PositiveDuration = Field(
        default=30.0,
        description="Timeout of a request, and of each response of a stream. The `timeout` of a "
        "route takes precedence. Example: `2m`.",
    )
    connect_time: PositiveDuration | None = Field(
        None,
        description="Connect timeout of the endpoints. By default, `limits.connect_time` applies.",
    )
    tls: BackendTls | None = Field(
        default=None,
        description="TLS settings of `https://` and `grpcs://` endpoints: trusted authorities, "
        "and the client certificate for mTLS. By default, the system's authorities are trusted "
        "and there is no client certificate.",
    )
    connections: NonNegative = Field(
        default=0,
        description="Maximum number of requests in progress at each endpoint. Further requests "
        "wait. Set it to `1` for servers that handle one connection at a time, such as "
        "graphpipe-py. With `0`, the number is not limited. The limit is not available over gRPC.",
    )
    profile: ProfileName = Field(
        default="auto",
        description="The server implementation. infergate adapts to the known deviations of this "
        "implementation from the protocol. `auto` detects the implementation from the server's "
        "metadata. Example: `triton`.",
    )
    forward_headers: tuple[HeaderGlob, ...] = Field(
        default=("traceparent", "tracestate", "baggage", "x-request-id"),
        description="Client request headers (gRPC: metadata) to pass on to the backend, by name "
        "or glob. The configured list replaces the default list. Example: `[traceparent, "
        "x-tenant-*]`.",
    )
    return_headers: tuple[HeaderGlob, ...] = Field(
        default=("endpoint-load-metrics",),
        description="Backend response headers (gRPC: metadata) to pass back to the client, by name "
        "or glob. Example: `[endpoint-load-metrics, x-model-*]`.",
    )
    limits: BackendLimits = Field(
        default=BackendLimits(),
        description="Concurrency limit, queue, retry budget and header size of the backend.",
    )
    shared_memory: Literal["copy", "forward"] = Field(
        default="copy",
        description="How tensors in shared memory reach the backend if `control.shared_memory` is "
        "enabled. With `copy`, infergate reads and writes the client's regions; this works with "
        "every backend. With `forward`, infergate also registers the regions with the backend and "
        "refers to them by name. This requires exactly one endpoint, on the same host, whose "
        "server supports the extension (Triton or the legacy server). CUDA shared memory requires "
        "`forward`.",
    )

    @model_validator(mode="after")
    def _check_endpoints(self) -> Self:
        in_process = self.protocol in protocols.IN_PROCESS
        if in_process and self.endpoints:
            raise ValueError(
                f"protocol '{self.protocol}' runs inside infergate and takes no endpoints"
            )
        if self.protocol == protocols.PYTHON and not self.model:
            raise ValueError(
                "protocol 'python' needs model: a class such as 'package.module:Class'"
            )
        if self.protocol != protocols.PYTHON and self.model:
            raise ValueError(f"model is for protocol 'python'; '{self.protocol}' does not use it")
        if not in_process and not self.endpoints:
            raise ValueError(
                f"protocol '{self.protocol}' needs endpoints: a list of at least one URL"
            )
        if self.connections and "http" not in protocols.schemes(self.protocol):
            raise ValueError(f"connections requires a protocol over HTTP, unlike '{self.protocol}'")
        if self.kubernetes is not None:
            self.kubernetes.check_backend(self.endpoints, self.dns_refresh, self.shared_memory)
        if self.protocol == protocols.BUILTIN and self.limits.max_requests:
            raise ValueError("limits.max_requests is for servers; 'builtin' runs inside infergate")
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls is not None:
            plain = [u for u in self.endpoints if u.scheme not in protocols.TLS_SCHEMES]
            if plain or not self.endpoints:
                raise ValueError(
                    "tls is for endpoints over https:// or grpcs://"
                    + (f", not for '{plain[0]}'" if plain else "")
                )
        return self

    @model_validator(mode="after")
    def _check_shared_memory(self) -> Self:
        if self.shared_memory == "forward":
            if self.protocol not in protocols.shared_memory_protocols():
                supported = ", ".join(protocols.shared_memory_protocols())
                raise ValueError(
                    f"shared_memory 'forward' is for {supported}; "
                    f"'{self.protocol}' does not support it"
                )
            if len(self.endpoints) > 1:
                raise ValueError("shared_memory 'forward' requires one endpoint, on this host")
        return self


# ---- operations that change state -------------------------------------------------------------


class ControlConfig(Section):
    """Operations that change the state of infergate or of backends. All are disabled by default."""

    repository: bool = Field(
        default=False,
        description="Allow clients to load and unload models. The operation runs on every endpoint "
        "of the model's backend. The model index is always available.",
    )
    shared_memory: bool = Field(
        default=False,
        description="Allow clients on the same host to register system shared memory regions and "
        "to keep inputs and outputs in them. Every client of a listener can then make infergate "
        "read and write any object in /dev/shm that infergate's user can access.",
    )
    settings: bool = Field(
        default=False,
        description="Allow clients to read and change trace and log settings. Settings of a model "
        "are sent to its backend. Settings of the server are sent to every backend that supports "
        "them.",
    )


# ---- limits -----------------------------------------------------------------------------------


def _limit(name: str, description: str) -> Any:
    return Field(default=getattr(DEFAULT_LIMITS, name), description=description)


class LimitsConfig(Section):
    """Limits per request, per connection, and in total (docs/limits.md)."""

    body: PositiveSize = _limit(
        "body",
        "Maximum size of a request or response (HTTP body or gRPC message), before and after "
        "decompression. Larger requests are rejected with HTTP 413 or gRPC RESOURCE_EXHAUSTED. "
        "Example: `256MiB`.",
    )
    json_: PositiveSize = Field(
        default=DEFAULT_LIMITS.json,
        alias="json",
        description="Maximum size of the JSON part of a body, and of each server-sent event.",
    )
    json_inline: PositiveSize = _limit(
        "json_inline",
        "Maximum size of JSON that the serving process parses and writes. Helper processes handle "
        "larger JSON (`helpers`).",
    )
    headers: PositiveSize | None = Field(
        default=None,
        description="Maximum total size of the headers or metadata of a request. The default is "
        "16KiB, but 64KiB on listeners with `trtis-http`, such as `listeners.http`, because this "
        "protocol sends NV-InferRequest as a header.",
    )
    response_header: PositiveSize | None = Field(
        default=None,
        description="Maximum length of one header line in a backend's response. The default is "
        "64KiB, but 100KiB for `trtis-http`, whose NV-InferResponse header holds all classes.",
    )
    header_count: Positive = _limit("header_count", "Maximum number of header lines per request.")
    tensors: Positive = _limit(
        "tensors", "Maximum number of inputs, and of requested outputs, per request."
    )
    rank: Positive = _limit("rank", "Maximum number of dimensions per tensor.")
    header_time: PositiveDuration = _limit(
        "header_time",
        "Request header timeout: from the first byte of a request to the end of its headers.",
    )
    idle_body_time: PositiveDuration = _limit(
        "idle_body_time", "Maximum pause while a request body is being received."
    )
    keepalive_time: PositiveDuration = _limit(
        "keepalive_time", "Idle timeout (keep-alive) of client connections."
    )
    connect_time: PositiveDuration = _limit(
        "connect_time", "Connect timeout of endpoints. A backend's `connect_time` overrides it."
    )
    streams: Positive = _limit(
        "streams", "Maximum number of concurrent HTTP/2 streams per connection."
    )
    regions: Positive = _limit(
        "regions",
        "Maximum number of registered shared memory regions. Each region keeps a file open.",
    )
    connections: Positive = _limit(
        "connections",
        "Maximum number of client connections per process, over all listeners except the admin "
        "listener. The limit is capped at three quarters of the process's open file limit.",
    )
    in_flight: Positive = _limit(
        "in_flight",
        "Maximum number of concurrent requests. Further requests are rejected with HTTP 503 and "
        "Retry-After, or with gRPC UNAVAILABLE.",
    )
    in_flight_bytes: PositiveSize = _limit(
        "in_flight_bytes",
        "Memory budget of requests in progress: bodies, the data decoded from them, and responses "
        "waiting for slow readers. Beyond the budget, requests are rejected and slow readers are "
        "disconnected (docs/limits.md). Example: `4GiB`.",
    )


class Config(Section):
    """The top level of routes.yaml. Only `backends` and `routes` are required."""

    listeners: Listeners = Field(
        default=Listeners(), description="The addresses and ports that clients connect to."
    )
    backends: dict[str, BackendConfig] = Field(
        min_length=1,
        description="The model servers (upstreams), each under a name of your choice. Example: "
        "`triton: {protocol: v2-grpc, endpoints: [grpc://10.0.0.7:8001]}`.",
    )
    hooks: dict[str, HookConfig] = Field(
        default={},
        description="Request hooks, each under a name that `routes[].hooks` refers to. Example: "
        '`guard: {hook: "my_package:Guard"}`.',
    )
    routes: tuple[RouteConfig, ...] = Field(
        min_length=1,
        description="Routing of models to backends. The first matching route is used. Example: "
        '`- {model: "bert-*", backend: triton}`.',
    )
    models: dict[str, DeclaredModelConfig] = Field(
        default={},
        description="Metadata of models whose backends do not provide it, each under the name that "
        "clients use. Example: `squeezenet: {inputs: [{name: data_0, datatype: FP32, shape: [-1, "
        "3, 224, 224]}]}`.",
    )
    tensorflow_serving: TensorFlowServingConfig = Field(
        default=TensorFlowServingConfig(),
        description="Version labels and signatures, which only clients of TensorFlow Serving use.",
    )
    allow_slash_in_model_names: bool = Field(
        default=False,
        description="Allow `/` in model names, as in `team-a/bert`. In REST paths from clients "
        "and to backends, the name stays one encoded segment (`team-a%2Fbert`). The legacy HTTP "
        "API cannot express such names. Wildcards in globs, including those in access rules, do "
        "not match `/`: `team-a/*` matches `team-a/bert`, but `team-*` does not.",
    )
    control: ControlConfig = Field(
        default=ControlConfig(),
        description="State-changing operations: model loading, shared memory, trace and log "
        "settings.",
    )
    access: AccessConfig | None = Field(
        default=None,
        description="Authentication, authorization and rate limiting. Without this section, every "
        "client may use everything.",
    )
    cache: CacheConfig = Field(
        default=CacheConfig(), description="Limits and storage of the response cache of routes."
    )
    limits: LimitsConfig = Field(
        default=LimitsConfig(), description="Limits on requests and connections."
    )
    readiness: Literal["strict", "lenient"] = Field(
        default="lenient",
        description="When /readyz and the V2 server-ready operation report ready: `lenient` "
        "requires at least one ready backend, and `strict` requires every backend to be ready. "
        "With `strict`, a single dead backend takes all replicas out of their load balancer.",
    )
    workers: Workers = Field(
        default=1,
        description="Number of worker processes that serve the same ports. A worker that exits is "
        "restarted. Concurrency limits and `helpers` apply to each worker separately. Several "
        "workers cannot be combined with `control.shared_memory`. `--workers` takes precedence.",
    )
    helpers: Annotated[int, Field(ge=0, le=64)] = Field(
        default=3,
        description="Number of helper processes that parse and write long JSON and decompress "
        "large HTTP bodies, so that this work does not delay other requests. Clients share the "
        "helpers fairly. Each process is started on first use. With `0`, the serving process does "
        "this work.",
    )
    engine: Literal["own", "compat"] = Field(
        default="own",
        description="The HTTP and gRPC implementation for clients and backends. `own` is "
        "infergate's own implementation, which uses much less CPU time and runs on uvloop if "
        "uvloop is installed. `compat` uses grpcio and aiohttp's HTTP parser, for clients or "
        "servers that are incompatible with `own`.",
    )
    drain: DrainConfig = Field(default=DrainConfig(), description="Graceful shutdown.")
    reload: ReloadConfig = Field(
        default=ReloadConfig(), description="Reloading the configuration without a restart."
    )
    log: LogConfig = Field(default=LogConfig(), description="Access log and log format.")
    payload_log: PayloadLogConfig | None = Field(
        default=None,
        description="Payload log: inferences as CloudEvents for monitoring tools, in the format of "
        "KServe's inference logger (docs/payload-log.md).",
    )
    tracing: TracingConfig = Field(
        default=TracingConfig(), description="Distributed tracing with OpenTelemetry."
    )
    _warnings: list[Mistake] = PrivateAttr(default_factory=list)
    recording: RecordingConfig | None = Field(
        default=None,
        description="The files in which inferences of routes with `record` are stored.",
    )

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine == "compat":
            for path in self._grpc_options_of_own_engine():
                raise ValueError(f"{path} needs engine 'own': the gRPC library does not support it")
        return self

    def _grpc_options_of_own_engine(self) -> Iterator[str]:
        over_grpc = protocols.of_transport(TransportKind.GRPC)
        grpc: dict[str, GrpcListener | AdditionalListener] = {
            f"additional.{name}": listener
            for name, listener in self.listeners.additional.items()
            if listener.protocols[0] in over_grpc
        }
        if self.listeners.grpc is not None:
            grpc["grpc"] = self.listeners.grpc
        for name, listener in grpc.items():
            if listener.address.unix:
                yield f"listeners.{name}.address: a unix socket"
            if listener.tls is not None and listener.tls.client_certificates == "optional":
                yield f"listeners.{name}.tls.client_certificates: 'optional'"
            if listener.tls is not None and listener.tls.min_version == "1.3":
                yield f"listeners.{name}.tls.min_version: '1.3'"
        for name, backend in self.backends.items():
            if backend.protocol in over_grpc and backend.tls is not None and not backend.tls.verify:
                yield f"backends.{name}.tls.verify: 'false'"

    @property
    def warnings(self) -> tuple[Mistake, ...]:
        """The warnings about the file from which this configuration was read."""
        return tuple(self._warnings)

    def add_warnings(self, warnings: Iterable[Mistake]) -> None:
        """Add ``warnings`` about the file."""
        self._warnings.extend(warnings)

    @classmethod
    def default(cls) -> Self:
        """Return the configuration of the embedded demo: all models of the builtin backend, on the
        default ports, which only this machine can reach. Console actions are enabled, because they
        cannot reach other servers."""
        return cls.model_validate(
            {
                "backends": {"demo": {"protocol": protocols.BUILTIN}},
                "routes": ({"model": "*", "backend": "demo"},),
                "listeners": {"admin": {"actions": True}},
                "drain": {"delay": 0},
            }
        )

"""The sections of routes.yaml on the payload log."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from infergate.config.access import WebUrl
from infergate.config.fields import (
    FilePath,
    Name,
    Percent,
    Positive,
    PositiveDuration,
    PositiveSize,
    Text,
)
from infergate.config.recording import RecordedHeader, RedactConfig
from infergate.config.section import Section
from infergate.config.tls import BackendTls
from infergate.config.values import Url
from infergate.core.limits import MIB


def _check_scheme(url: Url) -> Url:
    if url.scheme not in {"http", "https"}:
        raise ValueError("the URL of a sink must begin with https:// or http://")
    return url


class HttpSinkConfig(Section):
    """A server that receives events by HTTP POST, such as a Knative broker or TrustyAI.

    Example: `http: {url: http://trustyai.models.svc}`."""

    url: Annotated[WebUrl, AfterValidator(_check_scheme)] = Field(
        description="HTTP or HTTPS URL of the server. Example: "
        "`http://broker-ingress.knative-eventing.svc/models/default`."
    )
    encoding: Literal["binary", "structured", "batch"] = Field(
        default="binary",
        description="The content mode of CloudEvents: `binary`, the mode of KServe, sends the "
        "attributes as headers; `structured` sends an event as one JSON document; `batch` sends "
        "the events of up to 100 inferences as one JSON array.",
    )
    timeout: PositiveDuration = Field(
        default=5.0, description="Timeout of each attempt, including the time to connect."
    )
    retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=2,
        description="Maximum number of retries after a failed connection, a timeout, or a status "
        "of 429 or 5xx. The delays before the first three retries are 0.1 s, 0.4 s and 1.6 s. The "
        "delay before each later retry is 2 s. An event that is retried may arrive twice. Any "
        "other status outside 2xx counts as `rejected`.",
    )
    tls: BackendTls | None = Field(
        default=None,
        description="TLS settings of an `https://` URL, as for backends. By default, the system's "
        "authorities are trusted.",
    )


class FileSinkConfig(Section):
    """A folder for files with one event per line (JSON Lines). The files have mode 0600.

    Example: `file: {path: /var/log/infergate/payloads}`."""

    path: FilePath = Field(
        description="The folder, relative to routes.yaml. It is created if it does not exist. "
        "Each worker writes its own files, `events-TIME-PID-NUMBER.jsonl`."
    )
    file_bytes: PositiveSize = Field(
        default=64 * MIB,
        description="Maximum size of a file. When a file is full, a new file is started.",
    )
    total_bytes: PositiveSize = Field(
        default=1024 * MIB,
        description="Maximum total size of the files. Beyond this size, the oldest files are "
        "deleted. With several workers, the total may exceed this size by `file_bytes` per "
        "worker.",
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.file_bytes > self.total_bytes:
            raise ValueError("file_bytes must not exceed total_bytes")
        return self


class PayloadLogConfig(Section):
    """The payload log: inferences are sent as CloudEvents in the format of KServe's inference
    logger (docs/payload-log.md). The `payload_log` of a route selects the inferences. Exactly one
    of `http` and `file` is required."""

    http: HttpSinkConfig | None = Field(
        default=None, description="A server that receives the events."
    )
    file: FileSinkConfig | None = Field(
        default=None, description="A folder for files with the events."
    )
    source: Name = Field(
        default="infergate",
        description="The CloudEvents attribute `source`, a URI reference. Example: "
        "`http://infergate.models.svc`.",
    )
    service: Text = Field(
        default="",
        description="The CloudEvents extension `inferenceservicename`. By default, it is the "
        "model name in the client's request.",
    )
    namespace: Text = Field(
        default="", description="The CloudEvents extension `namespace`, which is omitted if empty."
    )
    component: Text = Field(
        default="predictor", description="The CloudEvents extension `component`, as in KServe."
    )
    headers: tuple[RecordedHeader, ...] = Field(
        default=(),
        description="Request headers to include in the CloudEvents extension `metadata`, by name "
        "or glob. Headers that may hold credentials are never included. Example: `[x-tenant]`.",
    )
    redact: RedactConfig = Field(
        default=RedactConfig(), description="Tensors to remove or zero before events are sent."
    )
    max_queue: Positive = Field(
        default=1000,
        description="Maximum number of inferences that wait for the sink. Further inferences are "
        "dropped and counted.",
    )
    queue_bytes: PositiveSize = Field(
        default=64 * MIB,
        description="Maximum total size of the inferences that wait for the sink. These "
        "inferences also count toward `limits.in_flight_bytes`.",
    )
    inference_bytes: PositiveSize = Field(
        default=8 * MIB,
        description="Maximum total size of the inputs and outputs of an inference. Larger "
        "inferences are not logged and count as `too_large`.",
    )

    @model_validator(mode="after")
    def _check_sink(self) -> Self:
        if (self.http is None) == (self.file is None):
            raise ValueError("exactly one of http and file is required")
        return self


class RoutePayloadLogConfig(Section):
    """Selects the inferences of a route for the payload log.

    Example: `payload_log: {percent: 10}`."""

    percent: Percent = Field(
        default=100.0,
        description="Percentage of the route's inferences to log. The inferences of a sequence "
        "are either all logged or all skipped.",
    )
    mode: Literal["all", "request", "response"] = Field(
        default="all", description="Which events to send, as in KServe."
    )
    errors: bool = Field(
        default=True,
        description="Also log inferences that end with an error. The data of their response event "
        "is the V2 error object.",
    )

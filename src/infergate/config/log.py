"""The sections of routes.yaml on logging."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infergate.config.fields import NonNegative, Positive
from infergate.config.section import Section


class SamplingConfig(Section):
    """Sampling of the access log. Requests are counted per second, separately for each route and
    outcome.

    Example: `sampling: {first: 10, thereafter: 1000}`."""

    first: Positive = Field(
        default=100, description="Number of requests per second that are always logged."
    )
    thereafter: NonNegative = Field(
        default=100,
        description="Sampling rate after the `first` requests of a second: with `1000`, every "
        "1000th further request is logged. With `0`, no further requests are logged. The field "
        "`left_out` of a log line is the number of requests skipped before this line.",
    )


class LogConfig(Section):
    """Logging. The access log goes to standard output. The audit log, warnings and errors go to
    standard error (docs/logs.md)."""

    format: Literal["text", "json"] = Field(
        default="text",
        description="Format of all log lines. `text` is for people, and `json` is for log "
        "collectors. `--log-format` takes precedence.",
    )
    access: bool = Field(default=True, description="Write an access log line for each request.")
    sampling: SamplingConfig | None = Field(
        default=None,
        description="Sampling of the access log at high request rates. Without sampling, every "
        "request is logged. Metrics always count every request.",
    )

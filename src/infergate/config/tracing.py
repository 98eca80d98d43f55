"""The section of routes.yaml on tracing."""

from __future__ import annotations

import importlib.util
from typing import Self

from pydantic import Field, model_validator

from infergate.config.section import Section


class TracingConfig(Section):
    """Distributed tracing: OpenTelemetry spans of requests."""

    enabled: bool = Field(
        default=False,
        description="Export spans of requests. Exporter, sampler and service name are set by "
        "OpenTelemetry's environment variables, such as OTEL_EXPORTER_OTLP_ENDPOINT, "
        "OTEL_TRACES_SAMPLER and OTEL_SERVICE_NAME (docs/tracing.md). Requires `pip install "
        "infergate[otel]`.",
    )

    @model_validator(mode="after")
    def _check_installed(self) -> Self:
        if self.enabled and not _is_installed():
            raise ValueError("tracing requires an optional package: pip install 'infergate[otel]'")
        return self


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:  # raised if the package ``opentelemetry`` is missing
        return False

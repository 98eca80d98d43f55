"""Whether requests are traced: a part of the schema."""

from __future__ import annotations

import importlib.util
from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from infergate.config.section import Section


class TracingConfig(Section):
    """Spans of requests, for a collector of OpenTelemetry."""

    enabled: bool = Field(
        default=False,
        description="Whether requests are traced. Where to, how many and under which name the "
        "environment says, by OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT, "
        "OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and the others (docs/tracing.md). Needs "
        "`pip install infergate[otel]`.",
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.enabled and not _is_there():
            raise PydanticCustomError(
                "mistake", "tracing needs another package: pip install 'infergate[otel]'"
            )
        return self


def _is_there() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:  # nor is there what holds it
        return False

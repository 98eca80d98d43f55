"""What is written to the terminal: a part of the schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infergate.config.fields import Positive
from infergate.config.section import Section


class SamplingConfig(Section):
    """Which requests are lines, where there are more than anybody reads. Of requests alike (one
    route, one outcome) in one second."""

    first: Positive = Field(default=100, description="So many are lines.")
    thereafter: Annotated[int, Field(ge=0)] = Field(
        default=100,
        description="Of those after them each so-manieth is; 0: none. A line tells how many were "
        "left out before it, as `left_out`.",
    )


class LogConfig(Section):
    """What is written to the terminal."""

    format: Literal["text", "json"] = Field(
        default="text",
        description="For a person or for a machine: requests (standard output), and the audit, "
        "warnings and errors (standard error). `--log-format` goes before it.",
    )
    access: bool = Field(default=True, description="Whether each request is a line.")
    sampling: SamplingConfig | None = Field(
        default=None,
        description="Which requests are lines at high rates; left out: all. Metrics count all.",
    )

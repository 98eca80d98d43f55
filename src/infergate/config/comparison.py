"""The sections of routes.yaml on comparing the responses of a mirror with the served responses."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from infergate.config.fields import (
    FilePath,
    Percent,
    Positive,
    PositiveDuration,
    PositiveSize,
    Text,
)
from infergate.config.recording import RecordedHeader, RedactConfig
from infergate.config.section import Section
from infergate.core.limits import MIB

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, json_schema_extra={"format": "number"})]
Fraction = Annotated[float, Field(gt=0, le=1, json_schema_extra={"format": "number"})]


class ToleranceConfig(Section):
    """The tolerance of a datatype. Two elements differ if their difference exceeds the sum of both
    tolerances.

    Example: `{atol: 1e-5, rtol: 1e-4}`."""

    atol: Amount | None = Field(
        default=None,
        description="Absolute tolerance. By default, the value for the datatype applies "
        "(docs/comparison.md).",
    )
    rtol: Amount | None = Field(
        default=None,
        description="Tolerance relative to the absolute value of the served element. By default, "
        "the value for the datatype applies (docs/comparison.md).",
    )


class OutputRuleConfig(ToleranceConfig):
    """The comparison rules of an output. All given criteria must hold. With `top_k` or `cosine`,
    individual elements are compared only if a tolerance or `quantile` is also given."""

    quantile: Fraction | None = Field(
        default=None,
        description="Share of the elements that must be within the tolerance. By default, all "
        "elements must be. Example: `0.99`.",
    )
    top_k: Positive | None = Field(
        default=None,
        description="Number of largest elements of each row (the last dimension) whose positions "
        "must be equal, in any order. `1` compares the predicted classes.",
    )
    cosine: Fraction | None = Field(
        default=None,
        description="Minimum cosine similarity of each row (the last dimension). Example: `0.997`.",
    )
    ignore: bool = Field(
        default=False,
        description="Declare a known difference: differences of this output are counted separately "
        "and are not mismatches.",
    )


class BaselineConfig(Section):
    """The noise baseline: a second response of the old server to the same request. A difference of
    the mirror counts only if it exceeds the differences between responses of the old server."""

    backend: Text = Field(
        default="",
        description="A second backend that serves the same model on an old server. By default, "
        "the request is sent to the serving backend again, after the response. Use the default "
        "only if an inference may run twice. Requests of a sequence are never sent to the same "
        "backend twice.",
    )
    percent: Percent = Field(
        default=1.0,
        description="Percentage of the compared inferences that are also sent to the baseline. "
        "Example: `5`.",
    )


class KeepConfig(Section):
    """Storage of requests whose responses differ. `infergate replay` reads the files. When the
    folder is full, nothing is stored until files are removed or exceed `age`."""

    path: FilePath = Field(
        description="The folder for the files, which have the permissions 600. It must differ "
        "from `recording.path`. Routes with the same folder must have the same `count`, `bytes` "
        "and `age`."
    )
    count: Positive = Field(default=100, description="Maximum number of files.")
    bytes: PositiveSize = Field(
        default=256 * MIB, description="Maximum size of all files together. Example: `1GiB`."
    )
    age: PositiveDuration = Field(
        default=7 * 24 * 3600.0, description="Age at which a file is deleted. Example: `24h`."
    )
    headers: tuple[RecordedHeader, ...] = Field(
        default=(),
        description="Names or globs of the headers to store. By default, no header is stored. "
        "Headers that may hold credentials are never stored. Example: `[x-request-id]`.",
    )
    redact: RedactConfig = Field(
        default=RedactConfig(), description="Tensors that are removed or zeroed before storing."
    )


class CompareConfig(Section):
    """Comparison of the mirror's responses with the served responses (docs/comparison.md). Clients
    never wait for a comparison."""

    tolerances: dict[str, ToleranceConfig] = Field(
        default={},
        description="Tolerances by datatype, for example `{FP32: {atol: 1e-5, rtol: 1e-4}}`. "
        "Integers, BOOL and BYTES are compared exactly.",
    )
    outputs: dict[str, OutputRuleConfig] = Field(
        default={},
        description="Rules for individual outputs, keyed by the name that clients use. Example: "
        "`{scores: {top_k: 1}}`.",
    )
    baseline: BaselineConfig | None = Field(
        default=None,
        description="The noise baseline. By default, every difference beyond the tolerance counts.",
    )
    keep: KeepConfig | None = Field(
        default=None, description="Storage of mismatches. By default, no mismatch is stored."
    )

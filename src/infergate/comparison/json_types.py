"""Types of a summary's fields, with limits that apply when the summary is read from JSON."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

MAX_COUNT: Final = 2**63 - 1


def _check_counts(counts: Counter[Any]) -> Counter[Any]:
    for key, value in counts.items():
        if not 0 <= value <= MAX_COUNT:
            raise ValueError(f"the count of {key!r} is {value}; expected 0 to 2**63 - 1")
    return +counts  # without zeros


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Counts = AfterValidator(_check_counts)
"""An annotation of counters: counts must be between 0 and MAX_COUNT, and zeros are removed."""
Size = Annotated[
    float,
    BeforeValidator(lambda value: math.inf if value is None else value),
    Field(ge=0),
    PlainSerializer(lambda value: None if value == math.inf else value),
]
"""A number >= 0; infinity is null in JSON."""
Text = Annotated[str, Field(max_length=256)]
Name = Annotated[str, Field(max_length=1024)]
"""The name of a route, model or output; ``core.name_rules`` has the same limit."""

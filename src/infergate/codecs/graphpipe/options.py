"""What a listener may say of its GraphPipe clients."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


class Errors(enum.Enum):
    """How an inference or a question for metadata is refused."""

    STATUS = "status"
    """By an HTTP status and the message as text. Every client notices but Java's."""
    RESPONSE = "response"
    """By an InferResponse with errors under status 200: what the specification has, and all that a
    raw socket can carry. Of the known clients only Python's notices."""


_KNOWN: Final = ("model", "errors")


@dataclass(frozen=True, slots=True)
class Options:
    """``model`` is what every path means; empty: paths name models."""

    model: str = ""
    errors: Errors = Errors.STATUS


def read_options(options: Mapping[str, Any]) -> Options:
    """Raises ValueError."""
    for name in options:
        if name not in _KNOWN:
            raise ValueError(f"{name!r} is not an option, which are {', '.join(_KNOWN)}")
    model = options.get("model", "")
    if not isinstance(model, str):
        raise ValueError(f"model is {model!r}, not text")  # noqa: TRY004
    errors = options.get("errors", Errors.STATUS.value)
    choices = [choice.value for choice in Errors]
    if errors not in choices:
        raise ValueError(f"errors is {errors!r}, not one of {choices}")
    return Options(model, Errors(errors))

"""The options of a GraphPipe listener."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infergate.codecs.option_checks import check_option_names, read_choice


class ErrorStyle(enum.Enum):
    """The form of the errors of inferences and metadata requests."""

    STATUS = "status"
    """An HTTP status, with the message as text. All clients except the Java client detect this
    form."""
    RESPONSE = "response"
    """An InferResponse with errors and status 200. The specification describes this form, and raw
    sockets can carry no other form. Of the known clients, only the Python client detects this
    form."""


@dataclass(frozen=True, slots=True)
class Options:
    """A listener's options. If ``model`` is empty, each path names a model; otherwise every path
    refers to ``model``."""

    model: str = ""
    errors: ErrorStyle = ErrorStyle.STATUS


def read_options(options: Mapping[str, Any]) -> Options:
    """Return the codec's options. Raises ValueError for an unknown or invalid option."""
    check_option_names(options, ("model", "errors"))
    model = options.get("model", "")
    if not isinstance(model, str):
        raise ValueError(f"model is {model!r}, not text")  # noqa: TRY004
    errors = read_choice(options, "errors", [style.value for style in ErrorStyle])
    return Options(model, ErrorStyle(errors))

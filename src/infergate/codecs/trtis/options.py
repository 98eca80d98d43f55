"""The options of a listener for legacy clients.

``level`` selects the server release that the listener imitates, 1.9 or 1.15."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from infergate.codecs.option_checks import check_option_names, read_choice


@dataclass(frozen=True, slots=True)
class CompatibilityLevel:
    """The behavior of a server release."""

    has_json_status: bool
    """Whether the query or the Accept header can request a status as JSON (since 1.10)."""
    allows_repeated_outputs: bool
    """Whether a client may request an output twice. The response then contains the output twice."""
    names_unknown_versions: bool
    """Whether the error for an unknown model version contains the version."""

    def unknown_model_text(self, model: str, version: str) -> str:
        """Return the error text for an inference that names an unknown model."""
        if not self.names_unknown_versions:
            return f"Inference request for unknown model '{model}'"
        version_text = f" version {version}" if version else ""
        return f"Request for unknown model: '{model}'{version_text} is not found"

    def unavailable_model_text(self, model: str, version: str) -> str:
        """Return the error text for an inference that names a model that is not ready."""
        if version or not self.names_unknown_versions:
            return self.unknown_model_text(model, version)
        return f"Request for unknown model: '{model}' has no available versions"


LEVELS: Final = {
    "1.9": CompatibilityLevel(
        has_json_status=False, allows_repeated_outputs=True, names_unknown_versions=False
    ),
    "1.15": CompatibilityLevel(
        has_json_status=True, allows_repeated_outputs=False, names_unknown_versions=True
    ),
}


@dataclass(frozen=True, slots=True)
class TrtisOptions:
    """The options of a listener. Every status contains ``server_id``. ``data_type`` adds datatypes
    to the outputs in responses, which breaks clients older than 1.12."""

    level: CompatibilityLevel
    server_id: str
    data_type: bool


def read_options(options: Mapping[str, Any]) -> TrtisOptions:
    """Return the validated options. Raises ValueError."""
    check_option_names(options, ("level", "server_id", "data_type"))
    level = read_choice(options, "level", LEVELS)
    server_id = options.get("server_id", "inference:0")
    if not isinstance(server_id, str) or not server_id.isprintable():
        raise ValueError(f"server_id is {server_id!r}; expected text without control characters")
    data_type = options.get("data_type", False)
    if not isinstance(data_type, bool):
        raise ValueError(f"data_type is {data_type!r}; expected true or false")  # noqa: TRY004
    return TrtisOptions(LEVELS[level], server_id, data_type)

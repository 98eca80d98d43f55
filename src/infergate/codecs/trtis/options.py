"""What a listener may say of how its legacy clients are answered.

*Strategy.* Where releases of the server differ, a client is told what the level's release says. Two
were looked at; what is between them counts as 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Level:
    """What one release does that another does not."""

    tells_json: bool
    """Status as JSON, where the query or the Accept header asks for it (since 1.10)."""
    repeats_outputs: bool
    """Gives an output as often as it is asked for; else refuses that."""
    names_versions: bool
    """Says which version of a model it does not know."""

    def unknown_model(self, model: str, version: str) -> str:
        """What an inference on a model that is not there is told."""
        if not self.names_versions:
            return f"Inference request for unknown model '{model}'"
        where = f" version {version}" if version else ""
        return f"Request for unknown model: '{model}'{where} is not found"

    def unavailable_model(self, model: str, version: str) -> str:
        """What an inference on a model that is not ready is told."""
        if version or not self.names_versions:
            return self.unknown_model(model, version)
        return f"Request for unknown model: '{model}' has no available versions"


LEVELS: Final = {
    "1.9": Level(tells_json=False, repeats_outputs=True, names_versions=False),
    "1.15": Level(tells_json=True, repeats_outputs=False, names_versions=True),
}
_KNOWN: Final = ("level", "server_id", "data_type")


@dataclass(frozen=True, slots=True)
class Options:
    """``server_id`` stands in every status. ``data_type`` tells the datatype of outputs, which
    breaks clients before 1.12."""

    level: Level
    server_id: str
    data_type: bool


def read_options(options: Mapping[str, Any]) -> Options:
    """Raises ValueError."""
    for name in options:
        if name not in _KNOWN:
            raise ValueError(f"{name!r} is not an option, which are {', '.join(_KNOWN)}")
    level = options.get("level", "1.9")
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}, not one of {list(LEVELS)}")
    server_id = options.get("server_id", "inference:0")
    if not isinstance(server_id, str) or not server_id.isprintable():
        raise ValueError(f"server_id is {server_id!r}, not text without control characters")
    data_type = options.get("data_type", False)
    if not isinstance(data_type, bool):
        raise ValueError(f"data_type is {data_type!r}, not true or false")  # noqa: TRY004
    return Options(LEVELS[level], server_id, data_type)

"""The differences between the real servers v1.9.0 and v1.15.0, and their hazards by name.

A hazard is a boolean field of ``Behavior``. A test can turn it on or off for either version.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Behavior:
    """The server's behavior. The defaults are those of v1.9.0."""

    level: str = "1.9"

    # hazards of the real servers
    crashes_on_chunked: bool = True
    """The process crashes if a body is chunked and has no Content-Length (both versions)."""
    crashes_without_header: bool = True
    """The process crashes if NV-InferRequest is missing (up to 1.12); else 400 in plain text."""
    closes_on_wrong_size: bool = False
    """An error found after the header check closes the connection without a response (1.11 and
    up)."""
    drops_pipelined: bool = True
    """Requests pipelined behind a request other than an inference are lost (both versions)."""
    reversed_outputs: bool = False
    """Outputs have hash order, here the reverse of the requested order (1.12 and up)."""
    limits_header: bool = True
    """A header value or URI above 8190 bytes closes the connection without a response (both
    versions)."""

    # states of a server
    not_ready: bool = False
    """Readiness checks get status 400 with NV-Status SUCCESS."""
    silent: bool = False
    """Every inference over HTTP closes the connection without a response."""
    many_classes: bool = False
    """There is a model ``classify_many`` whose 1000 labels make the response header large."""
    long_names: bool = False
    """There is a model ``identity_long`` with five tensors whose names have 1000 characters."""
    changes: bool = False
    """After a reload, all tensors of a model are FP32, with one more element."""
    explicit: bool = False
    """Models are loaded on request only. If false, load and unload requests are rejected, as in
    polling mode."""
    delay_ms: int = 0
    """The additional time of every inference, in milliseconds."""

    # other differences between the versions
    refuses_repeated_outputs: bool = False
    status_json: bool = False

    def unknown_model(self, name: str, version: int, *, known: bool) -> str:
        if self.level == "1.9":
            return f"Inference request for unknown model '{name}'"
        if not known:
            return f"Request for unknown model: '{name}' is not found"
        if version == -1:
            return f"Request for unknown model: '{name}' has no available versions"
        return f"Request for unknown model: '{name}' version {version} is not found"


LEVELS = {
    "1.9": Behavior(),
    "1.15": Behavior(
        level="1.15",
        crashes_without_header=False,
        closes_on_wrong_size=True,
        reversed_outputs=True,
        refuses_repeated_outputs=True,
        status_json=True,
    ),
}

HAZARDS = tuple(field.name for field in fields(Behavior) if field.type == "bool")

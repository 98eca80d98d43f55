"""The outcomes of attempts, from which an endpoint's health is derived."""

from __future__ import annotations

import enum


class AttemptOutcome(enum.Enum):
    """Whether an endpoint handled an attempt properly."""

    OK = "ok"
    NOT_CONNECTED = "unreached"
    """The gateway could not connect to the endpoint."""
    FAILED = "failed"
    """The endpoint was too slow, or reported that it cannot serve now."""
    BROKEN = "broken"
    """The endpoint closed the connection early or sent an invalid response. Either the endpoint or
    this request is the cause."""
    UNKNOWN = "untold"
    """The outcome is no evidence about the endpoint, because the client disconnected or set too
    short a deadline."""

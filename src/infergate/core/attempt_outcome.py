"""The outcomes of attempts, from which an endpoint's health is derived."""

from __future__ import annotations

import enum


class AttemptOutcome(enum.Enum):
    """The result of an attempt to get a response from an endpoint."""

    OK = "ok"
    NOT_CONNECTED = "not_connected"
    """The gateway could not connect to the endpoint."""
    FAILED = "failed"
    """The endpoint was too slow, or reported that it cannot serve now."""
    BROKEN = "broken"
    """The endpoint closed the connection early or sent an invalid response. Either the endpoint or
    this request is the cause."""
    UNKNOWN = "unknown"
    """The outcome says nothing about the endpoint, for example because the client disconnected or
    set a deadline that was too short."""

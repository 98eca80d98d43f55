"""How an attempt to have a request served has ended, for the endpoint that it was made on."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """Whether an endpoint did its part."""

    OK = "ok"
    UNREACHED = "unreached"
    """There was no connection to it."""
    FAILED = "failed"
    """It was too slow or said that it cannot serve now."""
    BROKEN = "broken"
    """It broke off, or sent no answer of its protocol: its own failure, or what it makes of this
    one request."""
    UNTOLD = "untold"
    """Nothing can be said: the client went away, or set too short a deadline."""

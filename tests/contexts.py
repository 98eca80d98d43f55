"""Request contexts for tests of the gateway and of backends."""

from __future__ import annotations

from typing import Any

from infergate.core.request_context import RequestContext


def new_context(**fields: Any) -> RequestContext:
    """Return a request context with ``fields`` set."""
    context = RequestContext("test")
    for name, value in fields.items():
        setattr(context, name, value)
    return context

"""Finds the split target of a request, if the request alone determines the target."""

from __future__ import annotations

from collections.abc import Iterator

from infergate.core.messages import InferRequest
from infergate.core.request_context import REQUEST_ID_HEADER, RequestContext
from infergate.core.sequences import sequence_key
from infergate.gateway.traffic_split import split_key
from infergate.routing.split import pick_target
from infergate.routing.table import Route


def split_notes(
    route: Route, request: InferRequest, context: RequestContext, *, has_own_id: bool
) -> Iterator[str]:
    """Yield a sentence about the target of ``request`` if ``route`` has a split. ``has_own_id`` is
    true if the client sent a request ID."""
    if not route.split:
        return
    if sequence_key(request) is not None:
        cause = "The sequence"
    elif context.headers.get(route.split_by):
        cause = f"The value of the header '{route.split_by}'"
    elif has_own_id:
        cause = f"The value of the header '{REQUEST_ID_HEADER}'"
    else:
        yield (
            "The request has neither a sequence nor a header that selects the target. The gateway "
            "assigns a random request ID, which selects the target."
        )
        return
    key = split_key(request, context, route.split_by)
    index = pick_target([target.percent for target in route.split], f"{route.label}\0{key}")
    backend = route.backend if index is None else route.split[index].backend
    yield f"{cause} selects the backend '{backend}' for this request."

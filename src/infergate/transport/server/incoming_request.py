"""A client's request in the transport, from its head to its response."""

from __future__ import annotations

from infergate.core.compilation import mypyc_attr
from infergate.core.request_context import RequestContext
from infergate.core.wire import HttpRequest
from infergate.transport.server.admission import Admission, RequestAccount


@mypyc_attr(allow_interpreted_subclasses=True)
class IncomingRequest:
    """A request that is arriving or being served. ``account`` counts the request's memory."""

    __slots__ = ("account", "context")

    def __init__(self, context: RequestContext, admission: Admission) -> None:
        self.context = context
        self.account = context.memory = RequestAccount(admission)


@mypyc_attr(allow_interpreted_subclasses=True)
class IncomingHttpRequest(IncomingRequest):
    """A request to an ``HttpApp``. ``is_complete`` means that the request has arrived completely.
    ``body_started_at`` is the loop time at which the body began to arrive, or 0 until then."""

    __slots__ = ("body_started_at", "is_complete", "is_http10", "keep_alive", "wire")

    def __init__(self, wire: HttpRequest, context: RequestContext, admission: Admission) -> None:
        self.context = context  # set here, because super() would slow down each request
        self.account = context.memory = RequestAccount(admission)
        self.wire = wire
        self.is_complete = False
        self.body_started_at = 0.0
        self.keep_alive = True
        self.is_http10 = False

    def release(self) -> None:
        self.account.release()
        self.wire.body = ()

"""A listener for size-prefixed frames, on TCP or on a unix socket."""

from __future__ import annotations

from infergate.core.limits import Limits
from infergate.transport.base import Address, HttpApp
from infergate.transport.framed.server_connection import FrameConnection
from infergate.transport.server.admission import Admission
from infergate.transport.server.connection_gate import ConnectionGate
from infergate.transport.server.listener import HttpAppListener


class FrameServer(HttpAppListener):
    """A ``Server`` for size-prefixed frames."""

    def __init__(
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        gate: ConnectionGate | None = None,
    ) -> None:
        super().__init__(address, app, limits, admission, lambda: FrameConnection(self), gate)

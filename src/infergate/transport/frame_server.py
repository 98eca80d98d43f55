"""A listener for size-prefixed frames, on TCP or on a unix socket."""

from __future__ import annotations

from infergate.core.limits import Limits
from infergate.transport.base import Address, HttpApp
from infergate.transport.door import Door
from infergate.transport.frame_connection import FrameConnection
from infergate.transport.guard import Admission
from infergate.transport.listener import Listener


class FrameServer(Listener):
    """A ``Server`` for size-prefixed frames."""

    def __init__(
        self,
        address: Address,
        app: HttpApp,
        limits: Limits,
        admission: Admission,
        door: Door | None = None,
    ) -> None:
        super().__init__(address, app, limits, admission, lambda: FrameConnection(self), door)

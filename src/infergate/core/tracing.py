"""What tells a tracing system of requests, without a word of which one it is.

*Strategy.* Where tracing is off there is nothing of it: whoever takes part in it stands in the
place of a part that does not, and is put there when the gateway is assembled. How a request goes on
is told by its header ``traceparent`` (W3C Trace Context): from the client, inside the gateway, and
to servers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from infergate.core.call import Call

TRACEPARENT: Final = "traceparent"


class Trace(Protocol):
    """The one that a request is part of."""

    @property
    def id(self) -> str:
        """In 32 hexadecimal digits; empty where it is not sampled: nobody could look at it."""
        ...


class Asking(Protocol):
    """One exchange with a server."""

    @property
    def traceparent(self) -> str:
        """What the server is told."""
        ...

    def answered(self, status: int) -> None:
        """With this status of HTTP or gRPC; of a stream, its latest."""
        ...

    def received(self) -> None:
        """One more message of a stream."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """It is over, by ``error`` if there is one."""
        ...


class Tracing(Protocol):
    """All that is told."""

    def begin(self, call: Call) -> None:
        """A request has come; from now on its headers tell its part of the trace, and the steps of
        this task are its own. Told again, nothing happens."""
        ...

    def step(self, name: str) -> AbstractContextManager[None]:
        """What is done within is told as one step of this task's request."""
        ...

    def ask(self, traceparent: str, backend: str, endpoint: str) -> Asking | None:
        """A server is asked, for the request that ``traceparent``, as ``begin`` has set it, tells
        of. None: its trace is not sampled."""
        ...

    def answer(self, call: Call) -> None:
        """One more answer of a stream's request is there to be sent; ``call.messages`` were before
        it."""
        ...

    def end(self, call: Call) -> None:
        """All is known of the request."""
        ...

    def close(self) -> None:
        """Nothing more comes. It may wait for who is told."""
        ...

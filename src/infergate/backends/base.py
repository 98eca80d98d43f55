"""The contract of a backend: canonical operation in, canonical answer out."""

from __future__ import annotations

from typing import Protocol

from infergate.core.call import Call
from infergate.core.messages import Answer, Operation


class Backend(Protocol):
    """Something that serves models."""

    @property
    def name(self) -> str:
        """The operator's name for it."""
        ...

    @property
    def protocol(self) -> str:
        """The registry's name of what it speaks."""
        ...

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Carry out ``operation`` before ``call.deadline``. Raises GatewayError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...

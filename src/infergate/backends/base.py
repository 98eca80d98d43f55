"""The contract of a backend: canonical operation in, canonical answer out."""

from __future__ import annotations

from typing import Protocol

from infergate.core.call import Call
from infergate.core.messages import Answer, Operation


class Backend(Protocol):
    """Something that serves models. ``name`` is the operator's, ``protocol`` the registry's."""

    name: str
    protocol: str

    async def perform(self, operation: Operation, call: Call) -> Answer:
        """Carry out ``operation`` before ``call.deadline``. Raises GatewayError."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...

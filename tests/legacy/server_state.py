"""The state of a server, and its responses on any transport: health, status, control and
metadata."""

from __future__ import annotations

import itertools
import time
from typing import Any

from legacy.inference import Inference
from legacy.levels import Behavior
from legacy.messages import Messages
from legacy.models import LegacyError, Repository

_INITIALIZING, _READY = 1, 2


class ServerState:
    """One server's state, shared by its transports."""

    def __init__(self, behavior: Behavior, server_id: str) -> None:
        self.behavior = behavior
        self.messages = Messages(behavior.level)
        self.repository = Repository(self.messages, behavior)
        self.inference = Inference(self.messages, behavior, self.repository)
        self._id = server_id
        self._ids = itertools.count(1)
        self._started = time.monotonic_ns()

    def status(self, error: LegacyError | None = None) -> Any:
        """Return the RequestStatus of the next request."""
        return self.messages.RequestStatus(
            code=error.code if error else "SUCCESS",
            msg=error.reason if error else "",
            server_id=self._id,
            request_id=next(self._ids),
        )

    def ready(self, mode: str) -> bool:
        """Return whether the server is ``live`` or ``ready``."""
        return mode == "live" or not self.behavior.not_ready

    def server_status(self, model: str) -> Any:
        """Return the status of one model, or the status of all models for an empty name, without
        statistics. Raises LegacyError."""
        status = self.messages.ServerStatus(
            id=self._id,
            version=f"{self.behavior.level}.0",
            uptime_ns=time.monotonic_ns() - self._started,
            ready_state=_INITIALIZING if self.behavior.not_ready else _READY,
        )
        loaded = self.repository.loaded
        if model and model not in loaded:
            raise LegacyError("INVALID_ARG", f"no status available for unknown model '{model}'")
        for name in [model] if model else sorted(loaded):
            status.model_status[name].CopyFrom(loaded[name])
        return status

    def index(self) -> Any:
        """Return the ModelRepositoryIndex."""
        entries = [{"name": name} for name in self.repository.names()]
        return self.messages.ModelRepositoryIndex(models=entries)

    def register(self, _name: str, key: str) -> None:
        """Fail like a server that cannot open the region. Raises LegacyError."""
        raise LegacyError("INTERNAL", f"Unable to open shared memory region: '{key}'")

    def register_cuda(self, name: str) -> None:
        """Fail like a server without GPUs. Raises LegacyError."""
        reason = f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
        raise LegacyError("INVALID_ARG", reason)

"""Runs long codec work in helper processes, so that it does not block the event loop.

Neither JSON library releases the GIL, so threads would not help
(docs/decisions/0008-helper-processes.md). The entry point is ``HelperPool``. Read ``pool`` (the
processes, seen from the serving process), ``ipc_message`` (pickles and
long buffers), ``process`` (the loop of a helper process)."""

from infergate.runtime.offload.pool import HelperPool

__all__ = ["HelperPool"]

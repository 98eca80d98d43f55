"""Runs long codec jobs in helper processes, so that the jobs do not block the event loop.

The JSON libraries do not release the GIL, so threads would not help
(docs/decisions/0008-helper-processes.md). The entry point is ``HelperPool``. Read ``pool`` (the
processes, seen from the serving process), ``ipc_message`` (pickles and long buffers) and
``process`` (the loop of a helper process)."""

from infergate.runtime.offload.pool import HelperPool

__all__ = ["HelperPool"]

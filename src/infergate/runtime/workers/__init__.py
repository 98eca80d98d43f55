"""Several worker processes that serve as one gateway, and their supervisor.

The supervisor binds every address and passes the sockets to the workers. Workers are new
interpreters, and all of them accept connections from these sockets. If a worker dies, the sockets
stay open and the other workers continue. The supervisor itself accepts connections only on the
admin address. See docs/decisions/0025-workers.md.

The entry point is ``supervisor.Supervisor``. Read ``supervisor``, ``worker_slot``, ``worker`` (a
worker process, seen from the supervisor), ``process`` (the program of a worker process),
``messages`` over a ``channel``, ``sockets``, and the shared files (``shared_files``,
``log_lock``)."""

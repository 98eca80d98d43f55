"""Threads that run plug-ins. They are daemon threads, so a plug-in that never returns cannot keep
the process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread. It keeps running if a plug-in stops it, or raises SystemExit
    or KeyboardInterrupt in a callback or a task. ``on_exit`` receives these exceptions."""

    def __init__(self, name: str, on_exit: Callable[[BaseException], None]) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._on_exit: Final = on_exit
        self._is_stopped = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_stopped:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything
                self._on_exit(error)
        self.loop.close()

    def stop(self) -> None:
        """Stop the loop as soon as the running callback has returned."""
        self._is_stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)


class JobThreads:
    """Runs jobs in threads. A thread is started when all other threads are busy, and is reused
    later. The caller limits the number of jobs. Jobs must not raise exceptions. ``submit`` and
    ``stop`` must be called from the same thread."""

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._jobs: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._free = 0
        """The number of idle threads minus the number of queued jobs."""
        self._count = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` in a thread. Raises RuntimeError if no thread can be started."""
        with self._lock:
            needs_thread = self._free == 0
            if not needs_thread:
                self._free -= 1
        if needs_thread:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._count += 1
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # an idle thread must not hold a request
            with self._lock:
                self._free += 1

    def stop(self) -> None:
        """End each thread when its job is done."""
        for _ in range(self._count):
            self._jobs.put(None)

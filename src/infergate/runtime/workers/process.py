"""A worker process: serves the configurations that the supervisor sends, on the supervisor's
sockets.

*Rule 1.* A signal to the process group is meant for the supervisor, which controls the workers.
*Rule 2.* A worker does not outlive its supervisor, because its sockets would block a new
supervisor.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import Metric

from infergate.access.shared_rates import SharedBuckets
from infergate.config.schema import Config
from infergate.core.errors import GatewayError
from infergate.core.messages import ModelStatistics
from infergate.core.vocabulary import SUPERVISOR_LOST
from infergate.observe.family import in_pieces
from infergate.observe.log_lines import FORMATTERS, begin
from infergate.observe.recent import recalled
from infergate.runtime.assemble import assemble
from infergate.runtime.company import Company
from infergate.runtime.descriptors import Complaints
from infergate.runtime.engines import engine
from infergate.runtime.memory import keep_freed_memory, settle
from infergate.runtime.running import Change, NotTaken, Running
from infergate.runtime.workers.channel import Channel, Failed, Lost, receive_descriptors
from infergate.runtime.workers.files import Files
from infergate.runtime.workers.lines import Turn
from infergate.runtime.workers.messages import (
    CarryOut,
    Counted,
    Drain,
    Drop,
    Given,
    IsReady,
    Prepare,
    Recall,
    Refused,
    Serve,
    Stop,
    Take,
    Tell,
)
from infergate.transport.base import Address, Bound
from infergate.transport.loads import Loads

_log = logging.getLogger("infergate")
_PR_SET_PDEATHSIG: Final = 1  # prctl(2), Linux
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(number: int, engine_name: str, control: int, descriptors: int, *shared: int) -> None:
    """Run worker ``number``, counted from 0. ``control`` and ``descriptors`` are the sockets of the
    channel and for passing descriptors; ``shared`` are the descriptors of the shared files."""
    for signal_number in _SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere the worker ends when the channel closes
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=engine(engine_name).new_loop) as runner:
        pipe = socket.socket(fileno=descriptors)
        runner.run(_Worker(number, pipe, Files(*shared)).work(control))


class _Worker:
    """The state of the process, and the handlers of the supervisor's requests."""

    def __init__(self, number: int, descriptors: socket.socket, files: Files) -> None:
        self._number: Final = number
        self._descriptors: Final = descriptors
        self._company: Final = Company(
            counted=self._counted,
            buckets=functools.partial(SharedBuckets, files.rates),
            lines=Turn(files.lines),
        )
        self._handler: logging.Handler
        self._given: Final[dict[str, Bound]] = {}
        self._running: Running
        self._change: Change | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stopped: Final = asyncio.Event()
        self._channel: Channel
        self._telling: Iterator[list[Metric]] = iter(())

    async def work(self, control: int) -> None:
        """Serve until told to stop, or until the supervisor ends."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(Complaints())
        _, self._channel = await loop.create_unix_connection(
            lambda: Channel(self._answer), sock=socket.socket(fileno=control)
        )
        self._channel.lost.add_done_callback(lambda _: self._stopped.set())
        await self._stopped.wait()
        if self._channel.lost.done():
            _log.error(
                "worker %d stops because the supervisor has ended",
                self._number,
                extra=SUPERVISOR_LOST,
            )
            os._exit(1)
        self._channel.close()

    async def _answer(self, question: Any) -> Any:  # noqa: C901 - one case per message
        match question:
            case Serve(config, given):
                await self._serve(config, given)
            case Prepare(config, given):
                await self._prepare(config, given)
            case Take():
                self._take()
            case Drop():
                await self._drop()
            case Tell(restart):
                if restart:
                    self._telling = in_pieces(self._company.metrics.registry.collect())
                return next(self._telling, [])
            case Recall():
                company = self._company
                return recalled(company.recent, company.metrics, self._number)
            case CarryOut(action, arguments):
                return await self._carry_out(action, arguments)
            case IsReady():
                return await self._running.gateway.readiness.ready()
            case Counted(model, version):
                return self._running.gateway.figures.of(model, version)
            case Drain():
                self._running.drain()
            case Stop(grace):
                previous = self._stopping
                self._stopping = asyncio.create_task(self._stop(grace, previous))
        return None

    async def _carry_out(self, what: str, asked: dict[str, Any]) -> object:
        from infergate.runtime.console.trying import carried_out  # noqa: PLC0415 - rarely needed

        running = self._running
        try:
            return await carried_out(running.config, running.gateway, what, asked)
        except GatewayError as error:
            return Refused(error.kind, error.public)

    # ---- configurations

    async def _serve(self, config: Config, given: Given) -> None:
        self._handler = begin(config.log.format)
        self._take_sockets(given)
        try:
            self._running = assemble(config, company=self._company)
            self._running.retired = settle
            await self._running.start(self._bind)
        except OSError as error:
            raise Failed(str(error)) from error
        finally:
            self._leave_sockets()
        settle()

    async def _prepare(self, config: Config, given: Given) -> None:
        self._take_sockets(given)
        try:
            self._change = await self._running.prepare(config)
        except NotTaken as error:
            raise Failed(str(error)) from error
        finally:
            self._leave_sockets()

    def _take(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.take()
            self._tell_as(self._running.config)

    async def _drop(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            await change.drop()

    def _tell_as(self, config: Config) -> None:
        self._handler.setFormatter(FORMATTERS[config.log.format]())

    async def _stop(self, grace: float, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            previous.cancel()
            await asyncio.wait({previous})
        await self._running.stop(grace)
        self._stopped.set()

    # ---- sockets

    def _take_sockets(self, given: Given) -> None:
        descriptors = receive_descriptors(self._descriptors, sum(count for _, count in given))
        for address, count in given:
            loads, *sockets = descriptors[:count]
            del descriptors[:count]
            self._given[str(address)] = Bound(
                tuple(map(_made_of, sockets)), loads=Loads(loads, self._number)
            )
            os.close(loads)  # the mapping stays

    async def _bind(self, address: Address) -> Bound:
        """Return the received sockets of ``address``; a ``Bind`` function."""
        return self._given.pop(str(address))

    def _leave_sockets(self) -> None:
        """Close received sockets that no listener uses because an earlier step failed."""
        while self._given:
            self._given.popitem()[1].close()

    # ---- statistics of all workers

    async def _counted(self, model: str, version: str) -> ModelStatistics:
        try:
            statistics: ModelStatistics = await self._channel.ask(Counted(model, version))
        except (Failed, Lost):
            return self._running.gateway.figures.of(model, version)
        return statistics


def _made_of(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)  # noqa: FBT003 - the method's name explains it
    return sock

"""Run until told to stop.

*Drain.* The first SIGTERM or SIGINT fails readiness, waits ``drain.delay`` for load balancers to
notice, stops accepting, and lets requests finish for ``drain.timeout``. A second one ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Final

from infergate.config.schema import Config
from infergate.observe.log_lines import FORMATTERS
from infergate.runtime.assemble import Running, assemble
from infergate.runtime.banner import banner
from infergate.runtime.engines import engine
from infergate.runtime.memory import keep_freed_memory

_log = logging.getLogger("infergate")
_STOP: Final = (signal.SIGTERM, signal.SIGINT)


def serve(config: Config, source: Path | None) -> int:
    """Serve ``config`` (``source``: the file it came from; None: the embedded demo).

    Returns 0 after a clean stop. Raises OSError where an address is taken.
    """
    keep_freed_memory()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[config.log.format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    with asyncio.Runner(loop_factory=engine(config.engine).new_loop) as runner:
        return runner.run(_serve(config, source))


async def _serve(config: Config, source: Path | None) -> int:
    running = assemble(config)
    await running.start()
    stops: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _STOP:
        loop.add_signal_handler(number, stops.put_nowait, number)
    loop.add_signal_handler(signal.SIGHUP, _no_reload)
    sys.stdout.write(banner(config, running.listeners, source))
    sys.stdout.flush()

    first = await stops.get()
    _log.info("%s: draining", first.name)
    draining = asyncio.create_task(_drain(running, config))
    again = asyncio.create_task(stops.get())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    if draining.done():
        draining.result()  # a failure of the drain is a failure of the process
    else:
        _log.info("a second signal: ending at once")
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await running.stop(0)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    _log.info("stopped")
    return 0


async def _drain(running: Running, config: Config) -> None:
    running.drain()
    await asyncio.sleep(config.drain.delay)
    await running.stop(config.drain.timeout)


def _no_reload() -> None:
    _log.warning("SIGHUP: this version does not reload; restart to take a new configuration")

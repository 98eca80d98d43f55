"""Log lines for the exceptions that an event loop reports."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from faults.watch import open_files, until
from infergate.runtime.descriptors import LoopExceptionHandler
from tls_kit import Authority

CLIENTS = 4


class CancellingContext(ssl.SSLContext):
    """Cancels all of ``connecting`` when the last handshake begins and the server has responded to
    the others."""

    connecting: list[asyncio.Task[Any]]
    handshakes = 0

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        self.handshakes += 1
        if self.handshakes == CLIENTS:
            time.sleep(0.2)  # block the loop until the server has responded
            for each in self.connecting:
                each.cancel()
        return super().wrap_bio(*args, **options)


async def cancel_connections(
    authority: Authority, port: int, contexts: list[dict[str, Any]]
) -> None:
    loop = asyncio.get_running_loop()
    handler = LoopExceptionHandler()
    before = sockets()

    def record(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        contexts.append(context)
        handler(loop, context)

    loop.set_exception_handler(record)
    context = CancellingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    context.connecting = [
        asyncio.create_task(
            loop.create_connection(asyncio.Protocol, "localhost", port, ssl=context)
        )
        for _ in range(CLIENTS)
    ]
    await asyncio.wait(context.connecting)
    # The loop must keep running to log an exception.
    await asyncio.to_thread(until, lambda: sockets() <= before, "all connections are closed")


def sockets() -> int:
    return sum(each.startswith("socket:") for each in open_files(os.getpid()))


def test_cancelled_tls_handshakes_log_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uvloop = pytest.importorskip("uvloop")
    authority = Authority(tmp_path)
    pair = authority.server()
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(pair.certificate, pair.key)
    port: list[int] = []
    finished = threading.Event()

    async def serve() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server_context) as server:
            port.append(server.sockets[0].getsockname()[1])
            await asyncio.to_thread(finished.wait)

    serving = threading.Thread(target=asyncio.run, args=(serve(),))
    serving.start()
    try:
        while not port:
            time.sleep(0.01)
        contexts: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(cancel_connections(authority, port[0], contexts))
    finally:
        finished.set()
        serving.join()
    # ``contexts`` may be empty: newer versions of uvloop may not report these errors.
    assert not [each for each in contexts if "SSL" not in each["message"]]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Fatal error on SSL protocol", RuntimeError("another")),
        ("Fatal error on transport", RuntimeError("the handler is closed")),
        ("Fatal error on SSL protocol", OSError("the handler is closed")),
        ("Task exception was never retrieved", ValueError("a bug")),
    ],
)
def test_other_errors_are_logged(
    message: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner() as runner:
        LoopExceptionHandler()(runner.get_loop(), {"message": message, "exception": error})
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert message in record.getMessage()

"""Runs infergate with several workers, and inspects their processes and connections."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from e2e.running import LISTENERS, Infergate, started_infergate
from faults import watch
from faults.peer import get, post

DEMO = """
backends: {demo: {protocol: builtin}}
routes: [{model: "*", backend: demo}]
"""
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[7]}]}'


def request(path: str, body: bytes = BODY) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(), len(body), body,
    )  # fmt: skip


INFER = request("/v2/models/identity/infer")


until = functools.partial(watch.until, seconds=100)
"""Like ``watch.until``, with time for several processes to start."""


class Client:
    """A persistent HTTP connection."""

    opened: ClassVar[list[Client]] = []
    """All clients of the running test; ``several`` closes those that a failed test leaves open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.opened.append(self)

    @classmethod
    async def connected(cls, address: str, tls: ssl.SSLContext | None = None) -> Client:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int:
        """Return the status of the next response, after reading the response completely."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length, head
        await self._reader.readexactly(int(length[1]))
        return int(head.split()[1])

    async def send_request(self, data: bytes = INFER) -> int:
        await self.send(data)
        return await self.status()

    def close(self) -> None:
        self._writer.close()

    @property
    def certificate(self) -> bytes:
        encoded: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return encoded

    @property
    def port(self) -> int:
        port: int = self._writer.get_extra_info("sockname")[1]
        return port


def workers(running: Infergate) -> list[int]:
    """Return the process IDs of the running workers."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return [int(each) for each in children if lives(int(each))]


def process_state(pid: int) -> str:
    """Return the letter that ``ps`` shows for the process's state, or "X" if there is no such
    process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def lives(pid: int) -> bool:
    return process_state(pid) not in "ZX"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: process_state(pid) == "T", "the process is stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def shared_loads(pid: int) -> dict[int, tuple[int, ...]]:
    """Return each worker's number of connections on each listener, read from the shared memory that
    the process has open. The key is the inode of the memory."""
    loads = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        if str(each.readlink()).startswith("/memfd:infergate-loads"):
            loads[each.stat().st_ino] = tuple(memoryview(each.read_bytes()).cast("i"))
    return loads


def connections(pid: int, ports: Collection[int] | None = None) -> int:
    """Return the number of the process's TCP connections. With ``ports``, count only connections
    from these client ports."""
    open_files = set(watch.open_files(pid))
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    # A set, because the kernel may list a connection twice while others open and close.
    inodes = {
        row[9]
        for row in map(str.split, rows)
        if row[3] == "01" and (ports is None or int(row[2].partition(":")[2], 16) in ports)
    }
    return sum(f"socket:[{inode}]" in open_files for inode in inodes)


def is_ready(running: Infergate) -> bool:
    return get(running.admin, "/readyz").status == 200


def reloaded(running: Infergate) -> dict[str, Any]:
    document: dict[str, Any] = post(running.admin, "/reload").json
    return document["last_reload"]


def requests(running: Infergate) -> float:
    """Return the number of counted inferences."""
    return watch.counted(running, operation="infer")


@contextmanager
def several(
    engine: str = "own", config: str = DEMO, count: int = 2, listeners: str = LISTENERS
) -> Iterator[Infergate]:
    """Run infergate with ``count`` workers, and wait until all are ready."""
    text = f"workers: {count}\nreadiness: strict\n{config}"
    with started_infergate(text, listeners, engine) as running:
        until(lambda: is_ready(running), "all workers are ready")
        assert len(workers(running)) == count
        try:
            yield running
        finally:
            while Client.opened:
                Client.opened.pop().close()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)

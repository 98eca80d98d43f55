"""A stand-in for the EndpointSlice API of a Kubernetes API server. Tests can make it fail.

It follows the API's documentation: pages with ``continue``, resource versions, bookmarks, ``ERROR``
events, ``Status`` objects and 410 Gone for versions before ``forget`` was called."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs

Slice = dict[str, Any]
_PATH = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"


def endpoint(address: str, *, zones: Sequence[str] = (), **conditions: bool | None) -> Slice:
    """Return an endpoint of a slice. Without ``conditions``, the endpoint is ready."""
    hints = {"hints": {"forZones": [{"name": zone} for zone in zones]}} if zones else {}
    return {"addresses": [address], "conditions": conditions or {"ready": True}, **hints}


def endpoint_slice(
    name: str,
    endpoints: Sequence[Slice] | None,
    ports: Mapping[str, int | None] | None = None,
    family: str = "IPv4",
) -> Slice:
    """Return a slice of the service ``triton``."""
    port_numbers = {"grpc": 8001} if ports is None else ports
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "triton"}},
        "addressType": family,
        "endpoints": None if endpoints is None else list(endpoints),
        "ports": [
            {"name": key, "port": port, "protocol": "TCP"} for key, port in port_numbers.items()
        ],
    }


def ready_slice(name: str, *addresses: str) -> Slice:
    return endpoint_slice(name, [endpoint(address) for address in addresses])


class ApiServer:
    """The stand-in. ``requests`` are the queries of all requests, in order."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._tls = tls
        self.slices: dict[str, Slice] = {}
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.token: str | None = None
        """The token that requests must have, or None if they need no token."""
        self.piece_bytes = 1 << 20
        """The maximum size in bytes of the chunks in which events are sent."""
        self.responses: list[tuple[int, bytes]] = []
        """The statuses and bodies of the next responses, which do not depend on the requests."""
        self.max_page: int | None = None
        self._version = 100
        self._forgotten = 0
        self._events: list[tuple[int, bytes]] = []
        self._changed = asyncio.Event()
        self._raw: list[bytes] = []
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    # ---- changes

    def put(self, item: Slice) -> None:
        """Create or replace a slice."""
        name = item["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = item
        self._add(kind, item)

    def delete(self, name: str) -> None:
        self._add("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        """Advance the version without a change, and report it in a bookmark."""
        self._add("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    def forget(self) -> None:
        """Advance the version, and respond to requests for older versions with 410 Gone."""
        self._version += 1
        self._forgotten = self._version

    def send_error(self, code: int) -> None:
        """Send an ERROR event to all watches."""
        self._send(_line("ERROR", _status(code)))

    def send_raw(self, data: bytes) -> None:
        """Send ``data`` to all watches."""
        self._send(data)

    def break_connections(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    @property
    def watch_count(self) -> int:
        """The number of watches that have been requested."""
        return sum("watch" in query for query in self.requests)

    @property
    def list_count(self) -> int:
        """The number of requested lists, without their further pages."""
        return sum("watch" not in query and "continue" not in query for query in self.requests)

    def _add(self, kind: str, item: Slice) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, _line(kind, item)))
        self._notify()

    def _send(self, data: bytes) -> None:
        self._raw.append(data)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- serving

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ApiServer]:
        """Serve until the block ends."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def start(self) -> None:
        """Listen on the port of the previous ``start``, or on a free port."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and break all connections."""
        assert self._server is not None
        self._server.close()
        self.break_connections()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                    await self._respond(head, reader, writer)
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _respond(
        self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target = head.split(" ")[1]
        path, _, query_text = target.partition("?")
        query = {key.lower(): values[0] for key, values in parse_qs(query_text).items()}
        self.requests.append(query)
        _, _, token = head.partition("authorization: bearer ")
        self.tokens.append(token.partition("\r\n")[0])
        if self.responses:
            return _write(writer, *self.responses.pop(0))
        if self.token is not None and self.tokens[-1] != self.token:
            return _write(writer, 401, json.dumps(_status(401)).encode())
        if path != _PATH or query.get("labelselector") != "kubernetes.io/service-name=triton":
            return _write(writer, 403, json.dumps(_status(403)).encode())
        if "watch" in query:
            at_eof = asyncio.create_task(self._notify_at_eof(reader))
            try:
                return await self._watch(query, reader, writer)
            finally:
                at_eof.cancel()
        return self._list(query, writer)

    def _list(self, query: Mapping[str, str], writer: asyncio.StreamWriter) -> None:
        version, _, start = query.get("continue", f"{self._version}:0").partition(":")
        if int(version) < self._forgotten:
            return _write(writer, 410, json.dumps(_status(410)).encode())
        limit = min(int(query["limit"]), self.max_page or 1000)
        names = sorted(self.slices)
        end = int(start) + limit
        metadata = {"resourceVersion": version}
        if end < len(names):
            metadata["continue"] = f"{version}:{end}"
        items = [self.slices[name] for name in names[int(start) : end]]
        body = json.dumps({"kind": "EndpointSliceList", "metadata": metadata, "items": items})
        return _write(writer, 200, body.encode())

    async def _notify_at_eof(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            await reader.read()
        self._notify()

    async def _watch(
        self, query: Mapping[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert query["allowwatchbookmarks"] == "true"
        version, raw_sent = int(query["resourceversion"]), len(self._raw)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        expired = version < self._forgotten
        with suppress(TimeoutError):
            async with asyncio.timeout(int(query["timeoutseconds"])):
                if expired:
                    await self._write_event(_line("ERROR", _status(410)), writer)
                while not expired:
                    changed = self._changed
                    for number, line in self._events:
                        if number > version:
                            await self._write_event(line, writer)
                            version = number
                    for raw in self._raw[raw_sent:]:
                        await self._write_event(raw, writer)
                    raw_sent = len(self._raw)
                    if reader.at_eof() or writer.transport.is_closing():
                        return
                    await changed.wait()
        writer.write(b"0\r\n\r\n")

    async def _write_event(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(line), self.piece_bytes):
            piece = line[start : start + self.piece_bytes]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)


def _write(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)


def _status(code: int) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "message": f"message {code}"}


def _line(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"

"""Recorded messages of a real server (v1.9.0) and its real client.

Each line of ``captures/*.jsonl`` is one case; its bytes are written as latin-1 text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("captures")


@dataclass(frozen=True)
class Exchange:
    """An HTTP exchange; ``response`` is empty if the server closed the connection without one."""

    name: str
    request: bytes
    response: bytes
    closed: bool

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """A gRPC call: its serialized messages and its status."""

    name: str
    method: str
    requests: tuple[bytes, ...]
    responses: tuple[bytes, ...]
    code: str
    details: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class RecordedConnection:
    """One TCP connection of the real client, named protocol_scenario.connection."""

    name: str
    sent: bytes
    received: bytes

    def __str__(self) -> str:
        return self.name


def exchanges(kind: str = "http") -> list[Exchange]:
    """Return all HTTP exchanges in order. The kind ``http_explicit`` has the exchanges with
    explicit model control."""
    return [
        Exchange(each["name"], _bytes(each["request"]), _bytes(each["response"]), each["closed"])
        for each in _lines(kind)
    ]


def calls() -> list[Call]:
    return [
        Call(
            each["name"],
            each["method"],
            tuple(map(_bytes, each["requests"])),
            tuple(map(_bytes, each["responses"])) if each["code"] == "OK" else (),
            each["code"],
            each["details"],
        )
        for each in _lines("grpc")
    ]


def recorded_connections(protocol: str) -> list[RecordedConnection]:
    """Return all connections of the real client over ``http`` or ``grpc``, in order."""
    return [
        RecordedConnection(each["name"], _bytes(each["sent"]), _bytes(each["received"]))
        for each in _lines("client")
        if each["name"].startswith(protocol)
    ]


def _lines(name: str) -> Iterator[Any]:
    with (_FOLDER / f"{name}.jsonl").open() as lines:
        yield from map(json.loads, lines)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")

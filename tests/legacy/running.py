"""Starts the legacy server as a process for a test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.support.process import Launch, free_ports, started

_TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class LegacyServer:
    """A running legacy server. ``http`` and ``grpc`` are each ``host:port``."""

    http: str
    grpc: str
    pid: int
    log: Path

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests received so far. After a crash, the last entry is its reason."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]


@contextmanager
def started_legacy(*options: str, ports: Sequence[int] = ()) -> Iterator[LegacyServer]:
    """Run ``python -m legacy.server`` on ``ports`` (HTTP, gRPC) or on free ports."""

    def prepare(_folder: Path) -> Launch:
        http, grpc = ports or free_ports(2)
        argv = [sys.executable, "-m", "legacy.server", "--http", str(http), "--grpc", str(grpc)]
        paths = [str(_TESTS), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return Launch("legacy", [*argv, *options], env, [http, grpc], "/api/health/live")

    with started(prepare) as running:
        yield LegacyServer(*running.addresses, running.pid, running.log)

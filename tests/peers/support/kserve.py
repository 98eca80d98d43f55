"""A real KServe model server with the models of ``peers.models.kserve``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.models import kserve as sources

from .installed import Installed, install
from .process import Launch, free_ports, started

_SERVER = Path(sources.__file__).parent / "server.py"


@dataclass(frozen=True)
class KServe:
    """A running KServe. ``http`` and ``grpc`` are each ``host:port``."""

    http: str
    grpc: str
    pid: int
    log: Path


def prepare_kserve() -> Installed:
    """Install KServe unless it is there already."""
    return install("kserve", ("kserve==0.21.0",))


@contextmanager
def started_kserve() -> Iterator[KServe]:
    """A KServe with all models loaded, until the block is left."""
    peer = prepare_kserve()

    def prepare(_folder: Path) -> Launch:
        http, grpc = free_ports(2)
        return Launch(
            "KServe",
            [str(peer.python), str(_SERVER), "--http_port", str(http), "--grpc_port", str(grpc)],
            {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            [http, grpc],
        )

    with started(prepare) as running:
        yield KServe(*running.addresses, running.pid, running.log)

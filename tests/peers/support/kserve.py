"""Installs and runs KServe: model servers, a transformer, the SDK as a client, and a receiver of
CloudEvents. Their programs are in ``peers.models.kserve``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.models import kserve as kserve_programs

from .installed import Installed, install
from .process import Launch, free_ports, scenario_results, started

_PROGRAMS = Path(kserve_programs.__file__).parent


@dataclass(frozen=True)
class KServe:
    """A KServe server. ``http`` and ``grpc`` are each ``host:port``."""

    http: str
    grpc: str
    pid: int
    log: Path


def prepare_kserve() -> Installed:
    """Install KServe if it is missing."""
    return install("kserve", ("kserve==0.21.0",))


def started_kserve() -> AbstractContextManager[KServe]:
    """Run a KServe server with the models of ``server.py``."""
    return _started("server.py")


def started_kserve_v1() -> AbstractContextManager[KServe]:
    """Run a KServe server with the models of ``v1_server.py``."""
    return _started("v1_server.py")


def started_transformer(predictor: str, protocol: str) -> AbstractContextManager[KServe]:
    """Run a KServe transformer in front of ``predictor`` (``host:port``), which it calls over
    ``protocol`` (``v2`` or ``grpc-v2``). It is ready when the predictor is ready."""
    options = ["--predictor_host", predictor, "--predictor_protocol", protocol]
    return _started("transformer.py", *options, "--enable_predictor_health_check")


@contextmanager
def started_event_display() -> Iterator[str]:
    """Run a receiver of CloudEvents with the CloudEvents SDK, and yield its ``host:port``."""
    peer = prepare_kserve()

    def prepare(_folder: Path) -> Launch:
        (port,) = free_ports(1)
        argv = [str(peer.python), str(_PROGRAMS / "event_display.py"), str(port)]
        return Launch("event_display", argv, dict(os.environ), [port])

    with started(prepare) as running:
        yield running.addresses[0]


@contextmanager
def _started(program: str, *options: str) -> Iterator[KServe]:
    peer = prepare_kserve()

    def prepare(_folder: Path) -> Launch:
        http, grpc = free_ports(2)
        ports = ["--http_port", str(http), "--grpc_port", str(grpc)]
        return Launch(
            f"KServe {program}",
            [str(peer.python), str(_PROGRAMS / program), *ports, *options],
            {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            [http, grpc],
        )

    with started(prepare) as running:
        yield KServe(*running.addresses, running.pid, running.log)


def kserve_v1_report(http: str, model: str, rows: object) -> dict[str, Any]:
    """Return the results of the scenarios of ``v1_client.py``."""
    program = _PROGRAMS / "v1_client.py"
    return scenario_results(prepare_kserve().python, program, http, model, json.dumps(rows))


def kserve_report(http: str, grpc: str) -> dict[str, Any]:
    """Return the results of the scenarios of ``client.py``."""
    return scenario_results(prepare_kserve().python, _PROGRAMS / "client.py", http, grpc)

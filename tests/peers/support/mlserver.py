"""A real MLServer with the models of ``peers.models.mlserver``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.models import mlserver as models

from .installed import Installed, install
from .process import Launch, free_ports, started

_SOURCES = Path(models.__file__).parent
_MODELS = {
    "identity": "identity.Identity",
    "simple": "sum_difference.SumDifference",
    "fail": "fail.Fail",
    "count": "count.Count",
}


@dataclass(frozen=True)
class MLServer:
    """A running MLServer. ``http`` and ``grpc`` are each ``host:port``."""

    http: str
    grpc: str
    pid: int
    log: Path


def prepare_mlserver() -> Installed:
    """Install MLServer if it is missing."""
    return install("mlserver", ("mlserver==1.7.1",))


@contextmanager
def started_mlserver() -> Iterator[MLServer]:
    """Run an MLServer with all models loaded."""
    peer = prepare_mlserver()

    def prepare(folder: Path) -> Launch:
        http, grpc, metrics = free_ports(3)
        settings = {
            "host": "127.0.0.1",
            "http_port": http,
            "grpc_port": grpc,
            "metrics_port": metrics,
            "parallel_workers": 0,
        }
        _write_models(folder, settings)
        return Launch(
            "MLServer",
            [str(peer.python), "-m", "mlserver.cli.main", "start", str(folder)],
            {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            [http, grpc],
        )

    with started(prepare) as running:
        yield MLServer(*running.addresses, running.pid, running.log)


def _write_models(folder: Path, settings: dict[str, object]) -> None:
    (folder / "settings.json").write_text(json.dumps(settings))
    for source in _SOURCES.glob("*.py"):
        shutil.copy(source, folder)
    for name, implementation in _MODELS.items():
        (folder / name).mkdir()
        model = {"name": name, "implementation": implementation}
        (folder / name / "model-settings.json").write_text(json.dumps(model))

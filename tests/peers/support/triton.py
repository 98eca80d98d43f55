"""A real Triton Inference Server on the CPU, with the models of ``peers.models.triton``.

The wheel of nvidia-pytriton contains the server. Its python backend also needs a stub for the
interpreter's version, numpy below 2, and the interpreter's shared library.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peers.models.triton.models import write_repository

from .installed import Installed, install
from .libpython import VERSION, library_path
from .process import Launch, free_ports, started

_SERVER = "nvidia-pytriton==0.7.0"
_SHARED_MEMORY = Path("/dev/shm")
_numbers = itertools.count()
"""Numbers of this process's Tritons, for the names of their shared memory."""


@dataclass(frozen=True)
class Triton:
    """A running Triton. ``http``, ``grpc`` and ``metrics`` are each ``host:port``."""

    http: str
    grpc: str
    metrics: str
    pid: int
    log: Path


def prepare_triton() -> Installed:
    """Install Triton if it is missing."""
    return install("triton", ("numpy<2",), bare=(_SERVER,), finish=_complete)


def _complete(peer: Installed) -> None:
    """Copy the stub for this interpreter beside the python backend."""
    wheel = _wheel(peer)
    stub = wheel / "python_backend_stubs" / VERSION / "triton_python_backend_stub"
    if not stub.exists():
        known = ", ".join(sorted(p.name for p in (wheel / "python_backend_stubs").iterdir()))
        raise RuntimeError(f"{_SERVER} has no stub for Python {VERSION}, only for {known}")
    shutil.copytree(wheel / "backends", peer.folder / "backends")
    shutil.copy(stub, peer.folder / "backends" / "python")
    library_path(_library(peer))  # downloaded now if it is missing


@contextmanager
def started_triton(
    models: Sequence[str] = ("*",), ports: Sequence[int] | None = None
) -> Iterator[Triton]:
    """Run a Triton with these models loaded (``*`` is all) on ``ports`` for HTTP, gRPC and metrics,
    or on free ports."""
    peer = prepare_triton()
    mark = f"infergate_{os.getpid()}_{next(_numbers)}_"

    def prepare(folder: Path) -> Launch:
        repository = folder / "models"
        repository.mkdir()
        write_repository(repository)
        chosen = ports or free_ports(3)
        argv = [*_argv(peer, repository, chosen, mark), *(f"--load-model={m}" for m in models)]
        return Launch("Triton", argv, _environment(peer), chosen)

    try:
        with started(prepare) as running:
            yield Triton(*running.addresses, running.pid, running.log)
    finally:
        for left in _SHARED_MEMORY.glob(f"{mark}*"):
            left.unlink(missing_ok=True)


def _wheel(peer: Installed) -> Path:
    return peer.site_packages / "pytriton" / "tritonserver"


def _library(peer: Installed) -> Path:
    return peer.folder / "libpython"


def _argv(peer: Installed, models: Path, ports: Sequence[int], mark: str) -> list[str]:
    http, grpc, metrics = map(str, ports)
    return [
        str(_wheel(peer) / "bin" / "tritonserver"),
        f"--model-repository={models}",
        f"--backend-directory={peer.folder / 'backends'}",
        f"--cache-directory={_wheel(peer) / 'caches'}",
        f"--backend-config=python,shm-region-prefix-name={mark}",
        "--http-address=127.0.0.1", "--http-port", http,
        "--grpc-address=127.0.0.1", "--grpc-port", grpc,
        "--metrics-address=127.0.0.1", "--metrics-port", metrics,
        "--allow-gpu-metrics=false",
        "--model-control-mode=explicit",
        "--exit-timeout-secs=5",
        "--log-info=false",
    ]  # fmt: skip


def _environment(peer: Installed) -> dict[str, str]:
    libraries = [library_path(_library(peer)), str(peer.site_packages / "nvidia_pytriton.libs")]
    return {
        **os.environ,
        "PATH": f"{peer.python.parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(peer.site_packages),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "OPENBLAS_NUM_THREADS": "1",  # one process per model, so threads for each would be too many
    }

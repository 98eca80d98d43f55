"""Starts and stops infergate for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.support.process import Launch, free_ports, started


@dataclass(frozen=True)
class Infergate:
    """A running infergate. ``http``, ``grpc`` and ``admin`` are each ``host:port``."""

    http: str
    grpc: str
    admin: str
    pid: int
    log: Path

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.admin}/metrics") as response:
            return str(response.read().decode())

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of ``event``. The log is standard output and standard error of all
        processes, so other lines need not be JSON, and the last line may be incomplete."""
        complete, _, _ = self.log.read_text(errors="replace").rpartition("\n")
        lines = [json.loads(each) for each in complete.split("\n") if each.startswith("{")]
        return [line for line in lines if line.get("event") == event]


LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}"}}
  admin: {{address: "127.0.0.1:{0}"}}
"""
"""Three listeners, with placeholders for their ports. Placeholder 0 is the admin listener's."""


ENGINE = os.environ.get("INFERGATE_ENGINE", "own")
"""The engine of tests that do not choose one."""


@contextmanager
def started_infergate(
    config: str,
    listeners: str = LISTENERS,
    engine: str = ENGINE,
    command: Sequence[str] = (sys.executable, "-m", "infergate"),
) -> Iterator[Infergate]:
    """Run ``infergate --config`` on free ports. ``config`` holds all sections except the listeners.

    The file is not watched by default, because the watch opens descriptors shortly after startup,
    and some tests count descriptors.
    """

    def prepare(folder: Path) -> Launch:
        ports = free_ports(3)
        file = folder / "routes.yaml"
        drain = "" if "drain:" in config else "drain: {delay: 0s}\n"
        unwatched = "" if "reload:" in config else "reload: {watch: false}\n"
        rest = drain + unwatched + config
        file.write_text(f"engine: {engine}\n" + listeners.format(*ports) + rest)
        argv = [*command, "--config", str(file), "--log-format", "json"]
        return Launch("infergate", argv, dict(os.environ), ports, ready="/healthz")

    with started(prepare) as running:
        admin, grpc, http = running.addresses
        yield Infergate(http, grpc, admin, running.pid, running.log)


def output_of(*argv: str | Path, cwd: Path | None = None, seconds: float = 800) -> str:
    """Run a command, which must succeed, and return its output."""
    done = subprocess.run(
        list(map(str, argv)), cwd=cwd, check=False, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, f"{argv}: {done.stdout[-4000:]}"
    return done.stdout

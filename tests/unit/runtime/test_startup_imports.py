"""Only the needed libraries are imported at startup, because others cost CPU time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, os, sys
from pathlib import Path

import infergate.cli
from infergate.config.tracked_files import TrackedFiles
from infergate.config.load import load
import infergate.runtime.serve
from infergate.cli.served_gateway import ServedGateway
from infergate.assembly.engines import load_engine
from infergate.runtime.config_history import ConfigHistory

config = load(Path(sys.argv[1]), os.environ, TrackedFiles())

async def serve():
    gateway = ServedGateway(config, ConfigHistory(None, ""))
    await gateway.start()
    await gateway.stop(0)

with asyncio.Runner(loop_factory=load_engine(config.engine).make_loop) as runner:
    runner.run(serve())
print(*{name.partition(".")[0] for name in sys.modules})
"""
CONFIG = """
listeners:
  http: {address: "127.0.0.1:0"}
  grpc: {address: "127.0.0.1:0"}
  admin: {address: "127.0.0.1:0"}
backends:
  translated: {protocol: v2-rest, endpoints: ["http://127.0.0.1:9"]}
  forwarded: {protocol: v2-grpc, endpoints: ["grpc://127.0.0.1:9"]}
routes:
  - {model: a, backend: translated}
  - {model: b, backend: forwarded}
"""
UNUSED = {
    "PIL",
    "aiohttp",
    "backports",
    "grpc",
    "jwt",
    "cryptography",
    "redis",
    "rich",
    "opentelemetry",
    "watchfiles",
}


def test_unused_libraries_are_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(CONFIG)
    argv = [sys.executable, "-c", PROGRAM, str(file)]
    finished = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    assert finished.returncode == 0, finished.stderr
    loaded = set(finished.stdout.split())
    assert {"infergate", "numpy", "httptools"} <= loaded
    assert not UNUSED & loaded

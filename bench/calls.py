"""``python -m bench.calls`` counts the calls that the gateway makes for a tiny request.

Each gateway runs under ``sys.setprofile``. h2load repeats the same request over one connection. The
table shows the Python calls and the calls of builtins per request, including the access log, the
metrics and the event loop's callbacks. ``--base`` adds an earlier revision, which runs
with the installed packages.

Unlike CPU, the number of calls does not depend on the load of the machine."""

import argparse
import json
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import PROJECT, load, servers
from .check import checked_out
from .comparisons import (
    ECHO_CASES,
    GRPC_TINY,
    JSON_TINY,
    LEGACY_ECHO_CASES,
    OLD_GRPC_TINY,
    OLD_HTTP_TINY,
    TINY,
    old_echo,
    proxied,
)
from .variants import Variant

_REQUESTS = 2000
_ROWS = (GRPC_TINY, JSON_TINY, OLD_GRPC_TINY, OLD_HTTP_TINY)
_SOCKET = "calls"
_COUNTER = """
import json, socket, sys, threading
from pathlib import Path

calls = {"call": 0, "c_call": 0}

def count(frame, event, argument):
    if event in calls:
        calls[event] += 1

def serve(listener):
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(json.dumps([*calls.values()]).encode())

path = Path(__file__).with_name("calls")
if not path.exists():  # a helper process is not counted
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    sys.setprofile(count)
"""
"""A module that Python imports at startup. It reports the calls of the first thread."""


def main(argv: Sequence[str]) -> int:
    """Print the table, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    parser.add_argument("--base", default="", help="an earlier revision")
    base = parser.parse_args(argv).base
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="infergate-calls-")))
        sources = {"now": PROJECT / "src"}
        if base:
            checkout = stack.enter_context(checked_out(base, folder / "baseline"))
            sources = {base: checkout / "src", **sources}
        gateways = stack.enter_context(_gateways(sources, folder))
        print(f"| Python calls + calls of builtins per request | {' | '.join(sources)} |")
        print(f"|---|{'---|' * len(sources)}")
        for row in _ROWS:
            counts = [_count(row, *each, folder) for each in gateways]
            print(f"| {row} | {' | '.join(f'{a:.1f} + {b:.1f}' for a, b in counts)} |")
    return 0


def _count(row: str, gateway: servers.Proxy, counter: Path, folder: Path) -> tuple[float, float]:
    """Return the calls per request. The first requests, which fill caches, are not counted."""
    make, case = {**ECHO_CASES, **LEGACY_ECHO_CASES}[row]
    contender = proxied(gateway, make, case, 0, "own")
    load.run(contender, _REQUESTS, load.Pace(connections=1), folder)
    before = _read(counter)
    load.run(contender, _REQUESTS, load.Pace(connections=1), folder)
    after = _read(counter)
    return (after[0] - before[0]) / _REQUESTS, (after[1] - before[1]) / _REQUESTS


def _read(counter: Path) -> list[int]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(counter))
        counts: list[int] = json.loads(connection.makefile().read())
    return counts


@contextmanager
def _gateways(
    sources: Mapping[str, Path], folder: Path
) -> Iterator[list[tuple[servers.Proxy, Path]]]:
    """Start a gateway for each source, and yield it with the socket that reports its calls."""
    with ExitStack() as stack:
        echo = stack.enter_context(servers.echo(TINY.response(), folder))
        urls = {TINY: f"grpc://{echo.addresses[0]}"}
        for row in (OLD_GRPC_TINY, OLD_HTTP_TINY):
            make, case = LEGACY_ECHO_CASES[row]
            _, urls[case] = stack.enter_context(old_echo(make, case, folder))
        gateways = []
        for number, source in enumerate(sources.values()):
            copy = folder / f"source-{number}"
            copy.mkdir()
            for entry in source.iterdir():
                (copy / entry.name).symlink_to(entry)
            (copy / "sitecustomize.py").write_text(_COUNTER)
            variant = Variant("own", "own", source=copy)
            gateway = servers.infergate(servers.routed(urls), variant, folder)
            gateways.append((stack.enter_context(gateway), copy / _SOCKET))
        yield gateways


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

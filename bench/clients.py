"""Commands of real gRPC clients that generate load."""

import shutil
import sys
from pathlib import Path

from peers.support.installed import peers_folder, run

_HERE = Path(__file__).parent
_GO_SOURCES = Path("/usr/share/gocode")
"""The folder in which Debian's packages install the sources of Go packages."""


def grpcio() -> tuple[str, ...]:
    """Return the command of the client with the gRPC library for Python."""
    return (sys.executable, str(_HERE / "grpcio_client.py"))


def grpc_go() -> tuple[str, ...]:
    """Return the command of the client with grpc-go, and compile the client if necessary. Raises
    RuntimeError if Go or grpc-go is missing, or if the compilation fails."""
    go = shutil.which("go")
    if not go or not (_GO_SOURCES / "src" / "google.golang.org" / "grpc").is_dir():
        raise RuntimeError(
            "Go or grpc-go is missing: sudo apt install golang-go golang-google-grpc-dev (Debian)"
        )
    source, folder = _HERE / "grpc_go_client.go", peers_folder() / "grpc-go"
    client = folder / "client"
    if not client.exists() or client.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"GO111MODULE": "off", "GOPATH": _GO_SOURCES, "GOCACHE": folder / "cache"}
        assigned = (f"{name}={value}" for name, value in settings.items())
        run("env", *assigned, go, "build", "-o", str(client), str(source))
    return (str(client),)

"""NVIDIA's own client of the legacy API, tensorrtserver 1.11.0, in a separate environment.

Its library needs OpenSSL 1.1, which current systems lack; the wheel psycopg2-binary 2.9.5 contains
it. The versions of protobuf, numpy and setuptools that it needs are incompatible with other peers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

from peers import legacy_client as client_package

from .installed import Installed, install, run
from .process import scenario_results

_CLIENT = Path(client_package.__file__).parent / "client.py"
_OPENSSL = "psycopg2-binary==2.9.5"
_LIBRARIES = ("libssl", "libcrypto")


def prepare_legacy_client() -> Installed:
    """Install the client if it is missing."""
    requirements = ("protobuf==3.20.3", "numpy<2", "setuptools<81", "future")
    bare = ("tensorrtserver==1.11.0",)
    return install("legacy-client", requirements, bare=bare, finish=_complete)


def _complete(peer: Installed) -> None:
    """Extract OpenSSL from the wheel under the names that the client's library loads."""
    folder = _libraries(peer)
    # The wheel is for one version of Python; its libraries work with all versions.
    run(str(peer.python), "-m", "pip", "download", "-q", "--disable-pip-version-check",
        "--no-deps", "--only-binary=:all:", "--python-version=3.11", f"--dest={folder}",
        _OPENSSL)  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as packed:
        for name in _LIBRARIES:
            (member,) = (
                each for each in packed.namelist() if Path(each).name.startswith(f"{name}-")
            )
            library = folder / Path(member).name  # the libraries load each other by these names
            library.write_bytes(packed.read(member))
            (folder / f"{name}.so.1.1").symlink_to(library.name)
    wheel.unlink()


def _libraries(peer: Installed) -> Path:
    return peer.folder / "openssl"


def legacy_client_report(protocol: str, address: str) -> dict[str, Any]:
    """Return the results of the scenarios of ``peers.legacy_client.client`` over ``http`` or
    ``grpc``."""
    peer = prepare_legacy_client()
    libraries = str(_libraries(peer))
    return scenario_results(peer.python, _CLIENT, protocol, address, LD_LIBRARY_PATH=libraries)

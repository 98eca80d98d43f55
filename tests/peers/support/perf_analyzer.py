"""NVIDIA's perf_analyzer, which measures servers of the V2 protocols.

The program is in the wheel of tritonclient 2.41.1. It needs NVIDIA's CUDA runtime, which a wheel
holds, and libb64, which Debian and Ubuntu have as a package: it is unpacked here, not installed,
so that a plain user can do it as well.
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
    "--stability-percentage=999",  # on a busy machine nothing is stable
    "--max-trials=10",
)


def prepare_perf_analyzer() -> Installed:
    """Install perf_analyzer unless it is there already."""
    return install("perf-analyzer", (_CUDA,), bare=(_CLIENT,), finish=_complete)


def _complete(peer: Installed) -> None:
    """Unpack libb64 where the system has none."""
    folder = peer.folder / "libraries"
    folder.mkdir()
    if ctypes.util.find_library("b64"):
        return
    try:
        run("apt-get", "download", _LIBRARY, cwd=folder)
    except RuntimeError:  # the system's lists are out of date: use lists of our own
        own = [f"--option=Dir::State={peer.folder}/apt", f"--option=Dir::Cache={peer.folder}/apt"]
        (peer.folder / "apt" / "lists" / "partial").mkdir(parents=True)
        run("apt-get", *own, "update")
        run("apt-get", *own, "download", _LIBRARY, cwd=folder)
    (package,) = folder.glob(f"{_LIBRARY}_*.deb")
    run("dpkg", "-x", str(package), str(folder))


def measured(address: str, model: str, *options: str) -> float:
    """The inferences a second that perf_analyzer measures of ``model``.

    Raises RuntimeError with its own words when it fails.
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
            raise RuntimeError(f"perf_analyzer ended with {done.returncode}:\n{done.stdout}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    return float(row["Inferences/Second"])

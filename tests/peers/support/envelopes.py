"""OpenAI's SDK, and MLflow's scoring client."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from peers import envelope_client

from .installed import Installed, install

_PROGRAMS = Path(envelope_client.__file__).parent
_SECONDS = 60


def prepare_openai() -> Installed:
    """Install OpenAI's SDK if it is missing."""
    return install("openai", ("openai==3.57.0",))


def prepare_mlflow() -> Installed:
    """Install MLflow's client if it is missing (400 MB)."""
    return install("mlflow", ("mlflow-skinny==3.17.2", "pandas", "requests", "scipy"))


def openai_report(address: str, model: str) -> dict[str, Any]:
    """Return the outcomes of the scenarios of ``envelope_client/openai_sdk.py``."""
    return _report(prepare_openai(), "openai_sdk.py", address, model)


def mlflow_report(address: str) -> dict[str, Any]:
    """Return the outcomes of the scenarios of ``envelope_client/mlflow_scoring.py``."""
    return _report(prepare_mlflow(), "mlflow_scoring.py", address)


def _report(peer: Installed, program: str, *arguments: str) -> dict[str, Any]:
    environment = {"PYTHONPATH": "", "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(peer.python), str(_PROGRAMS / program), *arguments],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{program} failed:\n{done.stdout}\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report

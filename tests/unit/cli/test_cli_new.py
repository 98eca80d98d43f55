"""``infergate new``: the generated packages, and errors for invalid names."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import infergate
from infergate.cli import main
from infergate.cli.new import KINDS, PackageError, generate_package


def test_the_tests_of_generated_packages_pass(tmp_path: Path) -> None:
    folders = [tmp_path / f"my-{kind}" for kind in KINDS]
    for kind in KINDS:
        assert main(["new", kind, f"my-{kind}", "--directory", str(tmp_path)]) == 0
    path = [str(Path(infergate.__file__).parents[1]), *(str(each / "src") for each in folders)]
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"),
            "--import-mode=importlib",
            *(str(each / "tests") for each in folders),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "9 passed" in finished.stdout


@pytest.mark.parametrize(
    ("kind", "name"), [("codec", "PLUGIN"), ("hook", "GuardDog"), ("transform", "GuardDog")]
)
def test_the_entry_point_names_an_object_of_the_package(
    kind: str, name: str, tmp_path: Path
) -> None:
    files = generate_package(kind, "guard-dog", tmp_path)
    project = tomllib.loads((tmp_path / "guard-dog" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][f"infergate.{kind}s"] == {"guard-dog": f"guard_dog:{name}"}
    source = (tmp_path / "guard-dog" / "src" / "guard_dog" / "__init__.py").read_text()
    assert f"\n{name} = " in source or f"class {name}(" in source
    assert not any("@" in str(file.relative_to(tmp_path)) for file in files)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (
            "route",
            "x",
            "unknown kind of plug-in 'route'; expected one of: codec, backend, hook, transform",
        ),
        ("hook", "../x", "is not a valid name"),
        ("hook", "x" * 41, "is not a valid name"),
        ("hook", "class", "is the name of a module"),
        ("hook", "json", "is the name of a module"),
        ("hook", "infergate", "is the name of a module"),
        ("hook", "numpy", "is the name of a module"),
        ("backend", "tensor-metadata", "would define the class TensorMetadata"),
        ("hook", "options", "would define the class Options"),
        ("codec", "graphpipe", "the protocol 'graphpipe' already exists"),
        ("hook", "existing", "already exists"),
    ],
)
def test_an_invalid_name_is_rejected(kind: str, name: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "existing").mkdir()
    with pytest.raises(PackageError, match=expected):
        generate_package(kind, name, tmp_path)


def test_invalid_operands_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "hook"]) == 2
    assert "expected a kind and a name" in capsys.readouterr().err
    assert main(["new", "hook", "Guard"]) == 2
    assert "'Guard' is not a valid name" in capsys.readouterr().err

"""The image's pinned packages satisfy pyproject.toml, and all version numbers agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infergate import __version__

PROJECT = Path(__file__).parents[3]
EXTRAS = ("images", "jwt", "otel", "redis")
PINNED = re.compile(
    r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def pinned() -> dict[str, str]:
    text = (PROJECT / "deploy" / "docker" / "requirements.txt").read_text(encoding="utf-8")
    found = {canonicalize_name(name): version for name, version, _ in PINNED.findall(text)}
    assert len(found) == text.count("==")  # each with its hashes
    return found


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"]]
    for extra in EXTRAS:
        required += project["optional-dependencies"][extra]
    versions = pinned()
    environment = {**default_environment(), "sys_platform": "linux"}
    for requirement in map(Requirement, required):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert requirement.specifier.contains(versions[name]), requirement


def test_every_requirement_has_a_lower_bound() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]
    for requirement in map(Requirement, required):
        assert [each.operator for each in requirement.specifier] == [">="], requirement


def test_the_deployed_image_has_this_version() -> None:
    base = PROJECT / "deploy" / "kubernetes" / "base" / "kustomization.yaml"
    (image,) = yaml.safe_load(base.read_text(encoding="utf-8"))["images"]
    assert image["newTag"] == __version__

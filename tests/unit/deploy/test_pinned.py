"""Pinned packages, versions, the image's labels and base, and the project's files agree."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infergate import __version__

PROJECT = Path(__file__).parents[3]
PROJECT_TABLE = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("images", "jwt", "otel", "redis")
PIN = re.compile(
    r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def pinned_versions() -> dict[str, str]:
    text = (PROJECT / "deploy" / "docker" / "requirements.txt").read_text(encoding="utf-8")
    versions = {canonicalize_name(name): version for name, version, _ in PIN.findall(text)}
    assert len(versions) == text.count("==")  # every version has hashes
    return versions


def requirements() -> list[Requirement]:
    extras = PROJECT_TABLE["optional-dependencies"]
    texts = [*PROJECT_TABLE["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]
    return list(map(Requirement, texts))


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    versions = pinned_versions()
    environment = {**default_environment(), "sys_platform": "linux"}
    for requirement in requirements():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert requirement.specifier.contains(versions[name]), requirement


def test_every_requirement_has_a_lower_bound() -> None:
    for requirement in requirements():
        assert [each.operator for each in requirement.specifier] == [">="], requirement


def test_the_deployed_image_has_this_version() -> None:
    base = PROJECT / "deploy" / "kubernetes" / "base" / "kustomization.yaml"
    (image,) = yaml.safe_load(base.read_text(encoding="utf-8"))["images"]
    assert image["newTag"] == __version__
    chart = PROJECT / "deploy" / "helm" / "infergate" / "Chart.yaml"
    assert yaml.safe_load(chart.read_text(encoding="utf-8"))["appVersion"] == __version__


def test_the_package_and_the_image_name_the_same_project() -> None:
    (author,) = PROJECT_TABLE["authors"]
    image = (PROJECT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', image))
    assert labels["authors"] == author["name"]
    assert labels["source"] == PROJECT_TABLE["urls"]["Source"]
    assert labels["licenses"] == PROJECT_TABLE["license"]
    changing = {"version", "revision", "created", "base.name", "base.digest"}
    declared = set(re.findall(r"\b([A-Z_]+)=", image[image.index("ARG VERSION") :].split("\n")[0]))
    assert {labels[each] for each in changing} == {f"${{{each}}}" for each in declared}
    schema = json.loads((PROJECT / "docs" / "routes.schema.json").read_text(encoding="utf-8"))
    assert schema["$id"].startswith("https://")


def test_dependabot_issue_forms_and_pre_commit_hooks_are_valid() -> None:
    folder = PROJECT / ".github"
    updates = yaml.safe_load((folder / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert {each["package-ecosystem"] for each in updates} == {"github-actions", "docker", "pip"}
    for update in updates:
        assert (PROJECT / update["directory"].lstrip("/")).is_dir()
    for form in sorted((folder / "ISSUE_TEMPLATE").glob("[!c]*.yml")):
        fields = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert fields["name"]
        assert fields["description"]
        assert any(
            each["validations"]["required"] for each in fields["body"] if "validations" in each
        )
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"].split() for repo in hooks["repos"] for hook in repo["hooks"]]
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for program, *arguments in entries:
        assert program.replace(".venv/bin/", "$(BIN)/") in makefile
        assert all((PROJECT / each).exists() for each in arguments if "/" in each)


def test_all_architectures_use_the_base_image_of_one_lookup() -> None:
    text = (PROJECT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    (lookup,) = (step for step in jobs["build"]["steps"] if step.get("id") == "base")
    assert "strategy" not in jobs["build"], "the job build must run only once"
    assert text.count("{{.Manifest.Digest}}") == lookup["run"].count("{{.Manifest.Digest}}") == 1
    outputs = {
        name: re.findall(r"steps\.base\.outputs\.(\w+)", value)
        for name, value in jobs["build"]["outputs"].items()
    }
    written = set(re.findall(r'echo "(\w+)=', lookup["run"]))
    assert {each for (each,) in outputs.values()} == written
    image = jobs["image"]
    assert image["needs"] == "build"
    (push,) = (step for step in image["steps"] if step.get("id") == "push")
    arguments = dict(line.split("=", 1) for line in push["with"]["build-args"].splitlines())
    used = [arguments[name] for name in ("PYTHON", "BASE_DIGEST")]
    assert used == [f"${{{{ needs.build.outputs.{name} }}}}" for name in outputs]


def test_the_base_of_the_image_is_named_once() -> None:
    image = (PROJECT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^FROM (\S+) AS base$", image, re.MULTILINE)
    assert image.index("\nARG PYTHON=base\n") < image.index("\nFROM "), "ARG must precede FROM"
    assert re.findall(r"^FROM \$\{PYTHON\}", image, re.MULTILINE) == ["FROM ${PYTHON}"] * 2
    (name,) = re.findall(r"BASE_NAME=docker.io/library/(\S+)", image)
    assert base.partition("@")[0] == name
    for file in (PROJECT / "Makefile", PROJECT / ".github" / "workflows" / "release.yml"):
        text = file.read_text(encoding="utf-8")
        assert name not in text
        assert r"s/^FROM \(.*\) AS base" in text

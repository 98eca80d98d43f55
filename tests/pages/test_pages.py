"""Runs the commands of every page, and tests the pages' blocks and the helpers of this folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from infergate.config.access import AccessConfig
from infergate.config.load import parse
from pages.blocks import COMMANDS, Block, blocks_of
from pages.isolated import can_isolate_network
from pages.script_helpers import printed
from pages.shell import run
from peers.support.installed import PROJECT

PAGES = sorted(
    [
        *PROJECT.glob("*.md"),
        *PROJECT.glob("docs/*.md"),
        *PROJECT.glob("deploy/**/*.md"),
        *PROJECT.glob("examples/**/*.md"),
    ]
)
QUICK_PAGES = ("README.md", "docs/tutorial.md")
"""The pages that ``make test`` runs, because newcomers follow them."""
LANGUAGES = {COMMANDS, "text", "yaml", "json", "python"}
PROGRAMS = {"grpcurl", "helm", "kubectl", "openssl"}
"""Needs of a block that are met if the program is installed."""
OPTIONAL_NEEDS = {
    "cluster", "docker", "gpu", "minutes", "network", "systemctl", "triton", "trtserver",
}  # fmt: skip
"""Needs of a block that are met only if INFERGATE_PAGES_MAY names them."""
ALLOWED_NEEDS = frozenset(os.environ.get("INFERGATE_PAGES_MAY", "").replace(",", " ").split())
ISOLATED = (sys.executable, "-m", "pages.isolated")
PATHS = re.compile(
    r"(?<![\w./~-])(?:bench|config|deploy|docs|examples|fbs|proto|src|tests)/[\w./-]*\w"
)
STARTED = re.compile(r"^ *(?:\w+=\S+ )*infergate .*(?<![&|>\\])&[ \t]*(?:#.*)?$")
"""Matches a command that starts a gateway in the background."""
WAITS = re.compile("until (?:grep|curl)|health --wait|curl .*--retry-connrefused")


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def may_run(block: Block) -> bool:
    installed = {need for need in block.needs & PROGRAMS if shutil.which(need)}
    return block.needs <= ALLOWED_NEEDS | installed


def is_skipped(block: Block) -> bool:
    return block.is_run and not may_run(block)


RUN = [
    pytest.param(page, marks=[] if name_of(page) in QUICK_PAGES else pytest.mark.peers)
    for page in PAGES
    if any(block.is_run and may_run(block) for block in blocks_of(page))
]
SKIPPED = [page for page in PAGES if any(map(is_skipped, blocks_of(page)))]


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_commands_print_the_output_shown(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path)


def check(page: Path, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    blocks = [block for block in blocks_of(page) if may_run(block)]
    if not ALLOWED_NEEDS and not can_isolate_network():
        pytest.skip("needs a network namespace, which requires root or user namespaces")
    result = run(blocks, folder, () if ALLOWED_NEEDS else ISOLATED, environment)
    assert result.code == 0, (
        f"{name_of(page)}:{result.line}: exit code {result.code}\n{result.output}"
    )


@pytest.mark.peers
def test_the_migration_page_works_on_all_interfaces(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.name == "migrate-from-trt.md")
    check(page, tmp_path, {"INFERGATE_HOST": "0.0.0.0"})


@pytest.mark.parametrize("page", SKIPPED, ids=name_of)
def test_skipped_commands_are_valid(page: Path) -> None:
    skipped = [block for block in blocks_of(page) if is_skipped(block)]
    bash = [shutil.which("bash") or "bash", "-n"]
    for block in skipped:
        assert block.needs <= PROGRAMS | OPTIONAL_NEEDS, f"line {block.line}: unknown need"
        if block.language == COMMANDS:
            result = subprocess.run(
                bash, input=block.text, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, (block.line, result.stderr)
        for path in PATHS.findall(block.text):
            assert (PROJECT / path).exists(), (block.line, path)
    needs = sorted({need for block in skipped for need in block.needs - ALLOWED_NEEDS})
    lines = ", ".join(str(block.line) for block in skipped)
    pytest.skip(f"{name_of(page)}: not run, lines {lines}: needs {', '.join(needs)}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_valid(page: Path) -> None:
    """Partial configurations are completed before they are parsed."""
    for block in blocks_of(page):
        where = f"{name_of(page)}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: unknown language '{block.language}'"
        if block.language == COMMANDS:
            assert not block.text.startswith("$ "), f"{where}: the command begins with a prompt"
        if block.language == "json":
            json.loads(block.text)
        if block.language == "yaml" and block.file is None:
            parse(complete_config(block.text), where, {})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_that_starts_a_gateway_waits_for_it(page: Path) -> None:
    for block in blocks_of(page):
        lines = block.text.splitlines() if block.language == COMMANDS else []
        for number, line in enumerate(lines):
            if STARTED.search(line):
                rest = "\n".join(lines[number + 1 :])
                assert WAITS.search(rest), f"{name_of(page)}:{block.line + number}: {line}"


IDENTITIES = {
    "keys": [{"name": "ci", "sha256": "0" * 64}, {"name": "batch", "sha256": "1" * 64}],
    "jwt": {
        "corporate": {"issuer": "https://idp", "audiences": ["us"], "jwks_url": "https://idp/keys"}
    },
    "rules": [{"who": ["*", "anonymous"]}],
}


def complete_config(part: str) -> str:
    """Return a complete routes.yaml. A part with only keys of ``access`` is that section, and gets
    ``IDENTITIES``. A missing backend or route gets a default."""
    config = yaml.safe_load(part)
    if config.keys() <= AccessConfig.model_fields.keys():
        config = {"access": {**IDENTITIES, **config}}
    config.setdefault("backends", {"demo": {"protocol": "builtin"}})
    config.setdefault("routes", [{"model": "*", "backend": next(iter(config["backends"]))}])
    return yaml.safe_dump(config)


# ---- tests of the helpers

PAGE = """
```yaml
# a/b.yaml
a: 1
```

- <!-- needs: docker, network -->
  ```sh
  docker run it
  ```

```sh
cat a/b.yaml
```

```text
…
a: 1
```

```python
print(2)
```
```text
3
```

Something.

```text
alone
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    file.write_text(PAGE)
    return file


def test_a_page_is_parsed(page: Path) -> None:
    config, docker, cat, program, output = blocks_of(page)
    assert (config.file, config.text.splitlines()[1]) == ("a/b.yaml", "a: 1")
    assert (docker.text, docker.needs) == ("docker run it\n", {"docker", "network"})
    assert (cat.text, cat.prints, cat.needs) == ("cat a/b.yaml\n", "…\na: 1\n", frozenset())
    assert PAGE.splitlines()[cat.line - 1] == "cat a/b.yaml"
    assert (program.is_run, program.prints) == (True, "3\n")
    assert (output.language, output.is_run) == ("text", False)


def test_different_output_fails_with_the_line_of_its_block(page: Path, tmp_path: Path) -> None:
    config, _, cat, program, _ = blocks_of(page)
    folder = tmp_path / "folder"
    folder.mkdir()
    result = run([config, cat, program], folder)
    assert result.code
    assert result.line == program.line
    assert "2\n\n*** differs from the output on the page:\n3" in result.output


def test_a_command_that_fails_ends_the_page(tmp_path: Path) -> None:
    result = run([Block(COMMANDS, "false\n", 7), Block(COMMANDS, "true\n", 9)], tmp_path)
    assert (result.code, result.line) == (1, 7)


def test_an_unknown_make_target_fails(tmp_path: Path) -> None:
    assert run([Block(COMMANDS, "make\nmake test ARGS=1\nmake nothing\n", 1)], tmp_path).code == 2


@pytest.mark.parametrize(
    ("expected", "matches"),
    [
        ("one\ntwo", True), ("…", True), ("one\n…", True), ("o…e\ntw…", True), ("…\ntwo\n…", True),
        ("one", False), ("two\none", False), ("o…x\ntwo", False), ("one two", False),
    ],
)  # fmt: skip
def test_an_ellipsis_matches_any_text_or_lines(expected: str, matches: bool) -> None:
    assert printed("one  \ntwo\n", expected) is matches

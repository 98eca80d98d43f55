"""Runs a page's commands."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pages.blocks import COMMANDS, Block
from peers.support.installed import PROJECT

COPIED: Final = ("config", "deploy")
_SECONDS: Final = 240
_MAKE: Final = f"""\
#!/bin/bash
# Only checks that the targets exist, because a page must not run the whole test suite.
exec {shutil.which("make")} --no-print-directory -n -C {PROJECT} "${{@:-help}}" > /dev/null
"""
_TAIL_LINES: Final = 40


@dataclass(frozen=True)
class PageResult:
    """The result of a page's commands. ``line`` is the page's line of the last block that began, or
    0. ``output`` holds the last lines of each block's output."""

    code: int
    line: int
    output: str


def run(
    blocks: Sequence[Block],
    folder: Path,
    argv: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> PageResult:
    """Run ``blocks`` in the empty ``folder``. ``argv`` is a command that starts the shell, and
    ``environment`` is added to the minimal environment."""
    for name in COPIED:
        shutil.copytree(PROJECT / name, folder / name)
    work = folder / ".page"
    (work / "bin").mkdir(parents=True)
    _write_program(work / "bin" / "make", _MAKE)
    script = work / "script.sh"
    script.write_text("\n".join(_script(blocks, work)))
    with (work / "output").open("wb") as output:
        process = subprocess.Popen(
            [*argv, shutil.which("bash") or "bash", str(script)],
            cwd=folder,
            env={**_environment(folder, work / "bin"), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        _end_processes(process.pid)
        process.wait()
    return _result(code, work)


def _end_processes(group: int) -> None:
    """End all processes of a page. A second signal makes infergate skip its drain and still remove
    its objects in /dev/shm."""
    with contextlib.suppress(ProcessLookupError):
        for number, seconds in ((signal.SIGTERM, 0.2), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            os.killpg(group, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(0.02)
                os.killpg(group, 0)  # raises an error when no process is left


def _result(code: int, work: Path) -> PageResult:
    outputs = sorted(work.glob("*.output"), key=lambda file: int(file.stem))
    output = [(work / "output").read_text(errors="replace")]
    for file in outputs:
        lines = file.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        output += [f"--- output of the block on line {file.stem}:", *lines]
    return PageResult(code, int(outputs[-1].stem) if outputs else 0, "\n".join(output))


def _environment(folder: Path, programs: Path) -> dict[str, str]:
    """Return a minimal environment, without proxies and settings of the test run."""
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        "HOME": str(folder),
        "TMPDIR": str(folder / ".page"),
        "LC_ALL": "C.UTF-8",
    }


def _write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def _script(blocks: Sequence[Block], work: Path) -> Iterator[str]:
    yield "set -eu"
    helpers = f"{sys.executable} -m pages.script_helpers"
    for block in blocks:
        if block.file is not None:
            yield _copy_command(block.text, work / f"{block.line}.file", block.file)
        if not block.is_run:
            continue
        output = work / f"{block.line}.output"
        yield f"exec > {output} 2>&1"
        if block.language == COMMANDS:
            yield block.text.rstrip("\n")
        else:
            program = work / f"{block.line}.py"
            program.write_text(block.text)
            yield f"{sys.executable} - < {program}"
        if block.prints is not None:
            expected = work / f"{block.line}.expected"
            expected.write_text(block.prints)
            yield f"{helpers} printed {output} {expected}"


def _copy_command(text: str, source: Path, name: str) -> str:
    source.write_text(text)
    return f"mkdir -p $(dirname {name}) && cp {source} {name}"

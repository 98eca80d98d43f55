"""Build an image from its Dockerfile without docker, run the image, and report the results.

``python -m peers.image_steps PROJECT SCRATCH``, in its own mount and process namespaces (unshare),
prints JSON.

The base image is this machine's file system under an overlay that receives all writes. This machine
must be a Debian with /usr/bin/python3, like the base image in the Dockerfile. Each stage has such a
root, in which its steps run. The image runs in the last stage's root, which is read-only, without
any capability, as the image's user, and in a separate network namespace.
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NEW_NETWORK = 0x40000000
_DEVICES = ("null", "zero", "random", "urandom")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_UNPRIVILEGED = ("--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs")
_SECONDS = 100.0


@dataclass
class Stage:
    """A stage in the folder ``root``; ``metadata`` has its last CMD, USER and so on."""

    root: Path
    env: dict[str, str]
    folder: str = "/"
    metadata: dict[str, str] = field(default_factory=dict)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction and its arguments, with continuation lines joined."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in code.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), rest.strip()


def run(*argv: str) -> None:
    result = subprocess.run(
        argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert result.returncode == 0, f"{argv}: {result.stdout[-4000:]}"


def in_root(stage: Stage, *argv: str) -> list[str]:
    """Return the command line that runs ``argv`` in the stage with only the stage's variables."""
    variables = [f"{name}={value}" for name, value in stage.env.items()]
    return ["chroot", str(stage.root), "/usr/bin/env", "-i", f"-C{stage.folder}", *variables, *argv]


def create_stage(scratch: Path, number: int) -> Stage:
    path = scratch / str(number)
    for name in ("upper", "work", "root"):
        (path / name).mkdir(parents=True)
    layers = f"lowerdir=/,upperdir={path}/upper,workdir={path}/work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, str(path / "root"))
    run("mount", "--bind", "/proc", str(path / "root" / "proc"))
    run("mount", "-t", "tmpfs", "tmpfs", str(path / "root" / "dev"))
    for name in _DEVICES:
        (path / "root" / "dev" / name).touch()
        run("mount", "--bind", f"/dev/{name}", str(path / "root" / "dev" / name))
    pip_settings = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
    return Stage(path / "root", {"PATH": _PATH, "HOME": "/root", **pip_settings})


def copy_context(project: Path, scratch: Path) -> Path:
    """Copy the files that .dockerignore includes; return their folder."""
    context = scratch / "context"
    lines = (project / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line.removeprefix("**/") for line in lines if line.startswith("**/")]

    def ignore(_folder: str, names: list[str]) -> list[str]:
        return [each for each in names if any(fnmatch.fnmatch(each, i) for i in ignored)]

    for path in (line[1:] for line in lines if line.startswith("!")):
        source, target = project / path, context / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignore)
        else:
            shutil.copy(source, target)
    return context


def copy(sources: Sequence[Path], root: Path, target: str) -> None:
    """Execute COPY: copy a folder's contents, and files into a target that ends with a slash."""
    path = root / target.lstrip("/")
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, path, symlinks=True, dirs_exist_ok=True)
        elif target.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)


def build(project: Path, scratch: Path) -> Stage:
    """Build all stages and return the last one."""
    context = copy_context(project, scratch)
    stages: dict[str, Stage] = {}
    text = (project / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    has_stage = False
    for name, rest in instructions(text):
        if name == "FROM":
            has_stage = True
            stages[rest.partition(" AS ")[2] or "last"] = create_stage(scratch, len(stages))
        elif has_stage:  # the ARG before FROM names the base image, which this machine replaces
            execute(list(stages.values())[-1], name, rest, context, stages)
    return stages["last"]


def execute(stage: Stage, name: str, rest: str, context: Path, stages: Mapping[str, Stage]) -> None:
    match name:
        case "ENV":
            before = dict(stage.env)
            for pair in rest.split():
                key, _, value = pair.partition("=")
                stage.env[key] = re.sub(r"\$(\w+)", lambda found: before[found[1]], value)
        case "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "RUN":
            run(*in_root(stage, "/bin/sh", "-c", rest))
        case "COPY":
            *sources, target = rest.split()
            root = context
            if sources[0].startswith("--from="):
                root = stages[sources.pop(0).removeprefix("--from=")].root
            if not target.startswith("/"):
                target = f"{stage.folder}/{target}"
            copy([root / each.lstrip("/") for each in sources], stage.root, target)
        case "USER" | "EXPOSE" | "HEALTHCHECK" | "STOPSIGNAL" | "ENTRYPOINT" | "CMD":
            stage.metadata[name] = rest
        case "LABEL" | "ARG":
            pass
        case _:
            raise AssertionError(f"unsupported instruction: {name}")


def run_image(stage: Stage, args: Sequence[str]) -> dict[str, Any]:
    entry = [*json.loads(stage.metadata["ENTRYPOINT"]), *json.loads(stage.metadata["CMD"]), *args]
    user, _, group = stage.metadata["USER"].partition(":")
    checks = json.loads(stage.metadata["HEALTHCHECK"].partition(" CMD ")[2])
    as_user = ["setpriv", f"--reuid={user}", f"--regid={group}", *_UNPRIVILEGED]
    log = stage.root.parent / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            in_root(stage, *as_user, *entry), stdout=out, stderr=subprocess.STDOUT
        )

    def is_healthy() -> bool:
        result = subprocess.run(in_root(stage, *checks), check=False, capture_output=True)
        return result.returncode == 0

    deadline = time.monotonic() + _SECONDS
    while not (is_healthy() and "serves" in log.read_text()):  # the log line comes last
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    status = Path(f"/proc/{process.pid}/status").read_text()
    echoed = [echoes([1.5, 2.5]), echoes([float(i) for i in range(100_000)])]
    process.send_signal(signal.Signals[stage.metadata["STOPSIGNAL"]])
    code = process.wait(_SECONDS)
    return {
        "uids": re.findall(r"^Uid:\s+(.*)$", status, re.MULTILINE)[0].split(),
        "capabilities": re.findall(r"^Cap(?:Eff|Prm|Bnd):\s+(\w+)$", status, re.MULTILINE),
        "answers": echoed,
        "code": code,
        "healthy_afterwards": is_healthy(),
        "log": log.read_text(),
    }


def echoes(values: Sequence[float]) -> bool:
    """Return whether the identity model returns its input."""
    tensor: Mapping[str, Any] = {
        "name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values,
    }  # fmt: skip
    body = json.dumps({"inputs": [tensor]}).encode()
    address = "http://127.0.0.1:8000/v2/models/identity/infer"
    with urllib.request.urlopen(address, body, timeout=_SECONDS) as response:
        document = json.load(response)
    return bool(document["outputs"][0]["data"] == values)


def main(project: Path, scratch: Path) -> None:
    run("mount", "--make-rprivate", "/")
    # The layers of an overlay must not be on another overlay.
    run("mount", "-t", "tmpfs", "tmpfs", str(scratch))
    os.umask(0o022)
    stage = build(project, scratch)
    run("mount", "-o", "remount,ro,bind", str(stage.root))
    run("mount", "-o", "remount,ro", str(stage.root / "dev"))
    assert ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) == 0
    run("ip", "link", "set", "lo", "up")
    programs = sorted(each.name for each in (stage.root / "opt/infergate/bin").iterdir())
    fields = {
        "one": run_image(stage, ()),
        "two": run_image(stage, ("--workers", "2")),
        "programs": programs,
    }
    sys.stdout.write(json.dumps(fields))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

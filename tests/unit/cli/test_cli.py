from __future__ import annotations

import os
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from infergate import __version__
from infergate.cli import arguments as arguments_module
from infergate.cli import main
from infergate.cli.arguments import parse
from infergate.cli.command import JSON, Arguments, Command, Operands
from infergate.cli.commands import COMMANDS, REST_PROXY, SERVE
from infergate.cli.served_gateway import ServedGateway
from infergate.config import Config
from infergate.config.tracked_files import TrackedFiles
from infergate.core.compilation import version_text
from infergate.runtime.reload import ReadConfig
from tls_kit import Authority

CONFIG = Path(__file__).parents[2] / "config" / "good" / "everything.yaml"
DEMO = "backends: {demo: {protocol: builtin}}\nroutes: [{model: '*', backend: demo}]\n"
INVALID_CONFIG = Path(__file__).parents[2] / "config" / "bad" / "many.yaml"


Started = list[tuple[Config, Path | None]]
"""The configurations that ``main`` passes to the server, and their files."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    served: Started = []

    def serve(read: ReadConfig, source: Path | None, make_gateway: object) -> int:
        assert make_gateway is ServedGateway
        served.append((read(TrackedFiles()), source))
        return 0

    replace_serve(monkeypatch, serve)
    return served


def replace_serve(monkeypatch: pytest.MonkeyPatch, serve: Any) -> None:
    module = types.ModuleType("infergate.runtime.serve")
    monkeypatch.setattr(module, "serve", serve, raising=False)
    monkeypatch.setitem(sys.modules, "infergate.runtime.serve", module)


@pytest.mark.parametrize("argv", [[], ["serve"]])
def test_without_a_configuration_the_demo_is_served(argv: list[str], started: Started) -> None:
    assert main(argv) == 0
    assert started == [(Config.default(), None)]


@pytest.mark.parametrize(
    "argv", [["--config", str(CONFIG)], ["serve", "-c", str(CONFIG)], [f"--config={CONFIG}"]]
)
def test_a_configuration_is_served(argv: list[str], started: Started) -> None:
    assert main([*argv, "--log-format", "text", "--workers", "auto"]) == 0
    [(config, source)] = started
    assert source == CONFIG
    assert config.log.format == "text"
    assert config.readiness == "lenient"


def test_argv_defaults_to_the_process_arguments(
    monkeypatch: pytest.MonkeyPatch, started: Started
) -> None:
    monkeypatch.setattr(sys, "argv", ["infergate", "--config", str(CONFIG)])
    assert main() == 0
    assert started[0][0].log.format == "json"


def test_check_prints_listeners_routes_and_limits(
    started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(CONFIG), "--check"]) == 0
    assert not started
    out, err = capsys.readouterr()
    assert err == ""
    rows = [line.split() for line in out.splitlines()]
    assert ["http", "[::1]:0"] in rows
    assert ["admin", "off"] in rows
    rewrites = "model: resnet50, version: 1, input image: data, output probs: prob"
    endpoints = ["grpc://triton:8001", "grpcs://10.0.0.8:443"]
    assert [
        "resnet50-new",
        "2",
        "grpc",
        "v2-grpc",
        *endpoints,
        "30s",
        *rewrites.split(),
        "-",
    ] in rows
    assert ["*", "any", "in.side", "builtin", "-", "30s", "-", "-"] in rows
    assert ["squeezenet"] in rows
    assert ["body", "1GiB", "(default", "64MiB)"] in rows
    lines = out.splitlines()
    header = next(line for line in lines if "BACKEND" in line)
    catch_all = next(line for line in lines if line.startswith("  * "))
    assert header.index("BACKEND") == catch_all.index("in.side")
    assert not any(line != line.rstrip() for line in lines)


def test_check_prints_listeners_of_one_model_and_casts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(CONFIG.with_name("graphpipe.yaml")), "--check"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["graphpipe[0]", "127.0.0.1:9000", "squeezenet,", "http"] in rows
    assert ["graphpipe[4]", "unix:/run/infergate/raw.sock", "7,", "size-prefixed"] in rows
    assert ["tcp://10.0.0.8:9000", "unix:/run/gp.sock", "http+unix:/run/gp-http.sock"] in [
        line[4:7] for line in rows
    ]
    assert any(line[-7:-1] == ["cast", "BF16:", "FP32,", "cast", "BOOL:", "UINT8"] for line in rows)


def test_check_shows_the_tls_of_every_listener_and_the_caches_of_routes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Authority(tmp_path).server()
    tls = f"{{certificate: {pair.certificate}, key: {pair.key}}}"
    file = tmp_path / "routes.yaml"
    file.write_text(
        f"""
listeners:
  graphpipe: [{{address: "127.0.0.1:9000", model: m, tls: {tls}}}]
  additional: {{more: {{address: "127.0.0.1:9001", protocols: [v2-rest], tls: {tls}}}}}
backends: {{demo: {{protocol: builtin}}}}
routes: [{{model: "*", backend: demo, idempotent: true, cache: {{ttl: 5m}}}}]
"""
    )
    assert main(["check", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["graphpipe[0]", "127.0.0.1:9000", "m,", "http,", "TLS"] in rows
    assert ["additional.more", "127.0.0.1:9001", "v2-rest,", "TLS"] in rows
    assert any(line[-3:] == ["cached", "for", "5m"] for line in rows)


def test_check_prints_warnings_and_succeeds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIG.parent)
    assert main(["--config", "without-effect.yaml", "--check"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == (
        "warning: without-effect.yaml:5: backends.spare: no route uses the backend 'spare'"
    )
    assert len(err.splitlines()) == 4
    assert "routes, first match wins" in out


def test_check_without_a_file_prints_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    out = capsys.readouterr().out
    assert "builtin" in out
    assert "limits" not in out
    assert "declared" not in out


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_errors_are_reported_and_nothing_starts(
    options: list[str],
    started: Started,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(INVALID_CONFIG.parent)
    assert main(["--config", INVALID_CONFIG.name, *options]) == 2
    out, err = capsys.readouterr()
    assert not started
    assert out == ""
    assert err == INVALID_CONFIG.with_suffix(".txt").read_text(encoding="utf-8")


def test_a_missing_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "no-such.yaml"]) == 2
    assert capsys.readouterr().err == "no-such.yaml: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--confg", "x"], "unrecognized argument: --confg; did you mean '--config'?"),
        (["--zzz=1"], "unrecognized argument: --zzz=1; see: infergate serve --help"),
        (["start"], "unknown command 'start'; expected one of: serve, check, rest-proxy"),
        (["matirx"], "unknown command 'matirx'; did you mean 'matrix'?"),
        (["routes.yaml"], "to serve a configuration: infergate --config routes.yaml"),
        (["matrix", "--check"], "--check is not an option of matrix, but of serve, rest-proxy"),
        (["--page"], "--page is not an option of serve, but of matrix"),
        (["key", "ci"], "unrecognized argument: ci; see: infergate key --help"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
        (["--workers", "0"], "'0' is neither a number from 1 to 256 nor 'auto'"),
        (["--workers", "257"], "'257' is neither a number from 1 to 256 nor 'auto'"),
        (["--workers", "many"], "'many' is neither a number from 1 to 256 nor 'auto'"),
        (["--conf", "x"], "unrecognized argument: --conf; did you mean '--config'?"),
        (["--config"], "expected one argument"),
    ],
)
def test_an_invalid_command_line_is_reported(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "workers"), [([], 3), (["--workers", "2"], 2)])
def test_workers_on_the_command_line_override_the_configuration(
    argv: list[str], workers: int, started: Started, tmp_path: Path
) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(f"workers: 3\n{DEMO}")
    assert main(["--config", str(file), *argv]) == 0
    assert started[0][0].workers == workers


def test_auto_starts_one_worker_per_processor(started: Started) -> None:
    assert main(["--workers", "auto"]) == 0
    assert started[0][0].workers == len(os.sched_getaffinity(0))


def test_shared_memory_requires_a_single_worker(
    started: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(f"control: {{shared_memory: true}}\n{DEMO}")
    assert main(["--config", str(file), "--workers", "2"]) == 2
    expected = "--workers: control.shared_memory: shared memory requires a single worker"
    assert capsys.readouterr().err.startswith(expected)
    assert not started


@pytest.mark.parametrize(("flag", "text"), [("--version", __version__), ("--help", "exit codes:")])
def test_version_and_help(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([flag])
    assert caught.value.code == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("127.0.0.1:8000 is taken"), 1, "infergate: 127.0.0.1:8000 is taken\n"),
        (KeyboardInterrupt(), 0, ""),
    ],
    ids=["a port in use", "Ctrl-C"],
)
def test_the_end_of_serving_sets_the_exit_code_and_the_message(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_serve(monkeypatch, Mock(side_effect=error))
    assert main([]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in {SERVE, REST_PROXY}])
def test_control_c_in_other_commands_returns_130_without_a_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Command, arguments: Arguments) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Command, "run", run)
    operands = COMMANDS[command].operands
    required = operands is not None and operands.count in {None, "+"}
    choices = operands.choices if operands else None
    assert main([command, *([choices[0] if choices else "value"] if required else [])]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "argv",
    [["rest-proxy", "--workers", "2"], ["--workers", "2", "rest-proxy"]],
    ids=["command first", "options first"],
)
def test_the_command_may_stand_before_or_after_its_options(argv: list[str]) -> None:
    arguments = parse(argv)
    assert (arguments.command, arguments.workers) == ("rest-proxy", 2)


def test_the_value_of_an_option_is_not_a_command() -> None:
    arguments = parse(["--config", "matrix"])
    assert (arguments.command, arguments.config) == ("serve", Path("matrix"))


@pytest.mark.parametrize(
    ("count", "argv", "operands"),
    [
        ("+", ["a", "--json", "b"], ("a", "b")),
        ("*", [], ()),
        ("?", [], ()),
        ("?", ["a"], ("a",)),
        (None, ["--json", "a"], ("a",)),
    ],
)
def test_a_command_may_have_operands(
    count: str | None, argv: list[str], operands: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_command(monkeypatch, count)
    arguments = parse(["read", *argv])
    assert (arguments.command, arguments.operands) == ("read", operands)
    assert arguments.json == ("--json" in argv)


def test_a_missing_operand_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(monkeypatch, "+")
    with pytest.raises(SystemExit) as caught:
        parse(["read"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "usage: infergate read FILE… [options]\n"
        "infergate read: error: the following arguments are required: FILE\n"
    )


def test_each_command_has_a_module_that_runs_it() -> None:
    for command in COMMANDS.values():
        assert callable(import_module(f"infergate.cli.{command.module}").run), command.name


def add_command(monkeypatch: pytest.MonkeyPatch, count: str | None) -> None:
    """Add the command ``read``, whose number of operands is ``count``."""
    operands = Operands("FILE", "files to read", count)
    command = Command("read", "read files", "check", (JSON,), operands)
    monkeypatch.setattr(arguments_module, "COMMANDS", {"read": command, SERVE: COMMANDS[SERVE]})


def test_python_m_infergate_runs_the_command() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "infergate", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout == f"infergate {version_text(__version__)}\n"


def test_a_closed_pipe_ends_a_command_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "infergate", "key"]
    completed = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (completed.returncode, completed.stderr) == (1, b"")


@pytest.mark.parametrize("argv", [["--version"], ["key"], ["health", "--admin", "127.0.0.1:1"]])
def test_short_commands_do_not_import_large_libraries(argv: list[str]) -> None:
    program = "import sys, infergate.cli as c\ntry: c.main(sys.argv[1:])\nexcept SystemExit: pass\n"
    program += "print(*sys.modules, file=sys.stderr)"
    completed = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, check=True
    )
    assert not {"pydantic", "numpy", "asyncio"} & set(completed.stderr.splitlines()[-1].split())

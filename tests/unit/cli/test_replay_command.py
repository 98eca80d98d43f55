from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from infergate.cli import main
from recordings import exchange, write_recording

CONFIG = "backends: {b: {protocol: builtin}}\nroutes: [{model: '*', backend: b}]\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of a configuration without the model ``m``, and of a recording of ``m``."""
    (tmp_path / "routes.yaml").write_text(CONFIG)
    write_recording(tmp_path / "a.igrec", map(exchange, range(3)))
    return str(tmp_path / "routes.yaml"), str(tmp_path / "a.igrec")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "expected either --to URL or --config FILE"),
        (["--config", "CONFIG", "--to", "http://h"], "expected either --to URL or --config FILE"),
        (["--config", "CONFIG", "--protocol", "v2-rest"], "--protocol requires --to"),
        (["--config", "CONFIG", "--fast", "--rate", "3"], "use only one of"),
        (["--config", "CONFIG", "--speed", "2", "--rate", "3"], "use only one of"),
        (["--config", "CONFIG", "--report", "r.txt"], "ends with .html or .json"),
        (["--config", "CONFIG", "--report", "/no/such/r.html"], "there is no folder /no/such"),
        (["--config", "CONFIG", "--compare", "none.yaml"], "none.yaml: cannot be read"),
        (["--config", "none.yaml"], "none.yaml: cannot be read"),
        (["--config", "CONFIG", "--header", "x"], "expected 'name: value'"),
    ],
)
def test_invalid_options_are_reported_before_anything_is_sent(
    argv: list[str], reason: str, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    config, recording = files
    replaced = [config if each == "CONFIG" else each for each in argv]
    assert main(["replay", recording, *replaced]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "argv", [["--speed", "0"], ["--rate", "-1"], ["--rate", "nan"], ["-n", "0"], ["-n", "x"]]
)
def test_numbers_must_be_positive(argv: list[str], files: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["replay", files[1], "--config", files[0], *argv])
    assert raised.value.code == 2


def test_a_recording_without_inferences_is_an_error(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(tmp_path / "empty.igrec", [])
    assert main(["replay", str(tmp_path / "empty.igrec"), "--config", files[0]]) == 2
    assert "no readable inference" in capsys.readouterr().err


def test_the_result_is_printed_as_text_or_json_and_written_to_a_file(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, recording = files
    report = tmp_path / "report.html"
    argv = ["replay", recording, "--config", config, "--fast"]
    assert main([*argv, "--report", str(report)]) == 1  # there is no model m
    out = capsys.readouterr().out
    assert "3 inferences sent" in out
    assert "ok/not_found 3" in out
    assert "<html" in report.read_text()
    assert main([*argv, "--json", "-n", "2"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["sent"] == 2


def test_a_rule_for_an_unknown_output_is_an_error_and_no_report_is_written(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, recording = files
    rules, report = tmp_path / "rules.yaml", tmp_path / "report.html"
    rules.write_text("outputs: {z: {top_k: 1}}")
    argv = ["--compare", str(rules), "--report", str(report), "--fast"]
    assert main(["replay", recording, "--config", config, *argv]) == 2
    assert "the rules name the output 'z', but no response has it" in capsys.readouterr().err
    assert not report.exists()


def test_a_server_that_cannot_be_reached_is_reported_though_there_are_rules(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules, report = tmp_path / "rules.yaml", tmp_path / "report.html"
    rules.write_text("outputs: {y: {top_k: 1}}")
    with socket.socket() as reserved:  # the port is bound, but nothing listens on it
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        argv = ["--to", url, "--compare", str(rules), "--report", str(report), "--fast"]
        assert main(["replay", files[1], *argv]) == 1
    assert "ok/connect 3" in capsys.readouterr().out
    assert report.exists()


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["a.json"], "must be the only file, needs --model, and cannot be exported"),
        (["a.json", "a.igrec", "--model", "m"], "must be the only file"),
        (["a.json", "--model", "m", "--export", "b.json"], "cannot be exported"),
        (["a.json", "--model", "m", "--to", "http://127.0.0.1:9"], "needs --protocol"),
        (["a.igrec", "--to", "http://h", "--export", "b.json"], "needs --model"),
        (
            ["a.igrec", "--to", "http://h", "--model", "m", "--export", "b.json"],
            "--export with --to needs --protocol",
        ),
        (["a.igrec", "--export", "/no/such/b.json"], "No such file or directory"),
        (
            ["a.igrec", "b.igrec", "--export", "b.json"],
            "of one model, but there are requests of 'm' and 'n'",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_invalid_uses_of_perf_analyzer_files_are_reported(
    argv: list[str], reason: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write_recording(tmp_path / "b.igrec", [exchange(1, "n")])
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(["replay", *argv]) == 2
    assert reason in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_inferences_of_one_model_are_exported_without_a_server(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(tmp_path / "b.igrec", [exchange(1, "n")])
    with (tmp_path / "b.igrec").open("ab") as file:
        file.write(b"damaged")
    exported = tmp_path / "input.json"
    argv = [files[1], str(tmp_path / "b.igrec"), "--model", "n", "--export", str(exported)]
    assert main(["replay", *argv]) == 0
    captured = capsys.readouterr()
    assert f"1 requests written to {exported}" in captured.out
    assert "b.igrec: bytes " in captured.err
    assert len(json.loads(exported.read_text())["data"]) == 1


def test_inferences_that_cannot_be_sent_and_damaged_parts_are_listed(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.igrec"
    damaged.write_bytes(Path(files[1]).read_bytes()[:-2])
    assert main(["replay", str(damaged), "--to", "grpc://127.0.0.1:9", "--fast"]) == 1
    out = capsys.readouterr().out
    assert "2 not sent:\n  v2-rest needs a URL with the scheme http" in out
    assert f"1 damaged parts of the files:\n  {damaged}: bytes " in out


def test_a_folder_is_replaced_by_the_recordings_in_it(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(tmp_path / "b.igrec", [exchange(1)])
    main(["replay", str(tmp_path), "--config", files[0], "--fast"])
    assert "4 inferences sent" in capsys.readouterr().out
    assert main(["record", "show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.index("a.igrec: 3 records") < out.index("b.igrec: 1 record, 0 damaged parts")
    (tmp_path / "none").mkdir()
    for command in (["record", "show"], ["replay", "--config", files[0]]):
        assert main([*command, str(tmp_path / "none")])
        assert "none: the folder has no recordings (*.igrec)" in capsys.readouterr().err

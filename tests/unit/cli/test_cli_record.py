"""infergate record: control of a gateway with a scripted admin port, and listings of recordings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exchange_samples import sample_exchange
from http_stand_in import QuietHandler, StandInServer
from infergate.cli import main
from infergate.core.errors import GatewayError, Kind
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest
from infergate.recording.encoding import encode_exchange
from infergate.recording.writer import RecordingFile

PROCESS: dict[str, Any] = {
    "worker": 0, "active": True, "problem": "", "path": "/records", "file": "f.igrec", "bytes": 700,
    "exchanges": {"recorded": 5, "queue_full": 2, "memory_short": 1}, "queued": 0,
}  # fmt: skip
STOPPED = {**PROCESS, "worker": 1, "active": False, "file": "", "problem": "disk full"}


class Server(StandInServer):
    """An admin port that reports ``processes``, or has no recording if they are None."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.processes: list[dict[str, Any]] | None = [PROCESS]
        self.requests: list[tuple[str, str, str | None]] = []
        self.url = f"http://{self.address}"


class Handler(QuietHandler):
    server: Server

    def get(self) -> None:
        key = self.headers.get("authorization")
        self.server.requests.append((self.command, self.path, key))
        processes = self.server.processes
        self.respond(404 if processes is None else 200, {"processes": processes})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize(
    ("action", "method", "path"),
    [
        ("status", "GET", "/recording"),
        ("start", "POST", "/recording/start"),
        ("stop", "POST", "/recording/stop"),
    ],
)
def test_an_action_prints_the_state_of_every_process(
    server: Server, capsys: pytest.CaptureFixture[str], action: str, method: str, path: str
) -> None:
    assert main(["record", action, "--admin", server.url]) == 0
    assert server.requests == [(method, path, None)]
    text = capsys.readouterr().out
    assert "recording in /records" in text
    assert text.splitlines()[-1].split() == ["0", "recording", "5", "3", "700", "f.igrec", "-"]


def test_a_problem_of_a_process_is_a_failure(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.processes = [PROCESS, STOPPED]
    assert main(["record", "status", "--admin", server.url]) == 1
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["disk", "full"]


def test_programs_get_json(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "status", "--json", "--admin", server.url]) == 0
    assert json.loads(capsys.readouterr().out) == {"processes": [PROCESS]}


def test_the_key_in_the_environment_is_sent_with_changes_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERGATE_ADMIN_KEY", "k")
    main(["record", "status", "--admin", server.url])
    main(["record", "stop", "--admin", server.url])
    assert [key for _, _, key in server.requests] == [None, "Bearer k"]


def test_a_gateway_without_recording_is_reported(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.processes = None
    assert main(["record", "start", "--admin", server.url]) == 1
    assert "the gateway's configuration has no section 'recording'" in capsys.readouterr().err


@pytest.mark.parametrize("operands", [["pause"], ["show"], ["start", "x"]])
def test_invalid_operands_are_reported(
    operands: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *operands]) == 2
    expected = "usage: infergate record start|stop|status, or: infergate record show FILE…"
    assert expected in capsys.readouterr().err


# ---- infergate record show


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a success in a sequence, and a failure with the outcome of a mirror."""
    path = tmp_path / "file.igrec"
    recording = RecordingFile(path)
    recording.append(encode_exchange(sample_exchange(1, sequence_id=7)))
    error = GatewayError(Kind.TIMEOUT, "too late")
    failed = Exchange(InferRequest("bad\nname\ud800"), Outcome((), error, 0.25), is_stream=True)
    recording.append(encode_exchange(failed, {"mirror": sample_exchange().outcome}, ["secret"]))
    recording.close()
    return path


def test_show_prints_a_line_for_each_record(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "show", str(file)]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.split()[:5] == ["24", "1970-01-01T00:00:00.000000+00:00", "v2-rest", "m", "ok"]
    assert "in=16  out=16  sequence=7" in first
    assert "bad\\nname\\ud800  timeout  250 ms  in=0  out=0  responses=0  mirror=ok" in second
    assert last == f"{file}: 2 records, 0 damaged parts"


def test_show_prints_json_lines_for_programs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "show", "--json", str(file)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    tensor = {"name": "x", "datatype": "UINT8", "shape": [16], "bytes": 16}
    assert first["inputs"] == [tensor]
    assert first["responses"] == [[tensor]]
    assert (first["file"], first["position"], first["sequence"]) == (str(file), 24, 7)
    assert (second["model"], second["error"]) == ("bad\nname\ud800", "too late")
    assert second["further"]["mirror"]["outcome"] == "ok"
    assert second["redacted"] == ["secret"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_damage_is_printed_and_is_a_failure(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    assert main(["record", "show", *options, str(file)]) == 1
    text = capsys.readouterr().out
    assert "the checksum of the record is wrong" in text
    assert "timeout" in text
    if not options:
        assert f"{file}: 1 record, 1 damaged part" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"PK", "byte 0: this is not an infergate recording"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    file: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, reason: str
) -> None:
    other = file.with_name("other")
    if content is not None:
        other.write_bytes(content)
    assert main(["record", "show", str(other), str(file)]) == 1
    printed = capsys.readouterr()
    assert reason in printed.err
    assert str(other) in printed.err
    assert "2 records" in printed.out


def test_a_reader_that_closes_the_output_ends_the_command_quietly(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content + content[24:] * 2000)  # more lines than a pipe holds
    command = f"{sys.executable} -m infergate record show {file} {file} | head -n 1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=100
    )
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""


def test_the_table_of_record_fits_80_columns(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    problem = "the disk of the folder is full, so that nothing more is recorded"
    server.processes = [PROCESS, {**STOPPED, "problem": problem}]
    main(["record", "status", "--admin", server.url])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from infergate.cli import main


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["htp://a:1"], "'htp' is not a supported scheme; did you mean 'http'?"),
        (["a:1", "--against", "b"], "'b' needs a port"),
        (["a:1", "--force"], "--force requires --write"),
        (["a:1", "--ca", "x", "--insecure"], "use only one of --ca and --insecure"),
        (["a:1", "--ca", "/no/such/file"], "/no/such/file is not a file"),
    ],
)
def test_an_invalid_command_line_is_reported(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a:1", "--header", "authorization Bearer secret"], "expected 'name: value'"),
        (["a:1", "--header", "x: secret\nhost: a"], "expected 'name: value'"),
        (["a:1", "--header", "x: secret\u20ac"], "expected 'name: value'"),
        (["a:1", "--timeout", "0.001"], "'0.001' is not a number of seconds from 0.01 to 600"),
        (["a:1", "--timeout", "nan"], "'nan' is not a number of seconds from 0.01 to 600"),
        ([], "the following arguments are required: URL"),
    ],
)
def test_invalid_values_are_reported(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["probe", *argv])
    assert caught.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "secret" not in printed


def test_an_existing_file_is_refused_before_anything_is_probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text("mine")
    assert main(["probe", "no-such-host.invalid:1", "--write", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"infergate probe: error: {file} exists; --force replaces it\n")
    assert file.read_text() == "mine"


def test_a_closed_port_is_reported_and_nothing_is_written(
    closed_port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "routes.yaml"
    assert main(["probe", closed_port, "--write", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "ADDRESS" in out
    assert (
        f"{closed_port}: connection refused: the port is closed; check that the server runs" in out
    )
    assert err == "infergate probe: nothing was written, because no server was found\n"
    assert not list(tmp_path.iterdir())


def test_a_failure_is_printed_as_json(closed_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", closed_port, "--against", closed_port, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["servers"] == document["against"]["servers"] == []
    [address] = document["addresses"]
    assert address["address"] == closed_port
    assert address["problem"] == "connection refused: the port is closed"
    assert address["advice"].startswith("check that the server runs")

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infergate.cli import main
from infergate.cli import report as command
from infergate.comparison.outcomes import compare
from infergate.comparison.rules import ComparisonRules
from infergate.comparison.summary import Summary, SummaryFormatError
from infergate.core.exchange import Exchange
from infergate.migration import report
from infergate.migration.replay.result import ReplayResult
from infergate.migration.report import read_result, render, summarize_mismatches, write_file
from infergate.recording.encoding import encode_exchange
from infergate.recording.format import RecordingError
from infergate.recording.writer import RecordingFile
from recordings import exchange


def store(folder: Path, name: str, served: Exchange, mirrored: Exchange) -> None:
    file = RecordingFile(folder / f"{name}.igrec")
    file.append(encode_exchange(served, {"new": mirrored.outcome}))
    file.close()


def summary(*numbers: int) -> Summary:
    result = Summary()
    for number in numbers:
        outcomes = exchange(1).outcome, exchange(number).outcome
        result.add("route", "m", compare(ComparisonRules(), *outcomes), time=1000.0)
    return result


def test_stored_mismatches_are_compared_again(tmp_path: Path) -> None:
    for number in (2, 3):
        store(tmp_path, f"{number}", exchange(1), exchange(number))
    (tmp_path / "4.igrec").write_bytes((tmp_path / "3.igrec").read_bytes()[:-3])
    result, damaged = summarize_mismatches(tmp_path)
    (model,) = result.routes["route"].values()
    assert (model.compared, model.equal) == (2, 0)
    assert [part.file for part in damaged] == [str(tmp_path / "4.igrec")]


def test_a_folder_without_mismatches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"has no recordings"):
        summarize_mismatches(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[", "is not JSON"), ("{}", "not a replay result"), ("[" * 10**5, "is not JSON")],
)
def test_an_invalid_result_file_is_named_in_the_error(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(SummaryFormatError, match=reason) as raised:
        read_result(file)
    assert str(file) in str(raised.value)
    monkeypatch.setattr(report, "_MAX_JSON_BYTES", 1)
    file.write_text("{}")
    with pytest.raises(SummaryFormatError, match="more than 1 bytes"):
        read_result(file)


def test_a_report_has_three_forms() -> None:
    assert "0 % of 1 response" in render(summary(2), "text")
    assert json.loads(render(summary(2), "json"))["verdict"] == "different"
    assert render(summary(2), "html").startswith("<!")


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "report"
    write_file(file, ["old"])

    def failing_parts() -> Iterator[str]:
        yield "new"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_file(file, failing_parts())
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("number", "code"), [(1, 0), (2, 1)])
def test_the_command_reports_on_a_running_gateway(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queries: list[tuple[str, str]] = []

    def get_json(admin: str, path: str) -> object:
        queries.append((admin, path))
        return json.loads(json.dumps(summary(number).as_json()))

    monkeypatch.setattr(command, "get_json", get_json)
    assert main(["report", "--admin", "http://h:1"]) == code
    assert queries == [("http://h:1", "/comparisons")]
    assert "of 1 response equal" in capsys.readouterr().out


def test_the_command_reports_on_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = ReplayResult(summary=summary(2))
    file, page = tmp_path / "result.json", tmp_path / "page.html"
    file.write_text(json.dumps(result.as_json()))
    store(tmp_path, "one", exchange(1), exchange(2))
    for source in (["--replay", str(file)], ["--mismatches", str(tmp_path)]):
        assert main(["report", *source]) == 1
        assert "0 % of 1 response equal" in capsys.readouterr().out
        assert main(["report", *source, "--json", "--html", str(page)]) == 1
        assert json.loads(capsys.readouterr().out)["verdict"] == "different"
        assert "<html" in page.read_text()


@pytest.mark.parametrize("source", ["--replay", "--mismatches"])
def test_the_command_explains_a_missing_source(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", source, str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err

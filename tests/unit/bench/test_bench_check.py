from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import check
from bench.check import BASELINE, CHANGED, judge
from bench.results import Result
from bench_kit import runs


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ([100, 100, 100], "ok"),
        ([124, 90, 130], "ok"),
        ([130, 140, 126], "regressed"),
        ([130, 140, 101], "regressed"),
        ([130, 140, 99], "unclear: the rounds do not agree"),
        ([50, 60, 70], "ok"),
    ],
)
def test_the_verdict_on_the_cpu_of_each_round(changed: Sequence[float], verdict: str) -> None:
    base = runs(BASELINE, "own", cpus=[100] * len(changed))
    result = Result("row", (base, runs(CHANGED, "own", cpus=changed)))
    assert judge(result)[1] == verdict


def test_a_row_with_too_little_cpu_is_not_judged() -> None:
    result = Result("row", (runs(BASELINE, "own", cpus=[0]), runs(CHANGED, "own", cpus=[5])))
    assert judge(result)[1] == "too little to measure"


def test_a_filter_that_matches_no_row_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def checked_out(_revision: str, folder: Path) -> Iterator[Path]:
        yield folder

    monkeypatch.setattr(check.load, "required_tool", lambda: "h2load")
    monkeypatch.setattr(check, "checked_out", checked_out)
    assert check.main(["--base=HEAD", "--only=json"]) == 1
    assert "no row's name contains 'json'" in capsys.readouterr().err

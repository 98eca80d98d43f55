"""A pytest plugin: the run fails if the tests cover too few branches of the translating packages.

Coverage's own ``fail_under`` mixes lines with branches and applies to all files; the code that
translates requests has a stricter limit. Loaded with ``-p branch_floor``; needs pytest-cov.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from coverage import Coverage
from coverage.exceptions import NoDataError

PACKAGES = ("core", "codecs", "routing", "config")
_REPORT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--branch-floor",
        type=float,
        metavar="PERCENT",
        help=f"fail under this branch coverage in each of: {', '.join(PACKAGES)}",
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Runs after pytest-cov has written its data and before the summary."""
    floor = session.config.getoption("--branch-floor")
    worker = hasattr(session.config, "workerinput")  # of pytest-xdist: it has only part of the data
    if floor is None or worker or session.config.option.collectonly:
        return
    percentages = {package: _branch_coverage(package) for package in PACKAGES}
    lines = [f"{package:8} {percent:5.1f} %" for package, percent in percentages.items()]
    low = [package for package, percent in percentages.items() if percent < floor]
    if low:
        lines.append(f"under the floor of {floor:g} %: {', '.join(low)}")
    session.config.stash[_REPORT] = lines
    if low and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_REPORT, None):
        terminalreporter.section("branch coverage")
        for line in lines:
            terminalreporter.write_line(line)


def _branch_coverage(package: str) -> float:
    """Return the percentage of covered branches of ``infergate.<package>``; 0 if none ran."""
    coverage = Coverage(messages=False)
    coverage.load()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        try:
            coverage.json_report(outfile=str(report), include=[f"*/infergate/{package}/*"])
        except NoDataError:
            return 0.0
        totals = json.loads(report.read_text())["totals"]
    return 100 * totals["covered_branches"] / totals["num_branches"]

"""A pytest plugin that fails the run if the tests cover too few branches of certain packages.

It is loaded with ``-p branch_floor`` and needs coverage. Coverage makes Python several times
slower, so it runs only during the tests of these packages and of the packages that use them most.
It does not run while tests are collected, or during Hypothesis tests, because their paths differ
from run to run. A test that takes the same path thousands of times is marked ``no_cover``."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from coverage import Coverage
from coverage.exceptions import NoDataError

PACKAGES = ("core", "codecs", "routing", "config")
_USERS = ("access", "backends", "gateway", "observe")
"""Packages whose tests run much of the code in PACKAGES."""
_COUNTED = {"vectors", *(f"unit/{package}" for package in (*PACKAGES, *_USERS))}
_TESTS = Path(__file__).parent
_REPORT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--branch-floor",
        type=float,
        metavar="PERCENT",
        help=f"fail under this branch coverage in each of: {', '.join(PACKAGES)}",
    )


class _Recorder:
    """Records the branches that run in this process, and saves them in a file per process."""

    def __init__(self) -> None:
        self._coverage = Coverage(data_suffix=True, messages=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not _is_counted(item):
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._coverage.save()


def _is_counted(item: pytest.Item) -> bool:
    return _is_counted_file(item.path) and not any(
        item.get_closest_marker(name) for name in ("hypothesis", "no_cover")
    )


@functools.cache
def _is_counted_file(file: Path) -> bool:
    path = file.relative_to(_TESTS).as_posix()
    return any(path.startswith(f"{folder}/") for folder in _COUNTED)


def _is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist. A worker runs only some tests."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--branch-floor") is None:
        return
    if not _is_worker(config):
        Coverage(messages=False).erase()
    if _is_worker(config) or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Recorder())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check the coverage after the processes of pytest-xdist have ended and before the summary."""
    floor = session.config.getoption("--branch-floor")
    if floor is None or _is_worker(session.config) or session.config.option.collectonly:
        return
    coverage = Coverage(messages=False)
    with contextlib.suppress(NoDataError):
        coverage.combine()
    percentages = {package: _branch_coverage(coverage, package) for package in PACKAGES}
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


def _branch_coverage(coverage: Coverage, package: str) -> float:
    """Return the percentage of covered branches of ``infergate.<package>``, or 0 if none ran."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        try:
            coverage.json_report(outfile=str(report), include=[f"*/infergate/{package}/*"])
        except NoDataError:
            return 0.0
        totals = json.loads(report.read_text())["totals"]
    return 100 * totals["covered_branches"] / totals["num_branches"]

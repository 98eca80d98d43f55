"""``infergate replay``: sends recorded inferences again and compares the responses."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from infergate.cli.command import Arguments
from infergate.config.comparison_file import load_comparison
from infergate.config.load import load
from infergate.config.mistakes import ConfigError
from infergate.migration.explain.client_request import RequestError, parse_headers
from infergate.migration.replay.entries import Entry, read_entries, total_bytes
from infergate.migration.replay.pace import Pace
from infergate.migration.replay.replayer import Replayer, ReplayOptions
from infergate.migration.replay.result import ReplayResult
from infergate.migration.replay.rules import EXACT, ComparisonRuleError, ComparisonRules
from infergate.migration.replay.target import ConfigTarget, ReplayTarget, UrlTarget
from infergate.migration.report import RecordingError, render, write_file
from infergate.terminal import Progress

_EXACT: Final = "exact"
_EQUAL, _DIFFERENT, _WRONG = 0, 1, 2
_SUFFIXES: Final = (".html", ".json")


def replay(arguments: Arguments) -> int:
    """Replay the files that ``arguments`` name, and return the exit code."""
    try:
        _check(arguments)
        rules = _rules(arguments.compare)
        headers = parse_headers(arguments.header)
        files = [Path(name) for name in arguments.operands]
        size = total_bytes(files)
        entries = read_entries(files)
        pace = Pace(None if arguments.fast else arguments.speed, arguments.rate)
        options = ReplayOptions(pace, arguments.concurrency, arguments.n, rules, headers)
        result = asyncio.run(_replay(arguments, entries, options, size))
        if not result.counts.sent + result.counts.not_sent:
            _fail("the files have no readable inference")
        print(_result_text(arguments, result), end="")
        if arguments.report is not None:
            write_file(arguments.report, _report(arguments.report, result))
    except ConfigError as error:
        for mistake in error.mistakes:
            print(mistake, file=sys.stderr)
        return _WRONG
    except (ComparisonRuleError, RecordingError, RequestError, OSError) as error:
        print(f"infergate replay: {error}", file=sys.stderr)
        return _WRONG
    return _EQUAL if result.is_equal else _DIFFERENT


def _fail(reason: str) -> NoReturn:
    raise RequestError(reason)


def _check(arguments: Arguments) -> None:
    """Raise RequestError for options that exclude or need each other."""
    if bool(arguments.to) == (arguments.config is not None):
        _fail("expected either --to URL or --config FILE")
    if arguments.protocol is not None and not arguments.to:
        _fail("--protocol is for --to; with --config, each backend has its protocol")
    if sum((arguments.fast, arguments.rate is not None, arguments.speed != 1)) > 1:
        _fail("use only one of --speed, --rate and --fast")
    report = arguments.report
    if report is not None and report.suffix not in _SUFFIXES:
        _fail(f"--report {report}: expected a name that ends with {' or '.join(_SUFFIXES)}")
    if report is not None and not report.parent.is_dir():
        _fail(f"--report {report}: there is no folder {report.parent}")


def _rules(compare: str | None) -> ComparisonRules:
    if compare == _EXACT:
        return EXACT
    return ComparisonRules() if compare is None else load_comparison(Path(compare), os.environ)


async def _replay(
    arguments: Arguments, entries: Iterator[Entry], options: ReplayOptions, size: int
) -> ReplayResult:
    target: ReplayTarget
    if arguments.config is not None:
        target = ConfigTarget(load(arguments.config, os.environ))
    else:
        target = UrlTarget(arguments.to, arguments.protocol or "", tuple(options.headers))
    total = size if arguments.n is None else arguments.n
    with Progress("replaying", total) as bar:

        def show(result: ReplayResult, count: int) -> None:
            compared, equal = result.totals
            step = count if arguments.n is None else 1
            bar.step(step, f"{result.counts.sent:,} sent, {compared - equal:,} differ")

        try:
            return await Replayer(entries, target, options, show).run()
        finally:
            await target.close()


def _result_text(arguments: Arguments, result: ReplayResult) -> str:
    if arguments.json:
        return json.dumps(result.as_json(), indent=2) + "\n"
    return "".join(f"{line}\n" for line in _lines(result)) + "\n" + render(result.summary, "text")


def _lines(result: ReplayResult) -> Iterator[str]:
    counts = result.counts
    rate = counts.sent / counts.seconds if counts.seconds else 0.0
    yield f"{counts.sent:,} inferences sent in {counts.seconds:.1f} s ({rate:,.0f} a second)"
    if counts.max_delay > 1:
        yield (
            f"An inference was sent {counts.max_delay:.1f} s late: the server, this machine or "
            "--concurrency is too slow for this pace."
        )
    if counts.cancelled:
        yield f"{counts.cancelled:,} not compared: the recorded client had cancelled the request"
    if counts.redacted:
        yield f"{counts.redacted:,} not compared: inputs were redacted in the recording"
    if counts.not_sent:
        yield f"{counts.not_sent:,} not sent:"
        yield from (f"  {reason}" for reason in result.reasons)
    if counts.damaged:
        yield f"{counts.damaged:,} damaged parts of the files:"
        yield from (f"  {part}" for part in result.damaged)


def _report(file: Path, result: ReplayResult) -> Iterator[str]:
    if file.suffix == ".json":
        yield json.dumps(result.as_json(), indent=2)
    else:
        yield render(result.summary, "html")

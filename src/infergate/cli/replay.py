"""``infergate replay``: sends recorded inferences again and compares the responses."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from infergate.cli.command import Arguments
from infergate.config.comparison_file import load_comparison
from infergate.config.load import load
from infergate.config.mistakes import ConfigError
from infergate.migration.explain.client_request import RequestError, parse_headers
from infergate.migration.replay.entries import (
    DamagedFilePart,
    of_model,
    read_entries,
    total_bytes,
)
from infergate.migration.replay.pace import Pace
from infergate.migration.replay.perf_analyzer import SUFFIX as PERF_ANALYZER
from infergate.migration.replay.perf_analyzer import (
    GatewayError,
    ModelMetadata,
    describe_model,
    export,
    read_imported,
)
from infergate.migration.replay.replayer import (
    EXACT,
    ComparisonRuleError,
    ComparisonRules,
    Replayer,
    ReplayOptions,
)
from infergate.migration.replay.result import ReplayResult
from infergate.migration.replay.target import (
    ConfigTarget,
    ReplayTarget,
    ReplayTargetError,
    UrlTarget,
)
from infergate.migration.report import RecordingError, render, write_file
from infergate.plugin_host.loading import PluginError
from infergate.recording.reader import recording_files
from infergate.terminal import Progress

_EXACT: Final = "exact"
_EQUAL, _DIFFERENT, _ERROR, _INTERRUPTED = 0, 1, 2, 130
_SUFFIXES: Final = (".html", ".json")


def run(arguments: Arguments) -> int:
    """Replay or export the files that ``arguments`` name, and return the exit code."""
    try:
        _check(arguments)
        if arguments.export is not None:
            return _export(arguments)
        rules = _rules(arguments.compare)
        headers = parse_headers(arguments.header)
        pace = Pace(None if arguments.fast else arguments.speed, arguments.rate)
        options = ReplayOptions(pace, arguments.concurrency, arguments.n, rules, headers)
        result = asyncio.run(_replay(arguments, options))
        if not (result.counts.sent or result.counts.not_sent or result.is_interrupted):
            _fail("the files have no readable inference")
        print(_result_text(arguments, result), end="")
        if result.is_interrupted:
            return _INTERRUPTED
        if arguments.report is not None:
            write_file(arguments.report, _report(arguments.report, result))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return _ERROR
    except (
        ComparisonRuleError,
        GatewayError,
        PluginError,
        RecordingError,
        ReplayTargetError,
        RequestError,
        OSError,
    ) as error:
        print(f"infergate replay: {error}", file=sys.stderr)
        return _ERROR
    return _EQUAL if result.is_equal else _DIFFERENT


def _fail(reason: str) -> NoReturn:
    raise RequestError(reason)


def _check(arguments: Arguments) -> None:
    """Raise RequestError if the options are invalid."""
    files = [Path(name) for name in arguments.operands]
    imported = [file for file in files if file.suffix == PERF_ANALYZER]
    if imported and (len(files) > 1 or arguments.model is None or arguments.export is not None):
        _fail(
            f"{imported[0]}: a perf_analyzer file must be the only file, needs --model, and "
            "cannot be exported"
        )
    if arguments.export is not None and (arguments.to or arguments.config is not None):
        if arguments.model is None:
            _fail("--export with --to or --config requests the model's metadata and needs --model")
        if arguments.to and not arguments.protocol:
            _fail("--export with --to needs --protocol")
    elif arguments.export is None and bool(arguments.to) == (arguments.config is not None):
        _fail("expected either --to URL or --config FILE")
    if arguments.protocol is not None and not arguments.to:
        _fail("--protocol requires --to; with --config, each backend has its own protocol")
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


def _target(arguments: Arguments, header_names: Sequence[str] = ()) -> ReplayTarget:
    if arguments.config is not None:
        return ConfigTarget(load(arguments.config, os.environ))
    return UrlTarget(arguments.to, arguments.protocol or "", header_names)


async def _replay(arguments: Arguments, options: ReplayOptions) -> ReplayResult:
    files = recording_files(arguments.operands)
    target = _target(arguments, tuple(options.headers))
    try:
        if files[0].suffix == PERF_ANALYZER:
            entries = read_imported(files[0], await _metadata(arguments, target))
        else:
            entries = of_model(read_entries(files), arguments.model)
        total = total_bytes(files) if arguments.n is None else arguments.n
        with Progress("replaying", total) as bar:

            def show(result: ReplayResult, count: int) -> None:
                counts, step = result.counts, count if arguments.n is None else 1
                different = counts.compared - counts.equal
                bar.step(step, f"{counts.sent:,} sent, {different:,} differ")

            replayer = Replayer(entries, target, options, show)
            try:
                return await replayer.run()
            except asyncio.CancelledError:  # after Ctrl-C, the result so far is shown
                replayer.result.is_interrupted = True
                return replayer.result
    finally:
        await target.close()


async def _metadata(arguments: Arguments, target: ReplayTarget) -> ModelMetadata:
    protocol = arguments.protocol or ""
    if arguments.to and not protocol:
        _fail("a perf_analyzer file needs --protocol")
    return await describe_model(target, arguments.model, protocol)


# ---- export


def _export(arguments: Arguments) -> int:
    files, metadata = recording_files(arguments.operands), None
    if arguments.to or arguments.config is not None:
        metadata = asyncio.run(_queried_metadata(arguments))

    def show(part: DamagedFilePart) -> None:
        print(f"infergate replay: {part.text}", file=sys.stderr)

    summary = export(files, arguments.model, metadata, arguments.export, show)
    print(f"{summary.requests:,} requests written to {arguments.export}")
    if summary.skipped_errors:
        print(f"{summary.skipped_errors:,} skipped, because they ended with an error")
    if not summary.has_outputs:
        print(
            "the file has no expected outputs, because not every request has exactly one response"
        )
    return _EQUAL


async def _queried_metadata(arguments: Arguments) -> ModelMetadata:
    target = _target(arguments)
    try:
        return await _metadata(arguments, target)
    finally:
        await target.close()


# ---- the result


def _result_text(arguments: Arguments, result: ReplayResult) -> str:
    if arguments.json:
        return json.dumps(result.as_json(), indent=2) + "\n"
    return "".join(f"{line}\n" for line in _lines(result)) + "\n" + render(result.summary, "text")


def _lines(result: ReplayResult) -> Iterator[str]:
    counts = result.counts
    if result.is_interrupted:
        yield "The replay was interrupted; this is the result so far."
    rate = counts.sent / counts.seconds if counts.seconds else 0.0
    yield f"{counts.sent:,} inferences sent in {counts.seconds:.1f} s ({rate:,.0f} per second)"
    if counts.max_delay > 1:
        yield (
            f"An inference was sent {counts.max_delay:.1f} s late: the server or this machine is "
            "too slow for this pace, or --concurrency is too low."
        )
    if counts.cancelled:
        yield f"{counts.cancelled:,} not compared: the recorded client had cancelled the request"
    if counts.unanswered:
        yield f"{counts.unanswered:,} not compared: the file has no responses to these inferences"
    if counts.redacted:
        yield f"{counts.redacted:,} not compared: inputs may have been redacted in the recording"
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

"""``python -m bench``: infergate beside Triton and Envoy, in alternating rounds, one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))  # the real servers are shared with the tests

from infergate import __version__  # noqa: E402

from . import load  # noqa: E402
from .comparisons import Comparison, all_comparisons  # noqa: E402
from .report import Result, Runs, as_json, table  # noqa: E402

_LEAST_ROUNDS = 5
_TRIAL_REQUESTS = 24
_LEAST_REQUESTS = 50


def main(argv: Sequence[str]) -> int:
    """0, or 1 with a reason when something needed is missing or an answer is wrong."""
    options = _options(argv)
    try:
        load.required_tool()
        with tempfile.TemporaryDirectory(prefix="infergate-bench-") as folder:
            results = _measured(options, Path(folder))
    except (load.LoadError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"\n{_conditions(options)}\n\n{table(results)}")
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"conditions": _conditions(options), "comparisons": as_json(results)}
    path.write_text(json.dumps(told, indent=1) + "\n")
    if options.page:
        Path(options.page).write_text(_page(options, results))
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_LEAST_ROUNDS, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of one run; default: %(default)s"
    )
    parser.add_argument(
        "--connections", type=int, default=4,
        help="one request at a time on each; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--only", default="", help="comparisons whose name holds this text")
    parser.add_argument("--json", default=".peers/bench.json", help="default: %(default)s")
    parser.add_argument("--page", help="also write the table as a Markdown page")
    return parser.parse_args(argv)


def _measured(options: argparse.Namespace, folder: Path) -> list[Result]:
    with all_comparisons(folder) as comparisons:
        chosen = [c for c in comparisons if options.only in c.name]
        return [_compared(comparison, options, folder) for comparison in chosen]


def _compared(comparison: Comparison, options: argparse.Namespace, folder: Path) -> Result:
    """Rounds go through the contenders forwards and backwards in turn, so that a drift of the
    machine's speed meets all alike."""
    counts = {c.name: _count(c, options, folder) for c in comparison.contenders}
    runs: dict[str, list[load.Measured]] = {c.name: [] for c in comparison.contenders}
    for turn in range(options.rounds):
        print(f"{comparison.name}: round {turn + 1} of {options.rounds}", file=sys.stderr)
        for contender in comparison.contenders[:: -1 if turn % 2 else 1]:
            run = load.run(contender, counts[contender.name], options.connections, folder)
            runs[contender.name].append(run)
    return Result(
        comparison.name, tuple(Runs(name, tuple(measured)) for name, measured in runs.items())
    )


def _count(contender: load.Contender, options: argparse.Namespace, folder: Path) -> int:
    """How many requests take about the wanted time; finding out warms the contender up."""
    trial = load.run(contender, _TRIAL_REQUESTS, options.connections, folder)
    count = max(_LEAST_REQUESTS, int(trial.per_second * options.seconds / 2))
    trial = load.run(contender, count, options.connections, folder)
    return max(_LEAST_REQUESTS, int(trial.per_second * options.seconds))


def _conditions(options: argparse.Namespace) -> str:
    return (
        f"infergate {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores; "
        f"{options.rounds} rounds of {options.seconds:g} s, {options.connections} connections; "
        "h2load, servers and proxies share the machine; one worker each for infergate and Envoy"
    )


def _page(options: argparse.Namespace, results: list[Result]) -> str:
    return (
        "# Benchmarks\n\n<!-- Made by `make bench ARGS=--page=docs/benchmarks.md`. -->\n\n"
        "Ratios are infergate's figure divided by the contender's in the same round: median "
        "(least to most).\nThe method is in [0005](decisions/0005-benchmarks.md).\n\n"
        f"{_conditions(options)}\n\n{table(results)}\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

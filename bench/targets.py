"""The project's targets and their results."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from . import comparisons as of
from .results import (
    Bench,
    Figure,
    Result,
    Runs,
    Spread,
    cpu_ratio,
    difference,
    p50,
    p99,
    proxy_cpu,
    ratio,
    speed,
    spread,
)

LINEAR = 1.25
"""The accepted deviation of a cost from linear or flat."""
_MIB = 2**20


@dataclass(frozen=True)
class Bound:
    """The required and the desired value in ``unit``, minimum or ``is_maximum``."""

    must: float
    aim: float
    unit: str = ""
    is_maximum: bool = False

    def reached(self, value: float) -> str:
        """``target``, ``required`` or ``no``."""
        sign = -1 if self.is_maximum else 1
        if value * sign >= self.aim * sign:
            return "target"
        return "required" if value * sign >= self.must * sign else "no"

    def judged(self, found: Spread) -> str:
        """The verdict for the median, with a question mark if rounds disagree."""
        reported = {self.reached(value) for value in (found.minimum, found.maximum)}
        return self.reached(found.median) + (" ?" if len(reported) > 1 else "")

    def format_value(self, value: float) -> str:
        return f"{'≤' if self.is_maximum else '≥'} {value:g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Row:
    """A row of the table; ``found`` by engine."""

    work: str
    beside: str
    bound: Bound
    found: Mapping[str, Spread]


@dataclass(frozen=True)
class _Target:
    work: str
    beside: str
    bound: Bound
    comparison: str
    found: Callable[[Runs, Runs], Spread | None]

    def row(self, bench: Bench) -> Iterator[Row]:
        result = bench.result(self.comparison)
        if result is None:
            return
        peer = result.others[0]
        found = {engine: self.found(ours, peer) for engine, ours in result.ours.items()}
        found_by = {engine: each for engine, each in found.items() if each is not None}
        yield Row(self.work, self.beside, self.bound, found_by)


def _faster(ours: Runs, peer: Runs) -> Spread | None:
    return ratio(ours, peer, speed)


def _later(figure: Figure) -> Callable[[Runs, Runs], Spread]:
    return lambda ours, peer: difference(ours, peer, figure)


def _maximum(must: float, aim: float, unit: str = "") -> Bound:
    return Bound(must, aim, unit, is_maximum=True)


_TRITON = "Triton's REST: requests/s"
_ENVOY_HTTP_CPU = "Envoy, HTTP/1.1: CPU per request"
_ENVOY_GRPC_CPU = "Envoy, V2 gRPC: CPU per request"
_ENVOY_GRPC = "Envoy, V2 gRPC: requests/s"
_ECHO = "the echo server without a gateway"
_TARGETS = (
    _Target(of.JSON_IMAGE, _TRITON, Bound(3, 5), of.JSON_IMAGE, _faster),
    _Target(of.BINARY_IMAGE, _TRITON, Bound(0.7, 0.95), of.BINARY_IMAGE, _faster),
    _Target(of.JSON_TINY, _ENVOY_HTTP_CPU, _maximum(2, 1), of.JSON_TINY, cpu_ratio),
    _Target(of.GRPC_TINY, _ENVOY_GRPC_CPU, _maximum(1.5, 0.6), of.GRPC_TINY, cpu_ratio),
    _Target(of.GRPC_IMAGE, _ENVOY_GRPC, Bound(0.8, 1.1), of.GRPC_IMAGE, _faster),
    _Target(of.GRAPHPIPE_IMAGE, _ENVOY_GRPC, Bound(0.6, 0.9), of.GRAPHPIPE_IMAGE, _faster),
    _Target(of.LEGACY_IMAGE, _ENVOY_GRPC, Bound(0.6, 0.9), of.LEGACY_IMAGE, _faster),
    _Target(
        "two workers, both cores free for them", "one worker: requests/s", Bound(1.6, 1.9),
        of.TWO_WORKERS, _faster,
    ),
    *(
        _Target(f"added at {name}, {figure.__name__}", _ECHO, bound, name, _later(figure))
        for name in (of.JSON_LATENCY, of.GRPC_LATENCY)
        for figure, bound in ((p50, _maximum(0.5, 0.25, "ms")), (p99, _maximum(2, 1, "ms")))
    ),
)  # fmt: skip


def of_workers(bench: Bench) -> str:
    """How two workers were measured, and the possible maximum: the load generator needs a
    processor too."""
    result = bench.result(of.TWO_WORKERS)
    if result is None:
        return "Two workers (required 1.6, target 1.9) were not measured in this run."
    ours = next(iter(result.ours.values()))
    two, one = (spread(cores(each)).median for each in (ours, result.others[0]))
    return (
        "Two workers were compared with one in front of an embedded model. h2load shares the "
        f"machine with them: the two workers got {two:.2f} CPUs, the single worker {one:.2f}."
    )


def of_latency(bench: Bench) -> str:
    """The latency that Envoy adds in the same rounds: the cost of a hop on that machine."""
    parts = []
    for name, what in ((of.JSON_LATENCY, "JSON"), (of.GRPC_LATENCY, "gRPC")):
        result = bench.result(name)
        if result is not None and len(result.others) > 1:
            direct, envoy = result.others
            parts.append(f"{difference(envoy, direct, p50)} ms to {what} requests")
    return f"At 100 requests/s, Envoy adds at p50 {' and '.join(parts)}." if parts else ""


def cores(runs: Runs) -> list[float]:
    """How many processors each run used, without the load generator."""
    return [run.all_cpu * run.per_second / 1e6 for run in runs.rounds]


def rows(bench: Bench) -> list[Row]:
    """The table, without what was not measured."""
    return [
        *(row for target in _TARGETS for row in target.row(bench)),
        *_memory(bench),
        *_linear(bench),
        *_flat(bench),
    ]


def noise(bench: Bench) -> dict[str, Mapping[str, Spread | None]]:
    """The noise by comparison: a peer's figures divided by those of the same peer in the same
    rounds."""
    return {
        result.name: {
            "requests/s": ratio(again, result.others[0], speed),
            "p50": ratio(again, result.others[0], p50),
            "p99": ratio(again, result.others[0], p99),
            "CPU per request": cpu_ratio(again, result.others[0]),
        }
        for result in bench.results
        for again in result.others
        if again.name == of.AGAIN
    }


def _memory(bench: Bench) -> Iterator[Row]:
    """The worst of all pairs is judged."""
    engines = dict.fromkeys(peak.engine for peak in bench.peaks)
    if engines:
        found = {
            engine: max(peak.ratio for peak in bench.peaks if peak.engine == engine)
            for engine in engines
        }
        worst = {engine: Spread(value, value, value) for engine, value in found.items()}
        yield Row("peak memory, one 256 MiB tensor, worst pair", "its size", _maximum(3, 2), worst)
    if bench.idle:
        megabytes = {engine: spread([value / 1e6]) for engine, value in bench.idle.items()}
        yield Row("resident memory when idle", "", _maximum(100, 70, "MB"), megabytes)


def _linear(bench: Bench) -> Iterator[Row]:
    """CPU per byte of the largest tensor, divided by that of the smallest of at least a MiB."""
    for name in (of.BINARY_SIZES, of.GRPC_SIZES):
        curve = [result for result in bench.curve(name) if result.at >= _MIB]
        if len(curve) > 1:
            first, last = curve[0], curve[-1]
            beside = f"CPU per byte at {first.at // _MIB} MiB"
            grown = _grown(first, last, last.at / first.at)
            yield Row(f"{name}: at {last.at // _MIB} MiB", beside, _maximum(LINEAR, 1), grown)


def _flat(bench: Bench) -> Iterator[Row]:
    for name in (of.JSON_ROUTES, of.GRPC_ROUTES):
        curve = bench.curve(name)
        if len(curve) > 1:
            first, last = curve[0], curve[-1]
            beside = f"CPU per request with {first.at}"
            yield Row(
                f"{name}: with {last.at:,}", beside, _maximum(LINEAR, 1), _grown(first, last, 1)
            )


def _grown(first: Result, last: Result, factor: float) -> dict[str, Spread]:
    """CPU per request of ``last``, divided by that of ``first`` and by ``factor``, by engine."""
    found = {
        engine: ratio(runs, first.ours[engine], proxy_cpu) for engine, runs in last.ours.items()
    }
    return {
        engine: Spread(each.median / factor, each.minimum / factor, each.maximum / factor)
        for engine, each in found.items()
        if each is not None
    }

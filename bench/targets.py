"""The project's targets and their results."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from . import comparisons as names
from .results import (
    Bench,
    Metric,
    Result,
    Runs,
    Spread,
    cpu_ratio,
    difference,
    p50,
    p99,
    proxy_cpu,
    ratio,
    ratios,
    speed,
    spread,
)

LINEAR = 1.25
"""The accepted ratio of a cost to a linear or constant cost."""
_MIB = 2**20


@dataclass(frozen=True)
class Bound:
    """The required and the desired value in ``unit``. They are minima, or maxima if ``is_maximum``
    is set."""

    required: float
    desired: float
    unit: str = ""
    is_maximum: bool = False

    def reached(self, value: float) -> str:
        """Return ``target``, ``required`` or ``no``."""
        sign = -1 if self.is_maximum else 1
        if value * sign >= self.desired * sign:
            return "target"
        return "required" if value * sign >= self.required * sign else "no"

    def judged(self, spread: Spread) -> str:
        """Return the verdict for the median, with a question mark if the rounds disagree."""
        verdicts = {self.reached(value) for value in (spread.minimum, spread.maximum)}
        return self.reached(spread.median) + (" ?" if len(verdicts) > 1 else "")

    def format_value(self, value: float) -> str:
        return f"{'≤' if self.is_maximum else '≥'} {value:g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Row:
    """A row of the table. ``results`` are by variant, and relative to ``baseline`` unless it
    is empty. ``floor`` is the result of a relay without features."""

    work: str
    baseline: str
    bound: Bound
    results: Mapping[str, Spread]
    floor: Spread | None = None


@dataclass(frozen=True)
class _Target:
    comparison: str
    baseline: str
    bound: Bound
    compare: Callable[[Runs, Runs], Spread | None]
    peer: str = ""
    """The name of a contender other than the first; the row is empty if it was not measured."""
    work: str = ""
    """The name of the row, by default the name of the comparison."""

    def row(self, bench: Bench) -> Iterator[Row]:
        result = bench.result(self.comparison)
        if result is None:
            return
        others = {runs.name: runs for runs in result.others}
        peer = others.get(self.peer) if self.peer else result.others[0]
        floor = others.get(names.RELAY)
        results = {
            variant: each
            for variant, ours in result.ours.items()
            if peer and (each := self.compare(ours, peer)) is not None
        }
        floor_spread = self.compare(floor, peer) if floor and peer else None
        yield Row(self.work or self.comparison, self.baseline, self.bound, results, floor_spread)


def _faster(ours: Runs, peer: Runs) -> Spread | None:
    return ratio(ours, peer, speed)


def _added(metric: Metric) -> Callable[[Runs, Runs], Spread]:
    return lambda ours, peer: difference(ours, peer, metric)


def _maximum(required: float, desired: float, unit: str = "") -> Bound:
    return Bound(required, desired, unit, is_maximum=True)


_TRITON = "Triton's REST: requests/s"
_ENVOY_HTTP_CPU = "Envoy, HTTP/1.1: CPU per request"
_ENVOY_GRPC_CPU = "Envoy, V2 gRPC: CPU per request"
_ENVOY_GRPC = "Envoy, V2 gRPC: requests/s"
_REST_PROXY_CPU = "rest-proxy: CPU per request"
_V2_JSON = "the same tensor in V2 JSON: requests/s"
_V2_GRPC_CPU = "the same tensor in V2 gRPC: CPU per request"
_H2LOAD_CPU = "the same load from h2load: CPU per request"
_ECHO = "the echo server without a gateway"
_TARGETS = (
    _Target(names.GRPC_TINY, _ENVOY_GRPC_CPU, _maximum(0.8, 0.6), cpu_ratio),
    _Target(names.JSON_TINY, _ENVOY_HTTP_CPU, _maximum(1.2, 1), cpu_ratio),
    _Target(names.JSON_TINY, _REST_PROXY_CPU, _maximum(1.1, 0.9), cpu_ratio, peer=names.REST_PROXY),
    _Target(names.GRPC_IMAGE, _ENVOY_GRPC_CPU, _maximum(1.05, 0.95), cpu_ratio),
    _Target(names.GRPC_IMAGE, _ENVOY_GRPC, Bound(1, 1.1), _faster),
    _Target(names.BINARY_IMAGE, _TRITON, Bound(0.75, 0.9), _faster),
    _Target(names.JSON_IMAGE, _TRITON, Bound(3.5, 4.2), _faster),
    _Target(names.GRAPHPIPE_IMAGE, _ENVOY_GRPC, Bound(0.6, 0.9), _faster),
    _Target(names.LEGACY_IMAGE, _ENVOY_GRPC, Bound(0.6, 0.9), _faster),
    _Target(names.ROWS_IMAGE, _V2_JSON, Bound(0.8, 1), _faster),
    _Target(names.PREDICT_IMAGE, _V2_GRPC_CPU, _maximum(1.2, 1), cpu_ratio),
    *(
        _Target(name, _ECHO, bound, _added(metric), work=f"added at {name}, {label}")
        for name in (names.JSON_LATENCY, names.GRPC_LATENCY)
        for label, metric, bound in (
            ("p50", p50, _maximum(0.5, 0.25, "ms")), ("p99", p99, _maximum(2, 1, "ms")),
        )
    ),
)  # fmt: skip


def envoy_latency(bench: Bench) -> str:
    """Return the latency that Envoy adds in the same rounds, which is the cost of a hop on the
    machine."""
    parts = []
    for name, protocol in ((names.JSON_LATENCY, "JSON"), (names.GRPC_LATENCY, "gRPC")):
        result = bench.result(name)
        if result is not None and len(result.others) > 1:
            direct, envoy = result.others
            parts.append(f"{difference(envoy, direct, p50)} ms to {protocol} requests")
    return f"At 100 requests/s, Envoy adds {' and '.join(parts)} (p50)." if parts else ""


def rows(bench: Bench) -> list[Row]:
    """Return the rows of the table of targets."""
    return [
        *(row for target in _TARGETS for row in target.row(bench)),
        *_real_clients(bench),
        *_workers(bench),
        *_memory(bench),
        *_linear(bench),
        *_flat(bench),
    ]


def noise(bench: Bench) -> dict[str, Mapping[str, Spread | None]]:
    """Return the noise by comparison: a peer's figures divided by the figures of the same peer in
    the same rounds."""
    return {
        result.name: ratios(again, result.others[0])
        for result in bench.results
        for again in result.others
        if again.name == names.AGAIN
    }


def _memory(bench: Bench) -> Iterator[Row]:
    """Yield a row for the peak memory of the worst pair of protocols, and one for idle memory."""
    variants = dict.fromkeys(peak.variant for peak in bench.peaks)
    if variants:
        peaks = {
            variant: max(peak.ratio for peak in bench.peaks if peak.variant == variant)
            for variant in variants
        }
        worst = {variant: Spread(value, value, value) for variant, value in peaks.items()}
        yield Row("peak memory, one 256 MiB tensor, worst pair", "its size", _maximum(3, 2), worst)
    if bench.idle:
        megabytes = {variant: spread([value / 1e6]) for variant, value in bench.idle.items()}
        yield Row("resident memory when idle", "", _maximum(100, 70, "MB"), megabytes)


def _real_clients(bench: Bench) -> Iterator[Row]:
    first = bench.result(names.BY_H2LOAD)
    for name in (names.BY_GRPCIO, names.BY_GRPC_GO) if first else ():
        last = bench.result(name)
        growth = _cpu_growth(first, last, 1) if first and last else {}
        floors = [each for each in map(_floor, (last, first)) if each is not None]
        floor = ratio(floors[0], floors[1], proxy_cpu) if len(floors) == 2 else None
        yield Row(name, _H2LOAD_CPU, _maximum(1.1, 1.1), growth, floor)


def _floor(result: Result | None) -> Runs | None:
    others = () if result is None else result.others
    return next((runs for runs in others if runs.name == names.RELAY), None)


def _workers(bench: Bench) -> Iterator[Row]:
    for each in (curve := bench.curve(names.WORKERS))[1:]:
        growth = _cpu_growth(curve[0], each, 1)
        baseline = f"CPU per request with {curve[0].at}"
        yield Row(f"{names.WORKERS}: with {each.at}", baseline, _maximum(1.1, 1.05), growth)


def _linear(bench: Bench) -> Iterator[Row]:
    """Yield rows with the CPU per byte of the largest tensor, divided by the CPU per byte of the
    smallest tensor of at least a MiB."""
    for name in (names.BINARY_SIZES, names.GRPC_SIZES):
        curve = [result for result in bench.curve(name) if result.at >= _MIB]
        if len(curve) > 1:
            first, last = curve[0], curve[-1]
            baseline = f"CPU per byte at {first.at // _MIB} MiB"
            growth = _cpu_growth(first, last, last.at / first.at)
            yield Row(f"{name}: at {last.at // _MIB} MiB", baseline, _maximum(LINEAR, 1), growth)


def _flat(bench: Bench) -> Iterator[Row]:
    for name in (names.JSON_ROUTES, names.GRPC_ROUTES):
        curve = bench.curve(name)
        if len(curve) > 1:
            first, last = curve[0], curve[-1]
            baseline = f"CPU per request with {first.at}"
            growth = _cpu_growth(first, last, 1)
            yield Row(f"{name}: with {last.at:,}", baseline, _maximum(LINEAR, 1), growth)


def _cpu_growth(first: Result, last: Result, factor: float) -> dict[str, Spread]:
    """Return the CPU per request of ``last``, divided by the CPU per request of ``first`` and by
    ``factor``, for each variant."""
    growth = {
        variant: ratio(runs, first.ours[variant], proxy_cpu) for variant, runs in last.ours.items()
    }
    return {
        variant: Spread(each.median / factor, each.minimum / factor, each.maximum / factor)
        for variant, each in growth.items()
        if each is not None
    }

"""Measures the CPU of a request by stage. py-spy samples a gateway under load, and the module
of a sample determines its stage.

CPU per request is read from /proc without the sampler. The samples only give its distribution over
the gateway's first thread, which runs infergate's Python code. Other threads write the access log,
or belong to the gRPC library. Helper processes are not sampled: each sample wakes an idle process,
and py-spy often counts it as busy. A sample belongs to the innermost frame whose module has a
stage. Shared modules (``core``, HTTP/2) therefore count for their caller, and a codec counts for
the codec method that was called.
"""

import math
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers.support.installed import install

from . import load, proc
from .load import Contender, LoadError, Pace
from .results import Account

PY_SPY = "py-spy==0.4.1"
CLIENTS = "clients' transport"
REQUEST_IN = "read request"
GATEWAY = "route, gateway"
REQUEST_OUT = "write request"
BACKENDS = "backends' transport"
HTTP2 = "HTTP/2, both sides"
RESPONSE_IN = "read response"
RESPONSE_OUT = "write response"
HELPERS = "helper processes"
OBSERVE = "log, metrics"
LOOP = "loop, sockets, libraries"
OTHERS = "other threads"
STAGES = (
    CLIENTS, REQUEST_IN, GATEWAY, REQUEST_OUT, BACKENDS, HTTP2, RESPONSE_IN, RESPONSE_OUT, HELPERS,
    OBSERVE, LOOP, OTHERS,
)  # fmt: skip
_MODULES = {
    "transport/grpc/server": CLIENTS,
    "transport/grpc/multiplexing": CLIENTS,
    "transport/grpc/client": BACKENDS,
    "transport/http1/server": CLIENTS,
    "transport/http1/connection": CLIENTS,
    "transport/http1/request_": CLIENTS,
    "transport/http1/chunked": CLIENTS,
    "transport/http1/error_responses": CLIENTS,
    "transport/http1/response_head": BACKENDS,
    "transport/http1/response_reader": BACKENDS,
    "transport/http1/client": BACKENDS,
    "transport/http1/upstream": BACKENDS,
    "transport/http1/event_stream": BACKENDS,
    "transport/http1/exchange": BACKENDS,
    "transport/compat/aiohttp_server": CLIENTS,
    "transport/compat/aiohttp_request": CLIENTS,
    "transport/compat/aiohttp_client": BACKENDS,
    "transport/compat/grpcio_server": CLIENTS,
    "transport/compat/grpcio_client": BACKENDS,
    "transport/server/admission": CLIENTS,
    "transport/server/incoming_request": CLIENTS,
    "transport/client/pool": BACKENDS,
    "transport/client/response_waiter": BACKENDS,
    "backends/": BACKENDS,
    "gateway/": GATEWAY,
    "routing/": GATEWAY,
    "runtime/offload": HELPERS,
    "observe/": OBSERVE,
}
"""Stages by the prefix of a module's path in the package. The first match counts."""
_EITHER_SIDE = ("transport/http2/", "transport/grpc/")
"""Modules for connections of clients and of backends. A call for a listener always has an outer
frame of a listener's module."""
_CONTRACT = {
    "summarize": REQUEST_IN, "request_text_bytes": REQUEST_IN, "parse_request": REQUEST_IN,
    "complete": REQUEST_IN, "validate": REQUEST_IN, "sequence_of": REQUEST_IN,
    "build_request": REQUEST_OUT, "rewrite_request": REQUEST_OUT,
    "parse_response": RESPONSE_IN, "rewrite_response": RESPONSE_IN,
    "response_text_bytes": RESPONSE_OUT, "build_response": RESPONSE_OUT,
    "build_error": RESPONSE_OUT,
}  # fmt: skip
"""Stages of the functions of a codec."""
_FRAME = re.compile(r"(?P<function>.+) \(.*/infergate/(?P<module>[^:]+)\.py:\d+\)")
_MAIN_THREAD = re.compile(r"thread \(\w+\): MainThread;")
_SAMPLES_A_SECOND = 500
_MIN_SAMPLES = 100


def account(contender: Contender, seconds: float, folder: Path) -> Account:
    """Return the CPU of one request through the proxy of ``contender``. Raises LoadError."""
    pace = Pace()
    trial = load.run(contender, 50, pace, folder)
    count = max(50, int(trial.per_second * seconds))
    before = _cpu_times(contender.proxy)
    load.run(contender, count, pace, folder)
    in_all, in_gateway, in_thread = (
        (late - early) / count
        for late, early in zip(_cpu_times(contender.proxy), before, strict=True)
    )
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(_sample, contender.proxy, seconds, folder)
        while not sampling.done():
            load.run(contender, count, pace, folder)
        samples = folded(sampling.result())
    if samples.total() < _MIN_SAMPLES:
        raise LoadError(f"{contender.name}: py-spy found only {samples.total()} samples")
    stages = {stage: in_thread * count / samples.total() for stage, count in samples.items()}
    stages[HELPERS] = stages.get(HELPERS, 0.0) + in_all - in_gateway
    return Account("", contender.variant, {**stages, OTHERS: max(0.0, in_gateway - in_thread)})


def _cpu_times(pid: int) -> tuple[float, float, float]:
    """Return the microseconds of CPU of the session ``pid``, of its first process, and of the main
    thread of that process."""
    return proc.cpu(pid), proc.process_cpu(pid), proc.main_thread_cpu(pid)


def _sample(pid: int, seconds: float, folder: Path) -> Sequence[str]:
    """Return collapsed stacks, ``frame;frame;frame count``, of the process."""
    path = folder / "stacks"
    tool = install("py-spy", (PY_SPY,)).folder / "venv" / "bin" / "py-spy"
    done = subprocess.run(
        [
            str(tool), "record", "--format=raw", f"--rate={_SAMPLES_A_SECOND}", "--threads",
            "--full-filenames", f"--duration={max(1, math.ceil(seconds))}",
            f"--output={path}", f"--pid={pid}",
        ],
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode or not path.exists():
        raise LoadError(f"py-spy failed:\n{done.stdout}{done.stderr}")
    return path.read_text().splitlines()


def folded(stacks: Iterable[str]) -> Counter[str]:
    """Return the samples of the main thread by stage."""
    samples: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if _MAIN_THREAD.match(stack):
            samples[stage_of(stack.split(";"))] += int(count)
    return samples


def stage_of(frames: Sequence[str]) -> str:
    """Return the stage of one stack. Its outermost frame comes first."""
    entered, otherwise = "", LOOP
    for frame in reversed(frames):
        match = _FRAME.fullmatch(frame)
        if match is None:
            continue
        module = match["module"]
        if module.startswith("codecs/"):
            entered = match["function"].rpartition(".")[2]
        elif entered and (stage := _CONTRACT.get(entered)):
            return stage
        else:
            if module.startswith(_EITHER_SIDE):
                otherwise = HTTP2
            for beginning, stage in _MODULES.items():
                if module.startswith(beginning):
                    return stage
    return _CONTRACT.get(entered, otherwise)

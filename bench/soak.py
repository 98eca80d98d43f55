"""``python -m bench.soak``: every kind of client at a gateway for a while, about one in a hundred
of them broken, and whether anything is left behind.

*Strategy.* Two gateways: the one that is asked serves the embedded models itself and those of the
other through proxies that cut their connections now and then. Both are watched from outside. Only a
call that was under way to the other gateway when its connections were cut may fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT / "tests"))  # how a gateway is started is shared with the tests

import grpc.aio  # noqa: E402
import numpy as np  # noqa: E402
from tritonclient.grpc import service_pb2 as pb  # noqa: E402

from e2e.running import Infergate, started_infergate  # noqa: E402
from faults.watch import complaints, descriptors, resident  # noqa: E402
from infergate.core.call import Call  # noqa: E402
from infergate.core.datatypes import Datatype  # noqa: E402
from infergate.core.errors import GatewayError  # noqa: E402
from infergate.core.messages import InferRequest, InferResponse  # noqa: E402
from infergate.core.tensor import tensor_of  # noqa: E402
from infergate.matrix.clients import FRAMES, SPEAKERS, Speaker  # noqa: E402
from infergate.transport.base import Endpoint  # noqa: E402
from peers.support.process import free_ports  # noqa: E402

from .soak_faults import FAULTS, STREAM, Cutter, break_off  # noqa: E402
from .soak_verdict import Counts, Sample, errors, table, troubles  # noqa: E402

_PATIENCE = 20.0
_FAULTY = 0.01
_CUTS = 0.001
_SIZES = (1, 16, 1000, 40_000)
"""Elements. The JSON of the last is long enough to go to a helper."""
_STREAMED = 20
LISTENERS = """
listeners:
  http: {{address: "127.0.0.1:{2}"}}
  grpc: {{address: "127.0.0.1:{1}"}}
  admin: {{address: "127.0.0.1:{0}"}}
"""
_QUICK = """
limits: {keepalive_time: 5s, header_time: 2s, idle_body_time: 3s}
log: {access: false}
"""
_BEHIND = 'backends: {ours: {protocol: builtin}}\nroutes: [{model: "*", backend: ours}]\n' + _QUICK
_FRONT = """
backends:
  ours: {{protocol: builtin}}
  rpc: {{protocol: v2-grpc, endpoints: ["grpc://{rpc}"], profile: infergate}}
  rest: {{protocol: v2-rest, endpoints: ["http://{rest}"], profile: infergate}}
routes:
  - {{model: '/rpc\\.(.+)/', backend: rpc, rewrite: {{model: '\\1'}}}}
  - {{model: '/rest\\.(.+)/', backend: rest, rewrite: {{model: '\\1'}}}}
  - {{model: "*", backend: ours}}
readiness: lenient
""" + _QUICK.replace("{", "{{").replace("}", "}}")
_MODELS = ("identity", "rpc.identity", "rest.identity")


class Soak:
    """Traffic to ``front``; ``cutters`` are by the prefix of the models behind them."""

    def __init__(self, front: Infergate, frames: str, cutters: dict[str, Cutter]) -> None:
        self.counts = Counts()
        self._addresses = {"http": front.http, "grpc": front.grpc, "frames": frames}
        self._cutters = cutters
        self._clients: dict[tuple[Speaker, str], Any] = {}
        self._channel = grpc.aio.insecure_channel(front.grpc)
        self._broken: set[asyncio.Task[None]] = set()

    async def worker(self, until: float, pause: float) -> None:
        """One after the other, whatever comes up."""
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(0, 2 * pause))
            roll = random.random()
            if roll < _CUTS:
                name, cutter = random.choice(list(self._cutters.items()))
                self.counts.faults[f"connections to {name} cut"] += 1
                cutter.cut()
            elif roll < _FAULTY:
                name = random.choice(list(FAULTS))
                self.counts.faults[name] += 1
                where, what = FAULTS[name]
                task = asyncio.create_task(break_off(self._addresses[where], what()))
                self._broken.add(task)
                task.add_done_callback(self._broken.discard)
            else:
                speaker = random.choice((*SPEAKERS, None))
                await self._good(random.choice(_MODELS), random.choice(_SIZES), speaker)

    async def everything(self) -> None:
        """Each kind of call once, so that what is made once is made."""
        for model in _MODELS:
            for size in _SIZES:
                for speaker in (*SPEAKERS, None):
                    await self._good(model, size, speaker)

    async def _good(self, model: str, size: int, speaker: Speaker | None) -> None:
        if speaker is not None and speaker.listener == FRAMES:
            model = "identity"  # what its listener is bound to
        name = f"{'V2 gRPC, stream' if speaker is None else speaker.name} → {model}"
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(2 * _PATIENCE):
                if speaker is None:
                    await self._stream(model, size)
                else:
                    await self._ask(speaker, model, size)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            words = f"{name}: {_words(error)}"
            known = self._is_explained(model, began)
            (self.counts.explained if known else self.counts.unexplained)[words] += 1
        else:
            self.counts.good[name] += 1

    def _is_explained(self, model: str, began: float) -> bool:
        cutter = self._cutters.get(model.partition(".")[0])
        return cutter is not None and cutter.cut_at >= began - 1.0

    async def _ask(self, speaker: Speaker, model: str, size: int) -> None:
        numbers = np.random.default_rng(size).random(size, dtype=np.float32)
        asked = InferRequest(model, inputs=(tensor_of("INPUT0", Datatype.FP32, numbers),))
        now = time.monotonic()
        told = await self._client(speaker, model).perform(
            asked, Call("soak", now, deadline=now + _PATIENCE)
        )
        assert isinstance(told, InferResponse)
        assert [bytes(each.data) for each in told.outputs] == [numbers.tobytes()], "another answer"

    def _client(self, speaker: Speaker, model: str) -> Any:
        path = speaker.path(model, "") if speaker.bound else ""
        key = speaker, path
        if key not in self._clients:
            listener = "frames" if speaker.listener == FRAMES else speaker.listener.split()[0]
            host, _, port = self._addresses[listener].rpartition(":")
            framed = speaker.listener == FRAMES
            endpoint = Endpoint(host, int(port), path=path, framed=framed)
            self._clients[key] = speaker.client(endpoint)
        return self._clients[key]

    async def _stream(self, model: str, size: int) -> None:
        asked = pb.ModelInferRequest(model_name=model)
        asked.inputs.add(name="INPUT0", datatype="FP32", shape=[size])
        asked.raw_input_contents.append(bytes(4 * size))
        message = asked.SerializeToString()

        async def messages() -> AsyncIterator[bytes]:
            for _ in range(_STREAMED):
                yield message

        call = self._channel.stream_stream(STREAM)(messages(), timeout=_PATIENCE)
        if random.random() < 0.1:  # a client that loses its interest
            async for _ in call:
                break
            call.cancel()
            return
        got = 0
        async for answer in call:
            told = pb.ModelStreamInferResponse.FromString(answer)
            assert not told.error_message, told.error_message
            got += 1
        assert got == _STREAMED, f"{got} answers of {_STREAMED}"

    async def close(self) -> None:
        """All clients leave."""
        await asyncio.gather(*self._broken, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._clients.values()))
        await self._channel.close()


def _words(error: Exception) -> str:
    if isinstance(error, GatewayError):
        return f"{error.kind.name}: {error.public} ({error.detail})"[:200]
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"[:200]
    return repr(error)[:200]


def _sampled(gateway: Infergate, began: float) -> Sample:
    told = dict(
        line.rsplit(" ", 1) for line in gateway.metrics().splitlines() if not line.startswith("#")
    )
    return Sample(
        time.monotonic() - began,
        resident(gateway.pid),
        descriptors(gateway.pid),
        int(float(told["infergate_tasks"])),
        int(float(told["infergate_in_flight_requests"])),
        int(float(told["infergate_open_streams"])),
    )


async def _watch(gateways: Sequence[Infergate], began: float, seen: list[list[Sample]]) -> None:
    while True:
        for gateway, samples in zip(gateways, seen, strict=True):
            samples.append(await asyncio.to_thread(_sampled, gateway, began))
        await asyncio.sleep(1)


async def _settled(gateway: Infergate, began: float) -> Sample:
    """When nothing changes any more."""
    known: list[Sample] = []
    while len(known) < 4 or len({(each.descriptors, each.tasks) for each in known[-4:]}) > 1:
        known.append(await asyncio.to_thread(_sampled, gateway, began))
        await asyncio.sleep(1)
    return known[-1]


async def _calmed(gateway: Infergate, began: float, before: Sample) -> Sample:
    """What is left when all have gone, or a while after that."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = await asyncio.to_thread(_sampled, gateway, began)
        calm = not troubles("", before, (), found, "")
        if calm or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def _started(engine: str, config: str, frames: int = 0) -> Iterator[Infergate]:
    listeners = LISTENERS
    if frames:
        listeners += (
            f"  graphpipe: [{{{{address: '127.0.0.1:{frames}', model: identity, "
            "framing: size-prefixed}}]\n"
        )
    with started_infergate(config, listeners, engine) as running:
        yield running


async def _soak(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(_started(options.engine, _BEHIND))
        cutters = {"rpc": Cutter(behind.grpc), "rest": Cutter(behind.http)}
        for each in cutters.values():
            await each.start()
        config = _FRONT.format(rpc=cutters["rpc"].address, rest=cutters["rest"].address)
        (frames,) = free_ports(1)
        front = stack.enter_context(_started(options.engine, config, frames))
        gateways = {"in front": front, "behind": behind}
        return await _run(options, gateways, f"127.0.0.1:{frames}", cutters)


async def _run(
    options: argparse.Namespace,
    gateways: dict[str, Infergate],
    frames: str,
    cutters: dict[str, Cutter],
) -> int:
    first = Soak(gateways["in front"], frames, cutters)
    await asyncio.gather(*(first.everything() for _ in range(4)))  # so that all helpers are made
    await first.close()
    for each in cutters.values():
        each.cut()
    began = time.monotonic()
    before = [await _settled(each, began) for each in gateways.values()]
    began = time.monotonic()
    seen: list[list[Sample]] = [[] for _ in gateways]
    soak = Soak(gateways["in front"], frames, cutters)
    watching = asyncio.create_task(_watch(list(gateways.values()), began, seen))
    pause = options.workers / options.rate
    until = began + options.seconds
    await asyncio.gather(*(soak.worker(until, pause) for _ in range(options.workers)))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await soak.close()
    for each in cutters.values():
        await each.close()
    found = errors(first.counts) + errors(soak.counts)
    print(f"{options.seconds:g} s, engine {options.engine}")
    for (name, gateway), was, samples in zip(gateways.items(), before, seen, strict=True):
        after = await _calmed(gateway, began, was)
        print(table(name, was, samples, after))
        found += troubles(name, was, samples, after, complaints(gateway))
    _print_counts(soak.counts)
    for each in found:
        print(f"FOUND: {each}")
    return 1 if found else 0


def _print_counts(counts: Counts) -> None:
    for what in ("good", "faults", "explained", "unexplained"):
        told = getattr(counts, what)
        print(f"{what}: {told.total()}")
        for name, count in sorted(told.items()):
            print(f"  {count:7} {name}")


def main(argv: Sequence[str]) -> int:
    """0, or 1 where something leaks or went wrong without a reason."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="default: %(default)s")
    parser.add_argument("--engine", default="own", help="own or compat; default: %(default)s")
    parser.add_argument("--rate", type=float, default=100.0, help="calls a second, if they go")
    parser.add_argument("--workers", type=int, default=16, help="calls at once")
    return asyncio.run(_soak(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

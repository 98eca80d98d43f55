"""The clients of a soak, which use every protocol. Most of them send valid requests; some make
mistakes or break off.

*Rule.* Every response is verified. A valid client gets the correct response, unless the server may
fail during a request and has an outage. A client that makes a mistake gets an error.
"""

import asyncio
import contextlib
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from faults.load import described
from infergate.backends.backend_settings import BackendSettings
from infergate.backends.remote import HTTP_MESSAGES, RPC_MESSAGES, RemoteBackend
from infergate.codecs.base import TransportKind
from infergate.codecs.registry import plugins
from infergate.codecs.trtis.grpc_methods import STREAM_INFER
from infergate.codecs.trtis.messages import InferResponse as LegacyResponse
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelMetadataRequest,
    Operation,
)
from infergate.core.request_context import RequestContext
from infergate.core.tensor import tensor_from_array
from infergate.core.wire import join_parts
from infergate.matrix.client_kinds import CLIENT_KINDS, ClientKind
from infergate.matrix.gateways import WITHOUT_METADATA, model_path
from infergate.transport.base import Endpoint
from infergate.transport.compat.grpcio_client import GrpcioUpstream
from infergate.transport.framed.client import HttpOrFrameUpstream

from .soak_attackers import ATTACKS
from .soak_deployment import KEY, ONCE, RETRIED, Listener
from .soak_faults import FAULTS, STREAM, Target, break_off
from .soak_verdict import Counts, Outages

PATIENCE: Final = 100.0
"""Timeout of a request in seconds. It is long, because the soak does not measure speed."""
_CALM: Final = 60.0
"""Seconds without large attacks at the end of the soak, longer than freed memory is kept."""
_SIZES: Final = (1, 16, 1000, 40_000)
"""Numbers of elements. The JSON of the largest tensor is long enough for a helper process."""
_SIZE_WEIGHTS: Final = (35, 25, 20, 20)
_LIMITS: Final = replace(DEFAULT_LIMITS, connect_time=PATIENCE)
_STREAM_LENGTH: Final = 10
_MODELS: Final = ("identity", *(f"{each}.identity" for each in (*RETRIED, *ONCE)))
_REPEATS: Final = ("repeat", "rpc.repeat")
_SUMS: Final = ("rpc.accumulate", "rest.accumulate")
_UNFRAMED: Final = [each for each in CLIENT_KINDS if not each.is_framed]
_WITH_METADATA: Final = [each for each in _UNFRAMED if each.protocol not in WITHOUT_METADATA]
_WITHOUT_SEQUENCES: Final = {"graphpipe", "tfs-grpc", "tfs-rest", *WITHOUT_METADATA}
_SEQUENTIAL: Final = [each for each in CLIENT_KINDS if each.protocol not in _WITHOUT_SEQUENCES]
_STREAMING: Final = [
    each for each in CLIENT_KINDS if each.name in ("V2 REST, binary", "V2 gRPC, raw")
]
_BROKEN: Final = re.compile("Socket closed|Stream removed|reset by peer|failed to connect")
"""Matches grpc-core's text for a closed connection."""
_SEQUENCE_ID: Final = re.compile("sequence [0-9]+")
"""Matches the parts of error texts that are removed when errors are grouped."""
_CREDENTIALS: Final = {"authorization": f"Bearer {KEY}"}
_EXPECTED_KINDS: Final = frozenset(
    {Kind.BAD_REQUEST, Kind.UNAUTHENTICATED, Kind.NOT_FOUND, Kind.BACKEND_ERROR, Kind.NO_BACKEND}
)
"""The kinds of errors that a client may get after a mistake, as the clients of some protocols
report them."""

_LATE: Final = frozenset({Kind.TIMEOUT, Kind.NO_BACKEND, Kind.BACKEND_ERROR})
"""The kinds of errors that a client may get if its deadline has passed."""


class Traffic:
    """Traffic to the gateway ``front`` and, in part, directly to the server ``left``."""

    def __init__(
        self,
        front: Mapping[str, Listener],
        left: Mapping[str, Listener],
        outages: Outages,
        engine: str,
    ) -> None:
        self.counts: Final = Counts()
        self._front: Final = front
        self._left: Final = left
        self._outages: Final = outages
        self._engine: Final = engine
        self._until = 0.0
        self._clients: dict[object, RemoteBackend[Any, Any]] = {}
        self._channel = grpc.aio.insecure_channel(front["grpc"].address)
        self._background: set[asyncio.Task[None]] = set()

    async def caller(self, until: float, pause: float, faulty: float) -> None:
        """Make one random request after the other. A fraction ``faulty`` (0 to 1) of them
        is invalid, cancelled, incomplete or an attack."""
        self._until = until
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(0, 2 * pause))
            if random.random() < faulty:
                await random.choice(
                    (self._break_off, self._break_off, self._attack, self._invalid, self._cancel)
                )()
            else:
                await random.choices(
                    (self._inference, self._stream, self._responses, self._legacy_stream,
                     self._sequence, self._metadata, self._bypass),
                    (70, 4, 4, 4, 5, 5, 8),
                )[0]()  # fmt: skip

    async def request_everything(self, concurrency: int) -> None:
        """Make each kind of request once, so that objects that are created on first use exist. Make
        ``concurrency`` of the largest requests at the same time, because the process keeps their
        memory.
        """
        for model in _MODELS:
            for kind in CLIENT_KINDS:
                await self._infer(kind, model, 16)
        for kind in CLIENT_KINDS:
            models = itertools.islice(itertools.cycle(_MODELS), concurrency)
            await asyncio.gather(*(self._infer(kind, each, _SIZES[-1]) for each in models))
        for kind in _WITH_METADATA:
            await self._infer_directly(kind, _SIZES[-1])
        for _ in range(10):
            for each in (self._stream, self._responses, self._legacy_stream, self._sequence,
                         self._metadata, self._bypass):  # fmt: skip
                await each()

    async def make_every_attack(self) -> None:
        """Make each attack once, because the process also keeps the memory of attacks."""
        for name in ATTACKS:
            await self._make_attack(name)

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._clients.values()))
        await self._channel.close()

    # ---- verification

    async def _record(self, name: str, model: str, exchange: Awaitable[None]) -> None:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await exchange
        except Exception as error:  # noqa: BLE001 - every failure is recorded
            description = f"{name}: {_description(error)}"
            may_fail = model.partition(".")[0] in ONCE and not _is_gateway_fault(error)
            if may_fail and self._outages.explain(began, asyncio.get_running_loop().time()):
                self.counts.explained[description] += 1
            else:
                self.counts.unexplained[description] += 1
        else:
            self.counts.good[name] += 1

    # ---- valid clients

    async def _inference(self) -> None:
        size = random.choices(_SIZES, _SIZE_WEIGHTS)[0]
        await self._infer(random.choice(CLIENT_KINDS), random.choice(_MODELS), size)

    async def _bypass(self) -> None:
        await self._infer_directly(random.choice(_WITH_METADATA), random.choice(_SIZES))

    async def _infer_directly(self, kind: ClientKind, size: int) -> None:
        """Send a request directly to a server. The server's listeners use TLS where the gateway's
        listeners do not."""
        client = self._client(kind, "identity", self._left)
        exchange = _expect_identity(client, "identity", size)
        await self._record(f"{kind.name} → a server", "identity", exchange)

    async def _infer(self, kind: ClientKind, model: str, size: int) -> None:
        if kind.is_framed:
            model = "identity"  # the listener serves only this model
        client = self._client(kind, model)
        await self._record(f"{kind.name} → {model}", model, _expect_identity(client, model, size))

    async def _metadata(self) -> None:
        kind = random.choice(_SEQUENTIAL)
        model = random.choice(_MODELS)

        async def exchange() -> None:
            response = await _perform(self._client(kind, model), ModelMetadataRequest(model))
            assert isinstance(response, ModelMetadata)
            assert [each.name for each in response.inputs] == ["INPUT0"], response

        await self._record(f"{kind.name}, metadata", model, exchange())

    async def _sequence(self) -> None:
        kind, model = random.choice(_SEQUENTIAL), random.choice(_SUMS)
        client = self._client(kind, model)
        identity = random.getrandbits(32) + 1

        async def exchange() -> None:
            steps = ({"sequence_start": True}, {}, {}, {"sequence_end": True})
            for number, flags in enumerate(steps, 1):
                inputs = (tensor_from_array("INPUT", Datatype.INT32, np.array([number])),)
                request = InferRequest(
                    model, parameters={"sequence_id": identity, **flags}, inputs=inputs
                )
                response = await _perform(client, request)
                assert isinstance(response, InferResponse)
                assert response.outputs[0].numpy()[0] == number * (number + 1) // 2, "wrong sum"

        await self._record(f"{kind.name}, sequence → {model}", model, exchange())

    async def _responses(self) -> None:
        """Send one request that gets many responses."""
        kind, model = random.choice(_STREAMING), random.choice(_REPEATS)
        client = self._client(kind, model)
        values = np.arange(_STREAM_LENGTH, dtype=np.int32)
        inputs = (
            tensor_from_array("IN", Datatype.INT32, values),
            tensor_from_array("DELAY", Datatype.UINT32, np.full(_STREAM_LENGTH, 2, np.uint32)),
        )

        async def exchange() -> None:
            request, outputs = InferRequest(model, inputs=inputs), []
            async with aclosing(client.stream(request, _call(client))) as responses:
                async for each in responses:
                    outputs += [int(t.numpy().flat[0]) for t in each.outputs if t.name == "OUT"]
            assert outputs == values.tolist(), f"{len(outputs)} responses of {_STREAM_LENGTH}"

        await self._record(f"{kind.name}, many responses → {model}", model, exchange())

    async def _stream(self) -> None:
        """Send many requests on a stream of V2 gRPC. The stream is sometimes cancelled."""
        model, size = random.choice(_MODELS), random.choice(_SIZES[:3])
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[size])
        request.raw_input_contents.append(bytes(4 * size))
        if random.random() < 0.1:  # the client cancels
            call = self._streaming(STREAM, request.SerializeToString())
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    break
            call.cancel()
            self.counts.faults["a cancelled stream"] += 1
            return

        def error_in(response: bytes) -> str:
            return str(pb.ModelStreamInferResponse.FromString(response).error_message)

        exchange = self._check_stream(STREAM, request.SerializeToString(), error_in)
        await self._record(f"V2 gRPC, stream → {model}", model, exchange)

    async def _legacy_stream(self) -> None:
        """Send many requests on a stream of the legacy API."""
        model = random.choice(_MODELS)
        kind = next(each for each in CLIENT_KINDS if each.protocol == "trtis-grpc")
        codec = plugins()["trtis-grpc"].create({})
        wire = codec.build_request(_identity(model, 16), kind.profile, described(model))

        def error_in(response: bytes) -> str:
            return str(LegacyResponse.FromString(response).request_status.msg)

        exchange = self._check_stream(STREAM_INFER, bytes(join_parts(wire.message)), error_in)
        await self._record(f"legacy TRT, stream → {model}", model, exchange)

    def _streaming(self, method: str, message: bytes) -> Any:
        async def messages() -> AsyncIterator[bytes]:
            for _ in range(_STREAM_LENGTH):
                yield message

        return self._channel.stream_stream(method)(
            messages(), timeout=PATIENCE, metadata=tuple(_CREDENTIALS.items())
        )

    async def _check_stream(
        self, method: str, message: bytes, error_in: Callable[[bytes], str]
    ) -> None:
        received = 0
        async for response in self._streaming(method, message):
            if problem := error_in(response):
                raise GatewayError(Kind.BACKEND_ERROR, problem)
            received += 1
        assert received == _STREAM_LENGTH, f"{received} responses of {_STREAM_LENGTH}"

    # ---- clients that make mistakes, break off or attack

    async def _break_off(self) -> None:
        name = random.choice(list(FAULTS))
        self.counts.faults[name] += 1
        listener, data = FAULTS[name]
        self._start(break_off(self._target(listener), data(KEY)))

    def _start(self, exchange: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(exchange)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _attack(self) -> None:
        """Make an attack. Large attacks stop before the end of the soak, because the gateway keeps
        their memory for a while."""
        is_late = time.monotonic() > self._until - _CALM
        names = [name for name, each in ATTACKS.items() if not (is_late and each.is_large)]
        self._start(self._make_attack(random.choice(names)))

    async def _make_attack(self, name: str) -> None:
        self.counts.faults[name] += 1
        attack = ATTACKS[name]
        loop = asyncio.get_running_loop()
        began = loop.time()
        listener = self._front[attack.listener]
        target = listener.target("h2" if attack.listener == "grpc" else "http/1.1")
        wrong = (await attack.outcomes(target) or {"nothing"}) - attack.expected
        if self._engine == "compat":
            wrong -= attack.library
        if not wrong:
            return
        is_explained = attack.reaches_server and self._outages.explain(began, loop.time())
        counts = self.counts.explained if is_explained else self.counts.unexplained
        counts[f"{name}: {', '.join(sorted(wrong))}"] += 1

    def _target(self, listener: str) -> Target:
        if listener == "plain":
            secured = self._front["http"], self._left["grpc"]
            return Target(random.choice(secured).address)
        fronts = [each for each in (self._front, self._left) if listener in each]
        protocol = "h2" if listener == "grpc" else "http/1.1"
        return random.choice(fronts)[listener].target(protocol)

    async def _invalid(self) -> None:
        """Send a request with a wrong key, an unknown model or a missing input. Each must get an
        error."""
        kind = random.choice(_UNFRAMED)
        incomplete = _identity("simple", 1)
        name, request, headers = random.choice(
            (
                ("a wrong key", _identity("identity", 1), {"authorization": "Bearer wrong"}),
                ("an unknown model", _identity("nobody", 1), _CREDENTIALS),
                ("too few inputs", incomplete, _CREDENTIALS),
            )
        )
        self.counts.faults[name] += 1

        async def exchange() -> None:
            client = self._client(kind, request.model)
            try:
                await _perform(client, request, headers)
            except GatewayError as error:
                if error.kind in _EXPECTED_KINDS and not _is_gateway_fault(error):
                    return
                raise
            raise AssertionError("the request was not rejected")

        await self._record(f"{kind.name}, {name}", request.model, exchange())

    async def _cancel(self) -> None:
        """Cancel a request in progress, or send it with a deadline that is too short."""
        kind, model = random.choice(CLIENT_KINDS), random.choice(_MODELS)
        if kind.is_framed:
            model = "identity"
        self.counts.faults["a cancelled request"] += 1
        client = self._client(kind, model)
        seconds = random.choice((0.0, 0.001, 0.005))

        async def exchange() -> None:
            request = _identity(model, random.choice(_SIZES))
            try:
                async with asyncio.timeout(random.choice((0.001, 0.005))):
                    await client.perform(request, _call(client, seconds or PATIENCE))
            except TimeoutError:
                return
            except GatewayError as error:
                if error.kind not in _LATE:
                    raise

        await self._record(f"{kind.name}, cancelled", model, exchange())

    # ---- sending requests

    def _client(
        self, kind: ClientKind, model: str, listeners: Mapping[str, Listener] | None = None
    ) -> RemoteBackend[Any, Any]:
        path = "" if kind.is_framed else model_path(kind.protocol, model)
        listener = (listeners or self._front)[_listener_of(kind)]
        key = kind.name, path, listener.address
        if key not in self._clients:
            self._clients[key] = _build_client(kind, listener, path)
        return self._clients[key]


def _listener_of(kind: ClientKind) -> str:
    """Return the name of the listener to which clients of ``kind`` connect."""
    if kind.is_framed:
        return "graphpipe"
    if kind.protocol in WITHOUT_METADATA:
        return f"additional.{kind.protocol}"
    return plugins()[kind.protocol].transport_kind.value


def _build_client(kind: ClientKind, listener: Listener, path: str) -> RemoteBackend[Any, Any]:
    host, _, port = listener.address.rpartition(":")
    plugin = plugins()[kind.protocol]
    endpoint = Endpoint(host, int(port), listener.tls is not None, path, framed=kind.is_framed)
    server = BackendSettings(
        kind.name,
        (endpoint,),
        timeout=PATIENCE,
        profile=kind.profile,
        forward_headers=tuple(_CREDENTIALS),
    )
    codec = kind.codec or plugin.create({})
    if plugin.transport_kind is TransportKind.HTTP:
        http = HttpOrFrameUpstream(_LIMITS, tls=listener.tls)
        return RemoteBackend(server, codec, http, HTTP_MESSAGES, _LIMITS)
    rpc = GrpcioUpstream(_LIMITS, listener.tls)
    return RemoteBackend(server, codec, rpc, RPC_MESSAGES, _LIMITS)


def _call(
    client: RemoteBackend[Any, Any],
    seconds: float = PATIENCE,
    headers: Mapping[str, str] = _CREDENTIALS,
) -> RequestContext:
    context = RequestContext("soak", time.monotonic() + seconds, headers=headers)
    if client.protocol in WITHOUT_METADATA:
        context.policy = replace(context.policy, declared_metadata=described("identity"))
    return context


async def _perform(
    client: RemoteBackend[Any, Any], request: Operation, headers: Mapping[str, str] = _CREDENTIALS
) -> object:
    return await client.perform(request, _call(client, headers=headers))


def _numbers(size: int) -> Any:
    return np.random.default_rng(size).random(size, dtype=np.float32)


def _identity(model: str, size: int) -> InferRequest:
    return InferRequest(model, inputs=(tensor_from_array("INPUT0", Datatype.FP32, _numbers(size)),))


async def _expect_identity(client: RemoteBackend[Any, Any], model: str, size: int) -> None:
    response = await _perform(client, _identity(model, size))
    assert isinstance(response, InferResponse)
    expected = _numbers(size).tobytes()
    assert [bytes(each.data) for each in response.outputs] == [expected], "an unexpected response"


def _is_gateway_fault(error: Exception) -> bool:
    """Return whether the connection to the gateway itself failed, or a response was wrong."""
    if isinstance(error, GatewayError):
        return any(f"backend '{each.name}': " in error.public for each in CLIENT_KINDS)
    if isinstance(error, grpc.aio.AioRpcError):
        return bool(_BROKEN.search(error.details() or ""))
    return True


def _description(error: Exception) -> str:
    if isinstance(error, GatewayError):
        text = f"{error.kind.name}: {error.public} ({error.detail})"[:200]
        return _SEQUENCE_ID.sub("sequence …", text)
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"[:200]
    return repr(error)[:200]

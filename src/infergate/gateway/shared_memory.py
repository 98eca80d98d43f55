"""Registered shared memory regions, and inferences whose tensors lie in them.

To most backends an inference looks as if all its tensors had been in the message: inputs are copied
from their regions before it is sent, outputs to theirs after the response. A backend that reads
regions itself is sent every registration, and its requests name the regions.

- Copies are limited: those of one request by ``limits.body``, all together by
  ``limits.in_flight_bytes``, as if they had been in the messages.
- Outputs are written only after all of them were found to fit; they must not overlap.
- Every registration and unregistration is logged to ``infergate.audit``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, TypeVarTuple

from infergate.backends.base import Backend
from infergate.core.call import Call
from infergate.core.classification import PARAMETER
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, UnknownRegion, bad_request
from infergate.core.limits import MIB, Limits
from infergate.core.messages import (
    Answer,
    Done,
    InferRequest,
    InferResponse,
    RequestedOutput,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.places import Place
from infergate.core.tensor import Tensor, check_data, check_size
from infergate.core.vocabulary import REGION_NOT_TOLD
from infergate.gateway.audit import audited
from infergate.gateway.regions import Region, check_registration, opened

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)
MemoryOperation = (
    SharedMemoryStatusRequest | SharedMemoryRegisterRequest | SharedMemoryUnregisterRequest
)
_PATIENCE: Final = 2.0
"""Seconds that a backend of a new configuration has to accept each region."""
_SILENT: Final = frozenset({Kind.CONNECT, Kind.TIMEOUT})
_INLINE: Final = MIB
"""Bytes that are copied on the event loop, in about 0.1 ms; a thread copies more."""
_INLINE_ELEMENTS: Final = 1024
"""Elements of BYTES tensors that are copied on the event loop, in about 0.3 ms: each of them is
visited, however short it is."""


def in_shared_memory(request: InferRequest) -> bool:
    """Return whether an input of ``request`` lies in shared memory, or an output is to be written
    there."""
    for tensor in request.inputs:
        if tensor.place is not None:
            return True
    for output in request.outputs:  # noqa: SIM110 - on the path of every request; any() is slower
        if output.place is not None:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Loan:
    """An inference that uses shared memory: the ``request`` for the backend, and where the outputs
    go."""

    request: InferRequest
    _places: Mapping[str, Place] = field(default_factory=dict)
    _regions: Mapping[str, Region] = field(default_factory=dict)

    async def delivered(self, answer: InferResponse) -> InferResponse:
        """Write the outputs to their regions and return ``response`` with references to them.
        Raises BAD_REQUEST naming an output that does not fit."""
        moved: list[tuple[Tensor, Place]] = []
        for tensor in answer.outputs:
            ref = self._places.get(tensor.name)
            if ref is None:
                continue
            size = len(tensor.data)
            if size > ref.size:
                raise bad_request(
                    f"shared memory size specified with the request for output '{tensor.name}' "
                    f"({ref.size} bytes) should be at least {size} bytes to hold the results"
                )
            moved.append((tensor, replace(ref, size=size)))
        size = sum(ref.size for _, ref in moved)
        await _moved(_write, moved, self._regions, at_once=size <= _INLINE)
        ref_of = {tensor.name: ref for tensor, ref in moved}
        outputs = tuple(
            replace(tensor, data=b"", place=ref_of[tensor.name])
            if tensor.name in ref_of
            else tensor
            for tensor in answer.outputs
        )
        return replace(answer, outputs=outputs)


class SharedMemory:
    """The registered regions. ``enabled``: whether any can be registered; ``backends``: those that
    read regions themselves; ``predecessor``: that of the previous configuration, whose regions are
    kept."""

    def __init__(
        self,
        limits: Limits,
        backends: Sequence[Backend] = (),
        *,
        on: bool,
        before: SharedMemory | None = None,
    ) -> None:
        self._on: Final = on
        self._limits: Final = limits
        self._backends: Final = tuple(backends)
        kept = before if before is not None and on and before._on else None  # noqa: SLF001
        self._regions: Final[dict[str, Region]] = {} if kept is None else kept._regions  # noqa: SLF001
        self._changing: Final[asyncio.Lock] = asyncio.Lock() if kept is None else kept._changing  # noqa: SLF001
        self._held = 0

    @property
    def extensions(self) -> tuple[str, ...]:
        """The V2 extensions that are served."""
        if not self._on:
            return ()
        system = ("system_shared_memory",)
        return (*system, "cuda_shared_memory") if self._backends else system

    async def introduce(self, known: Collection[Backend]) -> None:
        """Register all regions with the backends that are not in ``known_backends``. A refusal is
        logged."""
        async with self._changing:
            descriptions = [item.told for item in self._regions.values()]
            new_backends = [item for item in self._backends if item not in known]
            await asyncio.gather(*(_tell_again(backend, descriptions) for backend in new_backends))

    # ---- registering

    async def perform(self, operation: MemoryOperation, call: Call) -> Answer:
        """Carry out ``operation``. Raises GatewayError."""
        match operation:
            case SharedMemoryStatusRequest():
                return self._status(operation)
            case SharedMemoryRegisterRequest() if not self._on:
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"failed to register shared memory region '{operation.name}': shared memory "
                    "is not supported",
                )
        if self._on:
            call.backend = ",".join(backend.name for backend in self._backends)
            await audited(operation, call, self._change(operation, call))
        return Done()

    async def _change(self, operation: MemoryOperation, call: Call) -> None:
        async with self._changing:
            if isinstance(operation, SharedMemoryRegisterRequest):
                await self._register(operation, call)
            elif isinstance(operation, SharedMemoryUnregisterRequest):
                await self._unregister(operation, call)

    def _status(self, asked: SharedMemoryStatusRequest) -> SharedMemoryStatus:
        regions = tuple(
            self._regions[name].told for name in sorted(self._chosen(asked.name, asked.cuda))
        )
        if asked.name and self._on and not regions:
            kind = {None: "", False: "system ", True: "cuda "}[asked.cuda]
            raise GatewayError(
                Kind.NOT_FOUND, f"Unable to find {kind}shared memory region: '{asked.name}'"
            )
        return SharedMemoryStatus(regions)

    def _chosen(self, name: str, cuda: bool | None) -> list[str]:  # noqa: FBT001 - as in the request
        names = [name] if name in self._regions else [] if name else list(self._regions)
        return [
            candidate
            for candidate in names
            if cuda is None or cuda == (self._regions[candidate].told.device is not None)
        ]

    async def _register(self, asked: SharedMemoryRegisterRequest, call: Call) -> None:
        check_registration(asked)
        if asked.device is not None and not self._backends:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"failed to register CUDA shared memory region: '{asked.name}', GPUs not supported",
            )
        if asked.name in self._regions:
            raise GatewayError(
                Kind.ALREADY_EXISTS, f"shared memory region '{asked.name}' already in manager"
            )
        if len(self._regions) >= self._limits.regions:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"shared memory region '{asked.name}': {self._limits.regions} regions are "
                "registered, and that is the limit",
                limit="regions",
            )
        region = opened(asked)
        await self._tell(asked, call)
        self._regions[asked.name] = region

    async def _tell(self, asked: SharedMemoryRegisterRequest, call: Call) -> None:
        """Register with every backend or with none."""
        unregister = SharedMemoryUnregisterRequest(asked.name, cuda=asked.device is not None)
        for index, backend in enumerate(self._backends):
            try:
                await backend.perform(asked, call)
            except GatewayError:
                await asyncio.gather(
                    *(
                        registered.perform(unregister, call)
                        for registered in self._backends[:index]
                    ),
                    return_exceptions=True,
                )
                raise

    async def _unregister(self, asked: SharedMemoryUnregisterRequest, call: Call) -> None:
        for name in self._chosen(asked.name, asked.cuda):
            del self._regions[name]
        # a backend may have regions that are unknown here, registered before this process started
        kinds = (False, True) if asked.cuda is None else (asked.cuda,)
        requests = (
            backend.perform(replace(asked, cuda=cuda), call)
            for backend in self._backends
            for cuda in kinds
        )
        results = await asyncio.gather(*requests, return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    # ---- using

    @asynccontextmanager
    async def lent(
        self, request: InferRequest, backend: Backend, *, by_name: bool = True
    ) -> AsyncIterator[Loan]:
        """Yield ``request``, which has tensors in shared memory, in the form for ``backend``.

        ``by_name``: let a backend that reads regions itself do so. Raises GatewayError.
        """
        regions = self._used(request)
        if by_name and backend in self._backends:
            _check_bounds(request, regions)
            yield Loan(request)
            return
        refs: dict[str, Place] = {}
        for output in request.outputs:
            if output.place is not None:
                regions[output.place.region].check(output.place)
                refs[output.name] = output.place
        _check_apart(refs, regions)
        size = sum(tensor.place.size for tensor in request.inputs if tensor.place is not None)
        with self._holding(size):
            elements = sum(
                math.prod(tensor.shape)
                for tensor in request.inputs
                if tensor.place is not None and tensor.datatype is Datatype.BYTES
            )
            at_once = size <= _INLINE and elements <= _INLINE_ELEMENTS
            inputs = await _moved(_read, request.inputs, regions, at_once=at_once)
            outputs = tuple(replace(output, place=None) for output in request.outputs)
            yield Loan(replace(request, inputs=inputs, outputs=outputs), refs, regions)

    def _used(self, request: InferRequest) -> dict[str, Region]:
        """Return the regions of ``request`` by name. Raises UnknownRegion, BAD_REQUEST."""
        regions: dict[str, Region] = {}
        tensors: list[Tensor | RequestedOutput] = [*request.inputs, *request.outputs]
        for tensor in tensors:
            if tensor.place is None:
                continue
            name = tensor.place.region
            if not self._on:
                raise UnknownRegion(
                    name, f"tensor '{tensor.name}': shared memory is not enabled", Kind.UNSUPPORTED
                )
            if name not in self._regions:
                raise UnknownRegion(name, f"Unable to find shared memory region: '{name}'")
            if isinstance(tensor, RequestedOutput) and PARAMETER in tensor.parameters:
                raise bad_request(
                    f"output '{tensor.name}': classes cannot be written to shared memory"
                )
            regions[name] = self._regions[name]
        return regions

    @contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        """Count ``size`` bytes of copies while the block runs. Raises TOO_LARGE, OVERLOADED."""
        if size > self._limits.body:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the inputs in shared memory are {size} bytes, the limit is {self._limits.body}",
                limit="body",
            )
        if self._held + size > self._limits.in_flight_bytes:
            raise GatewayError(
                Kind.OVERLOADED,
                "too many bytes of shared memory are being read",
                retry_after=1.0,
                limit="in_flight_bytes",
            )
        self._held += size
        try:
            yield
        finally:
            self._held -= size


async def _registered_anew(
    backend: Backend, asked: SharedMemoryRegisterRequest, call: Call
) -> None:
    """Register a region, and replace one of that name that the server already has: it may have
    another size, and requests are checked against the size that is registered here."""
    try:
        await backend.perform(asked, call)
    except GatewayError as error:
        if error.kind is not Kind.ALREADY_EXISTS:
            raise
        unregister = SharedMemoryUnregisterRequest(asked.name, cuda=asked.device is not None)
        await backend.perform(unregister, call)
        await backend.perform(asked, call)


async def _tell_again(backend: Backend, told: Iterable[SharedMemoryRegion]) -> None:
    """Register all regions with ``backend``. Stop at the first timeout or connection error, because
    a reload and clients that register regions wait for this."""
    started = time.monotonic()
    for region in told:
        request = SharedMemoryRegisterRequest(
            region.name, region.key, region.offset, region.size, region.device
        )
        call = Call(peer="", started=started, deadline=started + _PATIENCE)
        try:
            await _registered_anew(backend, request, call)
        except GatewayError as error:
            _log.warning(
                "shared memory region %r: %s", region.name, error.public, extra=REGION_NOT_TOLD
            )
            if error.kind in _SILENT:
                return


def _check_bounds(request: InferRequest, regions: Mapping[str, Region]) -> None:
    """Raise BAD_REQUEST naming a tensor whose range is not within its region, or does not have the
    size of its shape: a server that reads it might crash."""
    for tensor in request.inputs:
        if tensor.place is not None:
            regions[tensor.place.region].check_bounds(tensor.place)
            if tensor.datatype is not Datatype.BYTES:
                check_size(tensor.name, tensor.datatype, tensor.shape, tensor.place.size)
    for output in request.outputs:
        if output.place is not None:
            regions[output.place.region].check_bounds(output.place)


def _check_apart(places: Mapping[str, Place], regions: Mapping[str, Region]) -> None:
    """Raise BAD_REQUEST naming two outputs whose ranges overlap."""
    if len(places) < 2:
        return
    spans = sorted(
        (regions[ref.region].span(ref), name) for name, ref in places.items() if ref.size
    )
    for ((file, _, end), first), ((next_file, begin, _), second) in itertools.pairwise(spans):
        if file == next_file and begin < end:
            raise bad_request(
                f"outputs '{first}' and '{second}' are to be written to the same bytes of shared "
                "memory"
            )


def _read(inputs: tuple[Tensor, ...], regions: Mapping[str, Region]) -> tuple[Tensor, ...]:
    return tuple(
        tensor if tensor.place is None else _checked(tensor, regions[tensor.place.region])
        for tensor in inputs
    )


def _checked(tensor: Tensor, region: Region) -> Tensor:
    assert tensor.place is not None
    data = region.read(tensor.place)
    check_data(tensor.name, tensor.datatype, tensor.shape, data)
    return replace(tensor, data=data, place=None)


def _write(written: Sequence[tuple[Tensor, Place]], regions: Mapping[str, Region]) -> None:
    for tensor, ref in written:
        regions[ref.region].write(ref, tensor.data)


async def _moved(function: Callable[[*Ts], T], *arguments: *Ts, at_once: bool) -> T:
    """``function(*arguments)``, which copies: ``at_once``, or by a thread."""
    if at_once:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)

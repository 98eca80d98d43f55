"""Shared memory: what is registered, and inferences whose tensors lie there.

*Strategy.* To a backend an inference looks as if all its tensors had been in the message: inputs
are copied from their regions before it is asked, outputs to theirs after it answered. A backend
that reads regions itself is told of each registration, and is asked by the regions' names.

*Rule 1.* What requests hold in copies is bounded: each by ``limits.body``, all of them by
``limits.in_flight_bytes``, as if it had been in their messages.
*Rule 2.* An output is written only after all outputs were found to fit, and none over another.
*Rule 3.* Each registration, and the end of one, is told to the log ``infergate.audit``.
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
"""Seconds that a backend of a new configuration has to take a region that is registered."""
_SILENT: Final = frozenset({Kind.CONNECT, Kind.TIMEOUT})
_INLINE: Final = MIB
"""Bytes that are copied while everything else waits: about 0.1 ms. More is done by a thread."""
_INLINE_ELEMENTS: Final = 1024
"""The same of BYTES elements, each of which is walked, however short: about 0.3 ms."""


def in_shared_memory(request: InferRequest) -> bool:
    """Whether a tensor of ``request`` lies, or is to be written, there."""
    for tensor in request.inputs:
        if tensor.place is not None:
            return True
    for output in request.outputs:  # noqa: SIM110 - asked of every request, and any() is dear
        if output.place is not None:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Loan:
    """An inference while it uses shared memory: the ``request`` for the backend, and where outputs
    of its answer go."""

    request: InferRequest
    _places: Mapping[str, Place] = field(default_factory=dict)
    _regions: Mapping[str, Region] = field(default_factory=dict)

    async def delivered(self, answer: InferResponse) -> InferResponse:
        """``answer``, once its outputs are written where they were asked for. Raises BAD_REQUEST
        naming the output that does not fit."""
        written: list[tuple[Tensor, Place]] = []
        for tensor in answer.outputs:
            place = self._places.get(tensor.name)
            if place is None:
                continue
            size = len(tensor.data)
            if size > place.size:
                raise bad_request(
                    f"shared memory size specified with the request for output '{tensor.name}' "
                    f"({place.size} bytes) should be at least {size} bytes to hold the results"
                )
            written.append((tensor, replace(place, size=size)))
        size = sum(place.size for _, place in written)
        await _moved(_write, written, self._regions, at_once=size <= _INLINE)
        done = {tensor.name: place for tensor, place in written}
        outputs = tuple(
            replace(tensor, data=b"", place=done[tensor.name]) if tensor.name in done else tensor
            for tensor in answer.outputs
        )
        return replace(answer, outputs=outputs)


class SharedMemory:
    """The regions that are registered. ``on``: whether any can be; ``backends``: those that read
    regions themselves; ``before``: of the configuration before this one, whose regions stay."""

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
        stays = before if before is not None and on and before._on else None  # noqa: SLF001
        self._regions: Final[dict[str, Region]] = {} if stays is None else stays._regions  # noqa: SLF001
        self._changing: Final[asyncio.Lock] = asyncio.Lock() if stays is None else stays._changing  # noqa: SLF001
        self._held = 0

    @property
    def extensions(self) -> tuple[str, ...]:
        """Those of V2 that are served."""
        if not self._on:
            return ()
        system = ("system_shared_memory",)
        return (*system, "cuda_shared_memory") if self._backends else system

    async def introduce(self, known: Collection[Backend]) -> None:
        """Tell those backends of the regions that are not yet ``known``. One that does not take a
        region is logged."""
        async with self._changing:
            told = [each.told for each in self._regions.values()]
            new = [each for each in self._backends if each not in known]
            await asyncio.gather(*(_tell_again(backend, told) for backend in new))

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
            call.backend = ",".join(each.name for each in self._backends)
            await audited(operation, call, self._change(operation, call))
        return Done()

    async def _change(self, operation: MemoryOperation, call: Call) -> None:
        async with self._changing:
            if isinstance(operation, SharedMemoryRegisterRequest):
                await self._register(operation, call)
            elif isinstance(operation, SharedMemoryUnregisterRequest):
                await self._unregister(operation, call)

    def _status(self, asked: SharedMemoryStatusRequest) -> SharedMemoryStatus:
        found = tuple(
            self._regions[name].told for name in sorted(self._chosen(asked.name, asked.cuda))
        )
        if asked.name and self._on and not found:
            of = {None: "", False: "system ", True: "cuda "}[asked.cuda]
            raise GatewayError(
                Kind.NOT_FOUND, f"Unable to find {of}shared memory region: '{asked.name}'"
            )
        return SharedMemoryStatus(found)

    def _chosen(self, name: str, cuda: bool | None) -> list[str]:  # noqa: FBT001 - as it is asked
        names = [name] if name in self._regions else [] if name else list(self._regions)
        return [
            each
            for each in names
            if cuda is None or cuda == (self._regions[each].told.device is not None)
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
        """Register with every backend or none."""
        undo = SharedMemoryUnregisterRequest(asked.name, cuda=asked.device is not None)
        for index, backend in enumerate(self._backends):
            try:
                await backend.perform(asked, call)
            except GatewayError:
                await asyncio.gather(
                    *(each.perform(undo, call) for each in self._backends[:index]),
                    return_exceptions=True,
                )
                raise

    async def _unregister(self, asked: SharedMemoryUnregisterRequest, call: Call) -> None:
        for name in self._chosen(asked.name, asked.cuda):
            del self._regions[name]
        # those that are not known here may be known there: from before this process began
        kinds = (False, True) if asked.cuda is None else (asked.cuda,)
        told = (
            backend.perform(replace(asked, cuda=cuda), call)
            for backend in self._backends
            for cuda in kinds
        )
        wrong = await asyncio.gather(*told, return_exceptions=True)
        for error in wrong:
            if isinstance(error, BaseException):
                raise error

    # ---- using

    @asynccontextmanager
    async def lent(
        self, request: InferRequest, backend: Backend, *, by_name: bool = True
    ) -> AsyncIterator[Loan]:
        """``request``, some of whose tensors are in shared memory, as ``backend`` is to be asked
        it. ``by_name``: with the regions' names, if it reads them itself. Raises GatewayError."""
        regions = self._used(request)
        if by_name and backend in self._backends:
            _check_bounds(request, regions)
            yield Loan(request)
            return
        places: dict[str, Place] = {}
        for output in request.outputs:
            if output.place is not None:
                regions[output.place.region].check(output.place)
                places[output.name] = output.place
        _check_apart(places, regions)
        size = sum(tensor.place.size for tensor in request.inputs if tensor.place is not None)
        with self._holding(size):
            walked = sum(
                math.prod(tensor.shape)
                for tensor in request.inputs
                if tensor.place is not None and tensor.datatype is Datatype.BYTES
            )
            at_once = size <= _INLINE and walked <= _INLINE_ELEMENTS
            inputs = await _moved(_read, request.inputs, regions, at_once=at_once)
            outputs = tuple(replace(output, place=None) for output in request.outputs)
            yield Loan(replace(request, inputs=inputs, outputs=outputs), places, regions)

    def _used(self, request: InferRequest) -> dict[str, Region]:
        """The regions of ``request``, by name. Raises UnknownRegion, BAD_REQUEST."""
        found: dict[str, Region] = {}
        tensors: list[Tensor | RequestedOutput] = [*request.inputs, *request.outputs]
        for each in tensors:
            if each.place is None:
                continue
            name = each.place.region
            if not self._on:
                raise UnknownRegion(
                    name, f"tensor '{each.name}': shared memory is not enabled", Kind.UNSUPPORTED
                )
            if name not in self._regions:
                raise UnknownRegion(name, f"Unable to find shared memory region: '{name}'")
            if isinstance(each, RequestedOutput) and PARAMETER in each.parameters:
                raise bad_request(
                    f"output '{each.name}': classes cannot be written to shared memory"
                )
            found[name] = self._regions[name]
        return found

    @contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        """Rule 1. Raises TOO_LARGE, OVERLOADED."""
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
    """A region of that name that the server has already may be of another size, so it is replaced:
    requests are compared with the size that is known here."""
    try:
        await backend.perform(asked, call)
    except GatewayError as error:
        if error.kind is not Kind.ALREADY_EXISTS:
            raise
        undo = SharedMemoryUnregisterRequest(asked.name, cuda=asked.device is not None)
        await backend.perform(undo, call)
        await backend.perform(asked, call)


async def _tell_again(backend: Backend, told: Iterable[SharedMemoryRegion]) -> None:
    """One that does not answer is told of no more: the reload, and who registers, wait for this."""
    started = time.monotonic()
    for each in told:
        asked = SharedMemoryRegisterRequest(
            each.name, each.key, each.offset, each.size, each.device
        )
        call = Call(peer="", started=started, deadline=started + _PATIENCE)
        try:
            await _registered_anew(backend, asked, call)
        except GatewayError as error:
            _log.warning(
                "shared memory region %r: %s", each.name, error.public, extra=REGION_NOT_TOLD
            )
            if error.kind in _SILENT:
                return


def _check_bounds(request: InferRequest, regions: Mapping[str, Region]) -> None:
    """Raises BAD_REQUEST naming the tensor that is not within its region, or whose place is too
    small or too large for its shape: a server that reads it may crash."""
    for tensor in request.inputs:
        if tensor.place is not None:
            regions[tensor.place.region].check_bounds(tensor.place)
            if tensor.datatype is not Datatype.BYTES:
                check_size(tensor.name, tensor.datatype, tensor.shape, tensor.place.size)
    for output in request.outputs:
        if output.place is not None:
            regions[output.place.region].check_bounds(output.place)


def _check_apart(places: Mapping[str, Place], regions: Mapping[str, Region]) -> None:
    """Raises BAD_REQUEST naming two outputs whose ``places`` overlap."""
    if len(places) < 2:
        return
    spans = sorted(
        (regions[place.region].span(place), name) for name, place in places.items() if place.size
    )
    for ((file, _, end), one), ((next_file, begin, _), other) in itertools.pairwise(spans):
        if file == next_file and begin < end:
            raise bad_request(
                f"outputs '{one}' and '{other}' are to be written to the same bytes of shared "
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
    for tensor, place in written:
        regions[place.region].write(place, tensor.data)


async def _moved(function: Callable[[*Ts], T], *arguments: *Ts, at_once: bool) -> T:
    """``function(*arguments)``, which copies: ``at_once``, or by a thread."""
    if at_once:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)

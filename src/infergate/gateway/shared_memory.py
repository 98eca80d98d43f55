"""Registered shared memory regions, and inferences with tensors in these regions.

For most backends, the gateway copies the inputs from the regions before it sends the request, and
the outputs to the regions after it receives the response. A backend that reads regions itself
receives every registration. Requests to such a backend refer to the regions by name, unless the
route casts datatypes.

- The same limits apply to copied inputs as to messages: ``limits.body`` limits the copies of one
  request, and ``limits.in_flight_bytes`` limits all copies together.
- Outputs must fit into their regions and must not overlap. All outputs are checked before the first
  output is written.
- Every registration and unregistration by a client is logged to ``infergate.audit``.
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
from infergate.core.classification import CLASSIFICATION
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, UnknownRegionError, bad_request
from infergate.core.limits import MIB, Limits
from infergate.core.log_events import REGION_NOT_REGISTERED
from infergate.core.messages import (
    Acknowledgement,
    InferRequest,
    InferResponse,
    RequestedOutput,
    Response,
    SharedMemoryRegion,
    SharedMemoryRegisterRequest,
    SharedMemoryStatus,
    SharedMemoryStatusRequest,
    SharedMemoryUnregisterRequest,
)
from infergate.core.region_ref import RegionRef
from infergate.core.request_context import RequestContext
from infergate.core.tensor import Tensor, check_data, check_size
from infergate.gateway.audit import audit
from infergate.gateway.shared_memory_region import RegisteredRegion, check_registration, open_region

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger(__name__)
MemoryOperation = (
    SharedMemoryStatusRequest | SharedMemoryRegisterRequest | SharedMemoryUnregisterRequest
)
_REGISTER_TIMEOUT_SECONDS: Final = 2.0
"""Seconds within which a backend of a new configuration must accept all regions."""
_UNREACHABLE_KINDS: Final = frozenset({Kind.CONNECT, Kind.TIMEOUT})
_MAX_INLINE_BYTES: Final = MIB
"""Maximum number of bytes that the event loop copies, which takes about 0.1 ms. A thread copies
larger amounts."""
_MAX_INLINE_ELEMENTS: Final = 1024
"""Maximum number of BYTES elements that the event loop copies, which takes about 0.3 ms. Each
element is checked, so a short element costs as much as a long element."""


def uses_shared_memory(request: InferRequest) -> bool:
    """Return whether an input or a requested output of ``request`` is in shared memory."""
    for tensor in request.inputs:
        if tensor.shared_memory is not None:
            return True
    for output in request.outputs:  # noqa: SIM110 - this runs for every request, and any() is slower
        if output.shared_memory is not None:
            return True
    return False


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """An inference with tensors in shared memory: the ``request`` for the backend, and the regions
    of the outputs."""

    request: InferRequest
    _output_refs: Mapping[str, RegionRef] = field(default_factory=dict)
    _regions: Mapping[str, RegisteredRegion] = field(default_factory=dict)

    async def write_outputs(self, response: InferResponse) -> InferResponse:
        """Write the outputs to their regions, and return ``response`` with references to the
        regions. Raises BAD_REQUEST with the name of an output that does not fit."""
        moved: list[tuple[Tensor, RegionRef]] = []
        for tensor in response.outputs:
            ref = self._output_refs.get(tensor.name)
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
        await _run_copy(_write_outputs, moved, self._regions, inline=size <= _MAX_INLINE_BYTES)
        ref_of = {tensor.name: ref for tensor, ref in moved}
        outputs = tuple(
            replace(tensor, data=b"", shared_memory=ref_of[tensor.name])
            if tensor.name in ref_of
            else tensor
            for tensor in response.outputs
        )
        return replace(response, outputs=outputs)


class SharedMemory:
    """The registered regions. With ``enabled``, clients may register regions. ``backends`` are the
    backends that read regions themselves. ``predecessor`` is the instance of the previous
    configuration. Its regions are kept if both configurations enable shared memory."""

    def __init__(
        self,
        limits: Limits,
        backends: Sequence[Backend] = (),
        *,
        enabled: bool,
        predecessor: SharedMemory | None = None,
    ) -> None:
        self._is_enabled: Final = enabled
        self._limits: Final = limits
        self._backends: Final = tuple(backends)
        kept = (
            predecessor if predecessor is not None and enabled and predecessor._is_enabled else None  # noqa: SLF001
        )
        self._regions: Final[dict[str, RegisteredRegion]] = {} if kept is None else kept._regions  # noqa: SLF001
        self._change_lock: Final[asyncio.Lock] = (
            asyncio.Lock() if kept is None else kept._change_lock  # noqa: SLF001
        )
        self._held_bytes = 0

    @property
    def extensions(self) -> tuple[str, ...]:
        """The V2 extensions for shared memory that the gateway supports."""
        if not self._is_enabled:
            return ()
        system = ("system_shared_memory",)
        return (*system, "cuda_shared_memory") if self._backends else system

    async def register_with_new_backends(self, known_backends: Collection[Backend]) -> None:
        """Register all regions with the backends that are not in ``known_backends``. Errors are
        logged."""
        async with self._change_lock:
            descriptions = [item.description for item in self._regions.values()]
            new_backends = [item for item in self._backends if item not in known_backends]
            await asyncio.gather(
                *(_register_all(backend, descriptions) for backend in new_backends)
            )

    # ---- registering

    async def perform(self, operation: MemoryOperation, context: RequestContext) -> Response:
        match operation:
            case SharedMemoryStatusRequest():
                return self._status(operation)
            case SharedMemoryRegisterRequest() if not self._is_enabled:
                raise GatewayError(
                    Kind.UNSUPPORTED,
                    f"failed to register shared memory region '{operation.name}': shared memory "
                    "is not supported",
                )
        if self._is_enabled:
            context.record.backend = ",".join(backend.name for backend in self._backends)
            await audit(operation, context, self._change(operation, context))
        return Acknowledgement()

    async def _change(self, operation: MemoryOperation, context: RequestContext) -> None:
        async with self._change_lock:
            if isinstance(operation, SharedMemoryRegisterRequest):
                await self._register(operation, context)
            elif isinstance(operation, SharedMemoryUnregisterRequest):
                await self._unregister(operation, context)

    def _status(self, request: SharedMemoryStatusRequest) -> SharedMemoryStatus:
        regions = tuple(
            self._regions[name].description
            for name in sorted(self._matching_names(request.name, request.cuda))
        )
        if request.name and self._is_enabled and not regions:
            kind = {None: "", False: "system ", True: "cuda "}[request.cuda]
            raise GatewayError(
                Kind.NOT_FOUND, f"Unable to find {kind}shared memory region: '{request.name}'"
            )
        return SharedMemoryStatus(regions)

    def _matching_names(self, name: str, cuda: bool | None) -> list[str]:  # noqa: FBT001 - as in the request
        names = [name] if name in self._regions else [] if name else list(self._regions)
        return [
            candidate
            for candidate in names
            if cuda is None or cuda == (self._regions[candidate].description.device is not None)
        ]

    async def _register(
        self, request: SharedMemoryRegisterRequest, context: RequestContext
    ) -> None:
        check_registration(request)
        if request.device is not None and not self._backends:
            raise GatewayError(
                Kind.UNSUPPORTED,
                f"failed to register CUDA shared memory region: '{request.name}', "
                "GPUs not supported",
            )
        if request.name in self._regions:
            raise GatewayError(
                Kind.ALREADY_EXISTS, f"shared memory region '{request.name}' already in manager"
            )
        if len(self._regions) >= self._limits.regions:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"shared memory region '{request.name}': the limit of {self._limits.regions} "
                "registered regions is reached",
                limit="regions",
            )
        region = open_region(request)
        await self._register_with_backends(request, context)
        self._regions[request.name] = region

    async def _register_with_backends(
        self, request: SharedMemoryRegisterRequest, context: RequestContext
    ) -> None:
        unregister = SharedMemoryUnregisterRequest(request.name, cuda=request.device is not None)
        for index, backend in enumerate(self._backends):
            try:
                await backend.perform(request, context)
            except GatewayError:
                await asyncio.gather(
                    *(
                        registered.perform(unregister, context)
                        for registered in self._backends[:index]
                    ),
                    return_exceptions=True,
                )
                raise

    async def _unregister(
        self, request: SharedMemoryUnregisterRequest, context: RequestContext
    ) -> None:
        for name in self._matching_names(request.name, request.cuda):
            del self._regions[name]
        # The request goes to every backend, because a backend may have regions that were registered
        # before this process started.
        kinds = (False, True) if request.cuda is None else (request.cuda,)
        requests = (
            backend.perform(replace(request, cuda=cuda), context)
            for backend in self._backends
            for cuda in kinds
        )
        results = await asyncio.gather(*requests, return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    # ---- using

    @asynccontextmanager
    async def stage(
        self, request: InferRequest, backend: Backend, *, by_name: bool = True
    ) -> AsyncIterator[StagedRequest]:
        """Yield the request for ``backend``. ``request`` has tensors in shared memory.

        With ``by_name``, a backend that reads regions itself receives the names of the regions.
        Raises GatewayError.
        """
        regions = self._regions_of(request)
        if by_name and backend in self._backends:
            _check_bounds(request, regions)
            yield StagedRequest(request)
            return
        refs: dict[str, RegionRef] = {}
        for output in request.outputs:
            if output.shared_memory is not None:
                regions[output.shared_memory.region].check(output.shared_memory)
                refs[output.name] = output.shared_memory
        _check_no_overlap(refs, regions)
        size = sum(
            tensor.shared_memory.size
            for tensor in request.inputs
            if tensor.shared_memory is not None
        )
        with self._reserve(size):
            elements = sum(
                math.prod(tensor.shape)
                for tensor in request.inputs
                if tensor.shared_memory is not None and tensor.datatype is Datatype.BYTES
            )
            inline = size <= _MAX_INLINE_BYTES and elements <= _MAX_INLINE_ELEMENTS
            inputs = await _run_copy(_read_inputs, request.inputs, regions, inline=inline)
            outputs = tuple(replace(output, shared_memory=None) for output in request.outputs)
            yield StagedRequest(replace(request, inputs=inputs, outputs=outputs), refs, regions)

    def _regions_of(self, request: InferRequest) -> dict[str, RegisteredRegion]:
        """Return the regions of ``request``, keyed by name. Raises UnknownRegionError and
        BAD_REQUEST."""
        regions: dict[str, RegisteredRegion] = {}
        tensors: list[Tensor | RequestedOutput] = [*request.inputs, *request.outputs]
        for tensor in tensors:
            if tensor.shared_memory is None:
                continue
            name = tensor.shared_memory.region
            if not self._is_enabled:
                text = f"tensor '{tensor.name}': shared memory is not enabled"
                raise UnknownRegionError(name, text, Kind.UNSUPPORTED)
            if name not in self._regions:
                raise UnknownRegionError(name, f"Unable to find shared memory region: '{name}'")
            if isinstance(tensor, RequestedOutput) and CLASSIFICATION in tensor.parameters:
                raise bad_request(
                    f"output '{tensor.name}': classes cannot be written to shared memory"
                )
            regions[name] = self._regions[name]
        return regions

    @contextmanager
    def _reserve(self, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes for copies within the block. Raises TOO_LARGE and OVERLOADED."""
        if size > self._limits.body:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"the inputs in shared memory hold {size} bytes; the limit is {self._limits.body}",
                limit="body",
            )
        if self._held_bytes + size > self._limits.in_flight_bytes:
            raise GatewayError(
                Kind.OVERLOADED,
                "too many bytes of shared memory are being read",
                retry_after=1.0,
                limit="in_flight_bytes",
            )
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size


async def _replace_registration(
    backend: Backend, request: SharedMemoryRegisterRequest, context: RequestContext
) -> None:
    """Register a region, and replace an existing region of the same name on the server. The gateway
    checks requests against its own region, and the server's existing region may have a different
    size."""
    try:
        await backend.perform(request, context)
    except GatewayError as error:
        if error.kind is not Kind.ALREADY_EXISTS:
            raise
        unregister = SharedMemoryUnregisterRequest(request.name, cuda=request.device is not None)
        await backend.perform(unregister, context)
        await backend.perform(request, context)


async def _register_all(backend: Backend, descriptions: Iterable[SharedMemoryRegion]) -> None:
    """Register all regions with ``backend``. Stop at the first timeout or connection error, because
    reloads and clients that register regions wait for this call."""
    started = time.monotonic()
    for region in descriptions:
        request = SharedMemoryRegisterRequest(
            region.name, region.key, region.offset, region.size, region.device
        )
        context = RequestContext("", started + _REGISTER_TIMEOUT_SECONDS)
        try:
            await _replace_registration(backend, request, context)
        except GatewayError as error:
            _log.warning(
                "shared memory region %r: %s",
                region.name,
                error.public,
                extra=REGION_NOT_REGISTERED,
            )
            if error.kind in _UNREACHABLE_KINDS:
                return


def _check_bounds(request: InferRequest, regions: Mapping[str, RegisteredRegion]) -> None:
    """Raise BAD_REQUEST if a tensor's range is not within its region, or if the range's size does
    not match the tensor's shape. A server that reads such a range might crash."""
    for tensor in request.inputs:
        if tensor.shared_memory is not None:
            regions[tensor.shared_memory.region].check_bounds(tensor.shared_memory)
            if tensor.datatype is not Datatype.BYTES:
                check_size(tensor.name, tensor.datatype, tensor.shape, tensor.shared_memory.size)
    for output in request.outputs:
        if output.shared_memory is not None:
            regions[output.shared_memory.region].check_bounds(output.shared_memory)


def _check_no_overlap(
    refs: Mapping[str, RegionRef], regions: Mapping[str, RegisteredRegion]
) -> None:
    if len(refs) < 2:
        return
    spans = sorted((regions[ref.region].span(ref), name) for name, ref in refs.items() if ref.size)
    for ((file, _, end), first), ((next_file, begin, _), second) in itertools.pairwise(spans):
        if file == next_file and begin < end:
            raise bad_request(f"outputs '{first}' and '{second}' overlap in shared memory")


def _read_inputs(
    inputs: tuple[Tensor, ...], regions: Mapping[str, RegisteredRegion]
) -> tuple[Tensor, ...]:
    result = []
    for tensor in inputs:
        ref = tensor.shared_memory
        if ref is None:
            result.append(tensor)
        else:
            data = regions[ref.region].read(ref)
            check_data(tensor.name, tensor.datatype, tensor.shape, data)
            result.append(replace(tensor, data=data, shared_memory=None))
    return tuple(result)


def _write_outputs(
    outputs: Sequence[tuple[Tensor, RegionRef]], regions: Mapping[str, RegisteredRegion]
) -> None:
    for tensor, ref in outputs:
        regions[ref.region].write(ref, tensor.data)


async def _run_copy(function: Callable[[*Ts], T], *arguments: *Ts, inline: bool) -> T:
    """Run ``function(*arguments)``, which copies data. A thread runs it if ``inline`` is False."""
    if inline:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)

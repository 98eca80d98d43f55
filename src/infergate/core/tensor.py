"""The canonical tensor: a name, a datatype, a shape and data in one memory layout.

``data`` is little-endian and row-major; a BYTES element is a 4-byte little-endian length followed
by that many bytes. V2 raw contents, the V2 REST binary extension and the legacy TensorRT Inference
Server body have the same layout, so data passes between them as a memoryview, and is never copied.

*Rule 1.* A tensor that leaves a codec has been checked: ``data`` holds exactly the elements of
``shape``. The rest of the gateway relies on this. A tensor with ``shared_memory`` holds no data:
either the gateway reads the shared memory, or the backend does.
*Rule 2.* Shapes are multiplied as Python integers: ``numpy.prod([2**32, 2**32])`` is 0."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.core.datatypes import NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import DEFAULT_LIMITS, MAX_ELEMENTS_ON_LOOP, Limits, check_loop_cost
from infergate.core.records import EMPTY_MAPPING, record
from infergate.core.region_ref import RegionRef

Parameters = Mapping[str, Any]
"""The parameters of a request, tensor or output. Their values are JSON values; most protocols can
carry only scalars."""


class OpaqueParameters(dict[str, Any]):
    """Parameters with a special meaning to servers of certain ``protocols``. If the parameters were
    parsed from ``text``, the text is sent to these servers unchanged.

    ``rejection`` is the error for servers of other protocols. If it is None, these servers get the
    parameters like any other parameters."""

    __slots__ = ("protocols", "rejection", "text")

    def __init__(
        self,
        parameters: Parameters,
        protocols: tuple[str, ...],
        text: Buffer,
        rejection: tuple[Kind, str] | None = None,
    ) -> None:
        super().__init__(parameters)
        self.protocols = protocols
        # Long bytes arrive from helper processes as memoryviews.
        self.text = text if type(text) is bytes else bytes(text)
        self.rejection = rejection

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (dict(self), self.protocols, self.text, self.rejection)

    def is_passed_to(self, protocol: str) -> bool:
        """Return whether the parameters have a special meaning to servers of ``protocol``.
        Raises ``rejection``, unless it is None, for any other protocol."""
        if protocol in self.protocols:
            return True
        if self.rejection is not None:
            raise GatewayError(*self.rejection)
        return False


NO_PARAMETERS: Final[Parameters] = EMPTY_MAPPING
Buffer = bytes | bytearray | memoryview
MAX_BYTES_ELEMENTS: Final = 1 << 20
"""The maximum number of BYTES elements of all tensors of a message together. Walking an element
takes about 0.2 µs. If a message has more than ``MAX_ELEMENTS_ON_LOOP`` elements, a helper process
walks them."""
_LENGTH_PREFIX = struct.Struct("<I")


@record
class Tensor:
    """A tensor. ``data`` holds ``math.prod(shape)`` elements of ``datatype`` in the canonical
    layout, or nothing if ``shared_memory`` is set."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer
    parameters: Parameters = NO_PARAMETERS
    shared_memory: RegionRef | None = None
    """The shared memory that holds the data, or that the server wrote the data to."""

    def numpy(self) -> npt.NDArray[Any]:
        """Return the elements as an array of ``shape``, which is a view of ``data`` where possible.

        BYTES elements become an object array of ``bytes``. BF16 becomes float32, which is exact."""
        if self.datatype is Datatype.BYTES:
            elements = np.empty(math.prod(self.shape), dtype=np.object_)
            elements[:] = list(unpack_bytes(self.data))
            return elements.reshape(self.shape)
        flat = np.frombuffer(self.data, dtype=NUMPY_DTYPES[self.datatype])
        if self.datatype is Datatype.BF16:
            flat = float32_from_bf16(flat)
        return flat.reshape(self.shape)


def data_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of the data of all ``tensors`` in bytes."""
    return sum([len(tensor.data) for tensor in tensors])


def tensor_from_array(
    name: str, datatype: Datatype, array: npt.NDArray[Any], parameters: Parameters = NO_PARAMETERS
) -> Tensor:
    """Return a tensor with the elements of ``array``. The inverse is :meth:`Tensor.numpy`."""
    if datatype is Datatype.BYTES:
        data: Buffer = pack_bytes(array.ravel().tolist())
    elif datatype is Datatype.BF16:
        is_double = array.dtype == np.float64
        bits = bf16_from_float64(array) if is_double else bf16_from_float32(array.astype("<f4"))
        data = memoryview(bits.tobytes())
    else:
        data = memoryview(np.ascontiguousarray(array, dtype=NUMPY_DTYPES[datatype]).tobytes())
    return Tensor(name, datatype, tuple(array.shape), data, parameters)


def bf16_from_float32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return each value rounded to bfloat16, half to even, as a 16-bit pattern; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, bits | np.uint32(0x400000), rounded).astype("<u4").view("<u2")[..., 1::2]


def bf16_from_float64(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Return each value as :func:`bf16_from_float32` does, but rounded only once.

    Rounding to nearest twice, float64 → float32 → bfloat16, could create a tie. The first step
    therefore rounds to odd: an inexact result has its last bit set, so that the second step does
    not treat it as a tie."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = values.astype("<f4")
        bits = narrowed.view("<u4").copy()
        widened = narrowed.astype("<f8")
        inexact = (widened != values) & ~np.isnan(values)
        bits -= inexact & (np.abs(widened) > np.abs(values))  # round toward zero
    bits |= inexact
    return np.ascontiguousarray(bf16_from_float32(bits.view("<f4")))


def float32_from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the exact float32 value of each 16-bit pattern."""
    return (bits.astype("<u4") << np.uint32(16)).view("<f4")


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    """Return BYTES elements in the canonical layout: the length and the bytes of each element."""
    pack = _LENGTH_PREFIX.pack
    # Each element becomes one part, because the cost of joining depends on the number of parts.
    return b"".join([pack(len(element)) + element for element in elements])


def unpack_bytes(data: Buffer) -> Iterator[bytes]:
    """Yield the elements of checked BYTES data."""
    view = memoryview(data)
    position, end = 0, len(view)
    while position < end:
        (length,) = _LENGTH_PREFIX.unpack_from(view, position)
        position += 4
        yield bytes(view[position : position + length])
        position += length


def count_bytes_elements(name: str, data: Buffer, max_count: int) -> int:
    """Return the number of BYTES elements in ``data``, or ``max_count`` + 1 if there are more than
    ``max_count``.

    Raises BAD_REQUEST if a length runs past the end. A client controls the number of elements, so
    counting stops at the limit."""
    position, end, count = 0, len(data), 0
    unpack_from = _LENGTH_PREFIX.unpack_from
    while position < end and count <= max_count:
        if end - position < 4:
            raise bad_request(
                f"tensor '{name}': {end - position} bytes are left where element {count} should "
                "begin with its 4-byte length"
            )
        length = unpack_from(data, position)[0]
        position += 4 + length
        if position > end:
            raise bad_request(
                f"tensor '{name}': the length of element {count} ({length}) runs "
                f"{position - end} bytes past the end of the data"
            )
        count += 1
    return count


def add_bytes_elements(
    name: str, shape: tuple[int, ...], count: int, limits: Limits = DEFAULT_LIMITS
) -> int:
    """Return ``count`` plus the number of BYTES elements of ``shape``. Raises TOO_LARGE and, on the
    event loop, NeedsOffloadError.

    The limit applies to all tensors of a message together: a thousand tensors of a million elements
    each would hold the interpreter lock for minutes."""
    elements = count + math.prod(shape)
    if elements > MAX_BYTES_ELEMENTS:
        raise GatewayError(
            Kind.TOO_LARGE,
            f"tensor '{name}': shape {list(shape)} brings the message to "
            f"{elements} BYTES elements; the limit is {MAX_BYTES_ELEMENTS}",
        )
    check_loop_cost(limits, elements, MAX_ELEMENTS_ON_LOOP)
    return elements


def check_shape(name: str, shape: Sequence[Any], limits: Limits) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of dimensions. Raises BAD_REQUEST, which names the tensor, for
    too many dimensions or a dimension that is not an integer from 0 to 2^63-1."""
    if len(shape) > limits.rank:
        raise bad_request(
            f"tensor '{name}': shape has {len(shape)} dimensions; the limit is {limits.rank}",
            limit="rank",
        )
    for dimension in shape:
        if type(dimension) is not int or not 0 <= dimension < 2**63:
            raise bad_request(
                f"tensor '{name}': shape has {dimension!r} where an integer from 0 to 2^63-1 "
                "is expected"
            )
    return tuple(shape)


def check_data(name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> None:
    """Raise BAD_REQUEST unless ``data`` holds exactly the elements of ``shape`` (Rule 1), and
    TOO_LARGE for more than ``MAX_BYTES_ELEMENTS`` BYTES elements."""
    expected = math.prod(shape)
    if datatype is Datatype.BYTES:
        if expected > MAX_BYTES_ELEMENTS:
            raise GatewayError(
                Kind.TOO_LARGE,
                f"tensor '{name}': shape {list(shape)} needs {expected} BYTES elements; "
                f"the limit is {MAX_BYTES_ELEMENTS}",
            )
        count = count_bytes_elements(name, data, expected)
        if count != expected:
            raise bad_request(
                f"tensor '{name}': shape {list(shape)} needs {expected} BYTES elements, "
                f"but the data holds {'more' if count > expected else count}"
            )
    elif len(data) != expected * datatype.itemsize:
        check_size(name, datatype, shape, len(data))


def check_size(name: str, datatype: Datatype, shape: tuple[int, ...], size: int) -> None:
    """Raise BAD_REQUEST unless a tensor of ``shape`` takes ``size`` bytes. ``datatype`` must not be
    BYTES."""
    expected = math.prod(shape) * datatype.itemsize
    if size != expected:
        raise bad_request(
            f"tensor '{name}': shape {list(shape)} of {datatype.value} needs {expected} bytes, "
            f"but the data holds {size}"
        )

"""The requests that are sent over every pair of protocols, and the models that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.accumulate import Accumulate
from infergate.backends.builtin.model import Model, Signature
from infergate.core.datatypes import INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, RequestedOutput, TensorMetadata
from infergate.core.tensor import Tensor, pack_bytes, tensor_from_array
from infergate.matrix.recording_backend import EchoModel

HANGING_MODEL: Final = "hanging"
"""A model that responds after its route's timeout."""
UNKNOWN_MODEL: Final = "unknown"
"""A model that has a route but does not exist. Clients assume that it has the tensors of the model
FP32."""
_PARAMETERS: Final = {"flag": True, "count": -7, "text": "x", "real": 0.5}
_REJECTED: Final = GatewayError(Kind.BAD_REQUEST, "the model rejects input 'IN0'")
_BUSY: Final = GatewayError(Kind.OVERLOADED, "the model is busy", retry_after=3.0)
_LATE: Final = GatewayError(Kind.TIMEOUT, "")
_NOT_FOUND: Final = GatewayError(Kind.NOT_FOUND, UNKNOWN_MODEL)


@dataclass(frozen=True, slots=True)
class Case:
    """Requests that are sent one after another, each with an optional ``deadline`` in seconds,
    and the expected error of the last request, if any."""

    name: str
    requests: tuple[InferRequest, ...]
    expected_error: GatewayError | None = None
    deadline: float | None = None


# ---- models -----------------------------------------------------------------------------------


def _signature(
    name: str,
    *tensors: tuple[str, tuple[int, ...]],
    batch: int = 0,
    labels: Mapping[str, tuple[str, ...]] | None = None,
) -> Signature:
    inputs, outputs = (
        tuple(
            TensorMetadata(f"{prefix}{index}", datatype, shape)
            for index, (datatype, shape) in enumerate(tensors)
        )
        for prefix in ("IN", "OUT")
    )
    return Signature(name, inputs, outputs, batch, labels or {})


def _vector(name: str, datatype: str = "FP32") -> Signature:
    return _signature(name, (datatype, (-1,)))


def create_models() -> tuple[Model, ...]:
    """Create the models of all cases."""
    several = ("FP32", (-1,)), ("INT32", (-1, -1)), ("BYTES", (-1,))
    return (
        *(EchoModel(_vector(datatype.value, datatype.value)) for datatype in Datatype),
        EchoModel(_signature("scalar", ("FP32", ()))),
        EchoModel(_signature("rows", ("FP32", (-1, 3)))),
        EchoModel(_signature("batches", ("FP32", (-1, 3)), batch=8)),
        EchoModel(_signature("rank5", ("FP32", (-1,) * 5))),
        EchoModel(_signature("several", *several)),
        EchoModel(_signature("scores", ("FP32", (-1, 4)), labels={"OUT0": tuple("abcd")})),
        EchoModel(_vector("parameters"), _PARAMETERS),
        Accumulate(),
        EchoModel(_vector("rejecting"), error=_REJECTED),
        EchoModel(_vector("busy"), error=_BUSY),
        EchoModel(_vector(HANGING_MODEL), error=_LATE),
    )


# ---- cases ------------------------------------------------------------------------------------


def _infer(model: str, *inputs: Tensor, **fields: Any) -> tuple[InferRequest, ...]:
    return (InferRequest(model, inputs=inputs, **fields),)


def _tensor(datatype: Datatype, values: npt.ArrayLike, name: str = "IN0") -> Tensor:
    dtype = object if datatype is Datatype.BYTES else NUMPY_DTYPES.get(datatype, np.float32)
    return tensor_from_array(name, datatype, np.array(values, dtype))


def _fp32(*shape: int) -> Tensor:
    return _tensor(Datatype.FP32, np.linspace(-1, 1, int(np.prod(shape))).reshape(shape))


def _elements(datatype: Datatype) -> Tensor:
    """Return a tensor of four elements. Integers include the limits of the datatype."""
    values: Any = [0.1, -0.0, 1.5, -(2.0**-14)]
    if datatype is Datatype.BYTES:
        values = [b"a", "größe".encode(), b"two words", b"1"]
    elif datatype is Datatype.BOOL:
        values = [False, True, True, False]
    elif datatype in INTEGERS:
        info = np.iinfo(NUMPY_DTYPES[datatype])
        values = [info.min, info.max, 0, 1]
    return _tensor(datatype, values)


def _strings(*elements: bytes) -> tuple[InferRequest, ...]:
    return _infer("BYTES", Tensor("IN0", Datatype.BYTES, (len(elements),), pack_bytes(elements)))


def _sequence(identity: int | str) -> tuple[InferRequest, ...]:
    steps: tuple[dict[str, bool], ...] = ({"sequence_start": True}, {}, {"sequence_end": True})
    return tuple(
        InferRequest(
            "accumulate",
            parameters={"sequence_id": identity, **flags},
            inputs=(_tensor(Datatype.INT32, [number], "INPUT"),),
        )
        for number, flags in enumerate(steps, 1)
    )


_PLAIN: Final = _fp32(4)
_SPECIAL: Final = _tensor(Datatype.FP32, [np.inf, -np.inf, np.nan, 3.4028234663852886e38])
_NAN_PAYLOADS: Final = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x7FC00000], "<u4").tobytes()
_SEVERAL: Final = (
    _fp32(2),
    _tensor(Datatype.INT32, np.arange(6).reshape(2, 3), "IN1"),
    _tensor(Datatype.BYTES, [b"x", b"yz"], "IN2"),
)
_SOME_OUTPUTS: Final = (RequestedOutput("OUT2"), RequestedOutput("OUT0"))
_CLASSES: Final = (RequestedOutput("OUT0", {"classification": 2}),)

CASES: Final = (
    *(Case(datatype.value, _infer(datatype.value, _elements(datatype))) for datatype in Datatype),
    Case("infinities, NaN", _infer("FP32", _SPECIAL)),
    Case("NaN payloads", _infer("FP32", Tensor("IN0", Datatype.FP32, (4,), _NAN_PAYLOADS))),
    Case("strings: UTF-8", _strings("größe".encode(), "日本".encode())),
    Case("strings: any bytes", _strings(b"\xff\xfe", b"\x80")),
    Case("strings: empty", _strings(b"", b"")),
    Case("strings: with NUL", _strings(b"a\x00b", b"\x00")),
    Case("scalar", _infer("scalar", _fp32())),
    Case("no elements", _infer("rows", _fp32(0, 3))),
    Case("a batch", _infer("batches", _fp32(2, 3))),
    Case("5 dimensions", _infer("rank5", _fp32(1, 2, 1, 2, 1))),
    Case("several inputs and outputs", _infer("several", *_SEVERAL)),
    Case("some outputs, in a different order", _infer("several", *_SEVERAL, outputs=_SOME_OUTPUTS)),
    Case("classes with labels", _infer("scores", _fp32(1, 4), outputs=_CLASSES)),
    Case("version", _infer("FP32", _PLAIN, version="1")),
    Case("id: text", _infer("FP32", _PLAIN, id="id-1")),
    Case("id: a number", _infer("FP32", _PLAIN, id="17")),
    Case("parameters", _infer("FP32", _PLAIN, parameters=_PARAMETERS)),
    Case("parameters of the response", _infer("parameters", _PLAIN)),
    Case("sequence: a number", _sequence(42)),
    Case("sequence: text", _sequence("user-1")),
    Case("deadline", _infer("FP32", _PLAIN), deadline=5.0),
    Case("unknown model", _infer(UNKNOWN_MODEL, _PLAIN), _NOT_FOUND),
    Case("rejected by the model", _infer("rejecting", _PLAIN), _REJECTED),
    Case("busy, with a retry time", _infer("busy", _PLAIN), _BUSY),
    Case("timeout", _infer(HANGING_MODEL, _PLAIN), _LATE),
)

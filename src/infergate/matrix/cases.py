"""The requests that are sent over every pair of protocols, and the models that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from infergate.backends.builtin.accumulate import Accumulate
from infergate.backends.builtin.model import Model, Signature
from infergate.core.datatypes import FLOATS, INTEGERS, NUMPY_DTYPES, Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.messages import InferRequest, RequestedOutput, TensorMetadata
from infergate.core.tensor import Tensor, bf16_from_float32, pack_bytes, tensor_from_array
from infergate.matrix.recording_backend import (
    EchoModel,
    HangingModel,
    ReceivedRequest,
    RejectingModel,
)

HANGING_MODEL: Final = "hanging"
"""A model that never responds. The timeout of its routes is ``PATIENCE``."""
HANGING_TIMEOUT: Final = "50ms"
UNKNOWN_MODEL: Final = "unknown"
"""A model with a route, but on no server."""
_DEADLINE: Final = 5.0
_ROUNDING: Final = 1.0
"""Tolerance in seconds, since deadlines are rounded up. Without a deadline, a backend's timeout is
much longer."""


@dataclass(frozen=True, slots=True)
class Case:
    """``requests`` are sent one after the other, each with a ``deadline`` in seconds if it is set.
    ``expects`` is the expected error of the last request, if any."""

    group: str
    name: str
    requests: tuple[InferRequest, ...]
    expected_error: GatewayError | None = None
    deadline: float | None = None

    def has_deadline(self, received: ReceivedRequest) -> bool:
        """Whether the model received the client's deadline, if there is one."""
        if self.deadline is None:
            return True
        return (
            received.remaining_seconds is not None
            and received.remaining_seconds < self.deadline + _ROUNDING
        )


# ---- tensors ----------------------------------------------------------------------------------


def _integers(datatype: Datatype) -> bytes:
    info = np.iinfo(NUMPY_DTYPES[datatype])
    return np.array([info.min, info.max, 0, 1], NUMPY_DTYPES[datatype]).tobytes()


def _floats(datatype: Datatype, values: list[float]) -> bytes:
    if datatype is Datatype.BF16:
        return bf16_from_float32(np.array(values, np.float32)).tobytes()
    return np.array(values, NUMPY_DTYPES[datatype]).tobytes()


def _elements(datatype: Datatype) -> bytes:
    """Return four elements, including the limits of the datatype."""
    if datatype in INTEGERS:
        return _integers(datatype)
    if datatype in FLOATS:
        return _floats(datatype, [0.1, -0.0, 1.5, -(2.0**-14)])
    if datatype is Datatype.BOOL:
        return bytes((0, 1, 1, 0))
    return pack_bytes((b"a", "größe".encode(), b"two words", b"1"))


_NAN_PAYLOADS: Final = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x7FC00000], "<u4").tobytes()


# ---- models -----------------------------------------------------------------------------------


def _echo(name: str, *tensors: tuple[str, tuple[int, ...]], batch: int = 0) -> Signature:
    def declared(prefix: str) -> tuple[TensorMetadata, ...]:
        return tuple(
            TensorMetadata(f"{prefix}{index}", datatype, shape)
            for index, (datatype, shape) in enumerate(tensors)
        )

    return Signature(name, declared("IN"), declared("OUT"), batch)


_REFUSED: Final = GatewayError(Kind.BAD_REQUEST, "the model rejects input 'IN0'")
_BUSY: Final = GatewayError(Kind.OVERLOADED, "the model is busy", retry_after=3.0)
_LATE: Final = GatewayError(Kind.TIMEOUT, "")
_NOT_FOUND: Final = GatewayError(Kind.NOT_FOUND, UNKNOWN_MODEL)


def create_models() -> Iterator[Model]:
    """Create the models of all cases."""
    for datatype in Datatype:
        yield EchoModel(_echo(datatype.value, (datatype.value, (-1,))))
    yield EchoModel(_echo("scalar", ("FP32", ())))
    yield EchoModel(_echo("rows", ("FP32", (-1, 3))))
    yield EchoModel(_echo("batches", ("FP32", (-1, 3)), batch=8))
    yield EchoModel(_echo("rank5", ("FP32", (-1, -1, -1, -1, -1))))
    yield EchoModel(_echo("several", ("FP32", (-1,)), ("INT32", (-1, -1)), ("BYTES", (-1,))))
    scores = _echo("scores", ("FP32", (-1, 4)))
    yield EchoModel(
        Signature("scores", scores.inputs, scores.outputs, labels={"OUT0": ("a", "b", "c", "d")})
    )
    yield EchoModel(
        _echo("telling", ("FP32", (-1,))), {"flag": True, "count": -7, "text": "x", "real": 0.5}
    )
    yield Accumulate()
    yield RejectingModel(_echo("refusing", ("FP32", (-1,))), _REFUSED)
    yield RejectingModel(_echo("busy", ("FP32", (-1,))), _BUSY)
    yield HangingModel(_echo(HANGING_MODEL, ("FP32", (-1,))))


# ---- cases ------------------------------------------------------------------------------------


def _single_input(datatype: Datatype, shape: tuple[int, ...], data: bytes) -> tuple[Tensor, ...]:
    return (Tensor("IN0", datatype, shape, data),)


def _fp32(*shape: int) -> tuple[Tensor, ...]:
    count = int(np.prod(shape))
    return (
        tensor_from_array(
            "IN0", Datatype.FP32, np.linspace(-1, 1, count, dtype="f4").reshape(shape)
        ),
    )


_PLAIN: Final = _fp32(4)
_SEVERAL: Final = (
    *_fp32(2),
    tensor_from_array("IN1", Datatype.INT32, np.arange(6).reshape(2, 3)),
    Tensor("IN2", Datatype.BYTES, (2,), pack_bytes((b"x", b"yz"))),
)


def _sequence(identity: int | str) -> tuple[InferRequest, ...]:
    steps: tuple[dict[str, bool], ...] = ({"sequence_start": True}, {}, {"sequence_end": True})
    return tuple(
        InferRequest(
            "accumulate",
            parameters={"sequence_id": identity, **flags},
            inputs=(tensor_from_array("INPUT", Datatype.INT32, np.array([number])),),
        )
        for number, flags in enumerate(steps, 1)
    )


def _strings(*elements: bytes) -> tuple[InferRequest, ...]:
    inputs = _single_input(Datatype.BYTES, (len(elements),), pack_bytes(elements))
    return (InferRequest("BYTES", inputs=inputs),)


def _cases() -> Iterator[Case]:
    for datatype in Datatype:
        inputs = _single_input(datatype, (4,), _elements(datatype))
        yield Case("datatype", datatype.value, (InferRequest(datatype.value, inputs=inputs),))
    special = _floats(Datatype.FP32, [np.inf, -np.inf, np.nan, 3.4028234663852886e38])
    yield Case(
        "values",
        "infinities, NaN",
        (InferRequest("FP32", inputs=_single_input(Datatype.FP32, (4,), special)),),
    )
    yield Case(
        "values",
        "NaN payloads",
        (InferRequest("FP32", inputs=_single_input(Datatype.FP32, (4,), _NAN_PAYLOADS)),),
    )
    yield Case("values", "strings: UTF-8", _strings("größe".encode(), "日本".encode()))
    yield Case("values", "strings: any bytes", _strings(b"\xff\xfe", b"\x80"))
    yield Case("values", "strings: empty", _strings(b"", b""))
    yield Case("values", "strings: with NUL", _strings(b"a\x00b", b"\x00"))
    for name, model, shape in (
        ("scalar", "scalar", ()),
        ("no elements", "rows", (0, 3)),
        ("a batch", "batches", (2, 3)),
        ("5 dimensions", "rank5", (1, 2, 1, 2, 1)),
    ):
        yield Case("shape", name, (InferRequest(model, inputs=_fp32(*shape)),))
    yield Case("request", "several inputs and outputs", (InferRequest("several", inputs=_SEVERAL),))
    chosen = (RequestedOutput("OUT2"), RequestedOutput("OUT0"))
    yield Case(
        "request",
        "some outputs, in a different order",
        (InferRequest("several", inputs=_SEVERAL, outputs=chosen),),
    )
    best = (RequestedOutput("OUT0", {"classification": 2}),)
    yield Case(
        "request",
        "classes with labels",
        (InferRequest("scores", inputs=_fp32(1, 4), outputs=best),),
    )
    yield Case("request", "version", (InferRequest("FP32", "1", inputs=_PLAIN),))
    yield Case("request", "id: text", (InferRequest("FP32", id="id-1", inputs=_PLAIN),))
    yield Case("request", "id: a number", (InferRequest("FP32", id="17", inputs=_PLAIN),))
    given = {"flag": True, "count": -7, "text": "x", "real": 0.5}
    yield Case("request", "parameters", (InferRequest("FP32", parameters=given, inputs=_PLAIN),))
    yield Case("request", "parameters of the response", (InferRequest("telling", inputs=_PLAIN),))
    yield Case("request", "sequence: a number", _sequence(42))
    yield Case("request", "sequence: text", _sequence("user-1"))
    plain = (InferRequest("FP32", inputs=_PLAIN),)
    yield Case("request", "deadline", plain, deadline=_DEADLINE)
    for name, model, error in (
        ("unknown model", UNKNOWN_MODEL, _NOT_FOUND),
        ("rejected by the model", "refusing", _REFUSED),
        ("busy, with a retry time", "busy", _BUSY),
        ("timeout", HANGING_MODEL, _LATE),
    ):
        yield Case("error", name, (InferRequest(model, inputs=_PLAIN),), error)


CASES: Final = tuple(_cases())

"""Fixed examples of operations, responses and invalid bodies, for checks of codecs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from infergate.core import messages
from infergate.core.datatypes import Datatype
from infergate.core.messages import InferRequest, InferResponse, Operation, Response
from infergate.core.tensor import Tensor, pack_bytes

_ELEMENTS: Final[dict[Datatype, bytes]] = {
    # Two elements per datatype, with edge cases: minimum, maximum, negative zero, empty string.
    Datatype.BOOL: bytes((0, 1)),
    Datatype.UINT8: bytes((0, 255)),
    Datatype.UINT16: bytes.fromhex("0000 ffff"),
    Datatype.UINT32: bytes.fromhex("00000000 ffffffff"),
    Datatype.UINT64: bytes.fromhex("0000000000000000 ffffffffffffffff"),
    Datatype.INT8: bytes.fromhex("80 7f"),
    Datatype.INT16: bytes.fromhex("0080 ff7f"),
    Datatype.INT32: bytes.fromhex("00000080 ffffff7f"),
    Datatype.INT64: bytes.fromhex("0000000000000080 ffffffffffffff7f"),
    Datatype.FP16: bytes.fromhex("ff7b 0080"),
    Datatype.FP32: bytes.fromhex("cdcccc3d 00000080"),
    Datatype.FP64: bytes.fromhex("9a9999999999b93f 0000000000000080"),
    Datatype.BF16: bytes.fromhex("cd3d 0080"),
    Datatype.BYTES: pack_bytes((b"", "größe".encode())),
}


def tensors(datatype: Datatype) -> Iterator[Tensor]:
    """Yield tensors of ``datatype``: a vector, a matrix, and a tensor without elements."""
    data = _ELEMENTS[datatype]
    yield Tensor("VECTOR", datatype, (2,), data)
    yield Tensor("MATRIX", datatype, (2, 1), data)
    yield Tensor("EMPTY", datatype, (0, 3), b"")


def inferences(datatype: Datatype) -> Iterator[tuple[InferRequest, InferResponse]]:
    """Yield an inference with one input and one output, and an inference with several inputs and
    outputs, a version, an ID and parameters."""
    first, *others = tensors(datatype)
    yield InferRequest("m", inputs=(first,)), InferResponse("m", outputs=(first,))
    yield (
        InferRequest(
            "model-é",
            "3",
            "id-1",
            {"flag": True, "count": -7, "text": "x", "real": 0.5},
            (first, *others),
            (messages.RequestedOutput("VECTOR"), messages.RequestedOutput("MATRIX")),
        ),
        InferResponse("model-é", "3", "id-1", {"flag": False}, (first, *others)),
    )


SAMPLE_EXCHANGES: Final[tuple[tuple[Operation, Response], ...]] = (
    (messages.ServerLiveRequest(), messages.HealthStatus(ok=True)),
    (messages.ServerReadyRequest(), messages.HealthStatus(ok=False)),
    (messages.ModelReadyRequest("m"), messages.HealthStatus(ok=True)),
    (messages.ModelReadyRequest("m", "2"), messages.HealthStatus(ok=False)),
    (
        messages.ServerMetadataRequest(),
        messages.ServerMetadata("infergate", "1.0", ("binary_tensor_data",)),
    ),
    (
        messages.ModelMetadataRequest("m", "1"),
        messages.ModelMetadata(
            "m",
            ("1", "2"),
            "onnx_onnxv1",
            (messages.TensorMetadata("IN", "FP32", (-1, 3)),),
            (messages.TensorMetadata("OUT", "BYTES", (-1,)),),
        ),
    ),
    (
        messages.ModelIndexRequest(),
        messages.ModelIndex(
            (messages.ModelIndexEntry("m", "1", "READY"), messages.ModelIndexEntry("n"))
        ),
    ),
    (messages.ModelLoadRequest("m"), messages.Acknowledgement()),
    (
        messages.ModelLoadRequest("m", "r", {"config": "{}", "file:1/m.bin": b"\x00\xff"}),
        messages.Acknowledgement(),
    ),
    (
        messages.ModelUnloadRequest("m", parameters={"unload_dependents": True}),
        messages.Acknowledgement(),
    ),
    (
        messages.TraceSettingsRequest(),
        messages.Settings({"trace_level": ["OFF"], "trace_rate": ["1000"]}),
    ),
    (
        messages.TraceSettingsRequest("m", {"trace_level": ["OFF"], "trace_file": []}),
        messages.Settings(),
    ),
    (
        messages.LogSettingsRequest({"log_info": False}),
        messages.Settings({"log_info": False, "log_verbose_level": 1}),
    ),
)
"""Operations other than inferences, each with a response."""


def metadata_for(operation: Operation, response: Response) -> messages.ModelMetadata | None:
    """Return metadata that matches an inference and its response, or None for other operations."""
    if not isinstance(operation, InferRequest) or not isinstance(response, InferResponse):
        return None

    def metadata(tensors: Iterable[Tensor]) -> tuple[messages.TensorMetadata, ...]:
        return tuple(messages.TensorMetadata(t.name, t.datatype.value, t.shape) for t in tensors)

    return messages.ModelMetadata(
        operation.model,
        (response.version or "1",),
        inputs=metadata(operation.inputs),
        outputs=metadata(response.outputs),
        max_batch_size=0,
    )


INVALID_BODIES: Final = (
    *(b"", b"\x00", b"\xff" * 16, b"{}", b"[]", b"null", b'{"inputs":', b"[" * 5000),
    *(b"\xff\xff\xff\xff\x0f", b"\x80" * 64, b"\x3a\x00" * 3000, b"\x2a\x00" * 3000),
)
"""Bodies for which a codec must return a result or raise GatewayError, whatever the operation."""


def corrupted(body: bytes) -> Iterator[bytes]:
    """Yield copies of ``body`` that are extended, cut or changed in one byte."""
    yield body + b"\x00"
    yield body + body
    for cut in range(0, len(body), max(1, len(body) // 32)):
        yield body[:cut]
        yield body[cut:]
    for position in range(0, len(body), max(1, len(body) // 32)):
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            yield body[:position] + bytes((byte,)) + body[position + 1 :]

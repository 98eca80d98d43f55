"""A minimal gateway that serves imitations of the captured models through a frontend codec.

Routing and model control are simplified; tests/unit/gateway tests them in the real gateway.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from infergate.codecs.base import Codec, PartialInferRequest, RequestSummary
from infergate.core import messages
from infergate.core.classification import class_count, classify
from infergate.core.errors import GatewayError, Kind, UnknownRegionError
from infergate.core.limits import DEFAULT_LIMITS
from infergate.core.messages import InferRequest
from infergate.core.tensor import Tensor, tensor_from_array

POLLING_ERROR = "explicit model load / unload is not allowed if polling is enabled"
LABELS = ("cat", "dog", "bird with space", 'fish "q"')
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Model:
    metadata: messages.ModelMetadata
    run: Callable[[Tensors], dict[str, Tensor]]
    labels: Mapping[str, tuple[str, ...]]


def _model(
    name: str,
    tensors: list[tuple[str, list[int]]],
    run: Callable[[Tensors], dict[str, Tensor]],
    *,
    batch: int = 8,
    versions: tuple[str, ...] = ("1",),
    labels: tuple[str, ...] = (),
) -> Model:
    def metadata_of(kind: str) -> tuple[messages.TensorMetadata, ...]:
        first = (-1,) if batch else ()
        return tuple(
            messages.TensorMetadata(f"{kind}{i}", datatype, (*first, *dims))
            for i, (datatype, dims) in enumerate(tensors)
        )

    return Model(
        messages.ModelMetadata(
            name,
            versions,
            "custom",
            metadata_of("INPUT"),
            metadata_of("OUTPUT"),
            max_batch_size=batch,
        ),
        run,
        {"OUTPUT0": labels},
    )


def _add_sub(inputs: Tensors) -> dict[str, Tensor]:
    a, b = inputs["INPUT0"], inputs["INPUT1"]
    return {
        "OUTPUT0": tensor_from_array("OUTPUT0", a.datatype, a.numpy() + b.numpy()),
        "OUTPUT1": tensor_from_array("OUTPUT1", a.datatype, a.numpy() - b.numpy()),
    }


def _copy(inputs: Tensors) -> dict[str, Tensor]:
    return {
        name.replace("INPUT", "OUTPUT"): replace(tensor, name=name.replace("INPUT", "OUTPUT"))
        for name, tensor in inputs.items()
    }


def _fail(_: Tensors) -> dict[str, Tensor]:
    raise GatewayError(
        Kind.BACKEND_ERROR, "payload error for 'failing_0_0_cpu': (7) deliberate failure"
    )


ALL_TYPES = [
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES"),
]
MODELS = {
    model.metadata.name: model
    for model in (
        _model("simple", [("INT32", [16])] * 2, _add_sub),
        _model("simple_string", [("BYTES", [16])] * 2, _copy),
        _model(
            "simple_nobatch",
            [("FP32", [4])] * 2,
            _add_sub,
            batch=0,
            versions=("1", "3"),
            labels=LABELS,
        ),
        _model("identity_string", [("BYTES", [-1])], _copy),
        _model("identity_all", [(datatype, [2]) for datatype in ALL_TYPES], _copy, batch=4),
        _model("identity_fp32", [("FP32", [-1, 3])], _copy),
        _model("identity_nobatch", [("INT32", [-1])], _copy, batch=0),
        _model("classify", [("FP32", [4])], _copy, labels=LABELS),
        _model("classify_nolabel", [("INT32", [4])], _copy),
        _model("reshape_scalar", [("FP32", [1])], _copy),
        _model("failing", [("INT32", [1])], _fail),
    )
}
NOT_IMITATED = ("broken", "ensemble_simple", "sequence", "slow")
"""Models that the real server lists, but this gateway does not serve."""


def perform(operation: messages.Operation) -> messages.Response:
    match operation:
        case messages.ServerLiveRequest() | messages.ServerReadyRequest():
            return messages.HealthStatus(ok=True)
        case messages.ServerStatusRequest(model):
            return _status(model)
        case messages.ModelIndexRequest():
            return messages.ModelIndex(
                tuple(
                    messages.ModelIndexEntry(name, version, "READY")
                    for name in (*MODELS, *NOT_IMITATED)
                    for version in ("1", "2")
                )
            )
        case messages.ModelLoadRequest() | messages.ModelUnloadRequest():
            raise GatewayError(Kind.NO_BACKEND, POLLING_ERROR)
        case messages.SharedMemoryStatusRequest():
            return messages.SharedMemoryStatus()
        case messages.SharedMemoryRegisterRequest():
            raise GatewayError(Kind.UNSUPPORTED, "shared memory is not supported")
        case InferRequest():
            return _infer(operation)
    return messages.Acknowledgement()


def _status(model: str) -> messages.ServerStatus:
    if model and model not in MODELS:
        raise GatewayError(Kind.NOT_FOUND, f"no route for model '{model}'")
    return messages.ServerStatus(
        "infergate",
        "1.9.0",
        ready=True,
        models=tuple(
            messages.ModelStatus(
                loaded.metadata,
                tuple(messages.ModelIndexEntry(name, v, "READY") for v in loaded.metadata.versions),
            )
            for name, loaded in MODELS.items()
            if name == (model or name)
        ),
    )


def _infer(request: InferRequest) -> messages.InferResponse:
    for tensor in [*request.inputs, *request.outputs]:
        if tensor.shared_memory is not None:
            raise UnknownRegionError(tensor.shared_memory.region, "not enabled", Kind.UNSUPPORTED)
    model = MODELS[request.model]
    outputs = model.run({tensor.name: tensor for tensor in request.inputs})
    tensors = []
    for output in request.outputs:
        tensor = outputs[output.name]
        count = class_count(output)
        if count is not None:
            rank = min(model.metadata.max_batch_size or 0, 1)
            tensor = classify(tensor, count, rank, model.labels.get(output.name, ()))
        tensors.append(tensor)
    version = request.version or model.metadata.versions[-1]
    return messages.InferResponse(request.model, version, request.id, outputs=tuple(tensors))


def _check_route(summary: RequestSummary) -> None:
    model = MODELS.get(summary.model)
    if model is None or (summary.version and summary.version not in model.metadata.versions):
        raise GatewayError(Kind.NOT_FOUND, f"no route for model '{summary.model}'")


def respond(codec: Codec[Any, Any], wire: Any) -> Any:
    try:
        summary = codec.summarize(wire)
        if summary.operation is InferRequest:
            _check_route(summary)
        parsed = codec.parse_request(wire, DEFAULT_LIMITS)
        if isinstance(parsed, PartialInferRequest):
            assert (parsed.model, parsed.version) == (summary.model, summary.version)
            parsed = parsed.complete(MODELS[parsed.model].metadata)
        assert type(parsed.operation) is summary.operation
        return codec.build_response(perform(parsed.operation), parsed)
    except GatewayError as error:
        return codec.build_error(error, wire)

"""Converts messages with metadata, configurations, statistics or model indexes to and from
canonical responses.

Field 6 of ModelMetadataResponse maps keys to text (``properties``, Open Inference Protocol) or to
an InferParameter (``parameters``, MLServer and Seldon). Printable text is a property. Any other
value is a parameter if it is exactly one InferParameter. (MLServer's parameters are never printable
text, because their encoding starts with a control character.) All remaining values must be text,
and are properties."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from infergate.codecs.protos.plain_values import MAX_VALUES, from_plain, to_plain
from infergate.codecs.protos.wire_scanner import FieldBudget
from infergate.codecs.v2_grpc.messages import (
    InferParameter,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelStatisticsResponse,
    RepositoryIndexResponse,
    ServerMetadataResponse,
)
from infergate.codecs.v2_grpc.messages import ModelConfig as ModelConfigMessage
from infergate.codecs.v2_grpc.parameters import read_parameters, write_parameter, write_parameters
from infergate.core.errors import backend_garbage
from infergate.core.messages import (
    ModelConfig,
    ModelIndex,
    ModelIndexEntry,
    ModelMetadata,
    ModelStatistics,
    ServerMetadata,
    TensorMetadata,
)


def read_server_metadata(message: Any) -> ServerMetadata:
    """Read a ServerMetadataResponse."""
    return ServerMetadata(message.name, message.version, tuple(message.extensions))


def write_server_metadata(response: ServerMetadata) -> Any:
    """Build a ServerMetadataResponse."""
    return ServerMetadataResponse(
        name=response.name, version=response.version, extensions=response.extensions
    )


def read_model_index(message: Any) -> ModelIndex:
    """Read a RepositoryIndexResponse. MLServer prefixes states with ``State.``."""
    return ModelIndex(
        tuple(
            ModelIndexEntry(
                model.name, model.version, model.state.removeprefix("State."), model.reason
            )
            for model in message.models
        )
    )


def write_model_index(response: ModelIndex) -> Any:
    """Build a RepositoryIndexResponse."""
    message = RepositoryIndexResponse()
    for entry in response.models:
        message.models.add(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
    return message


def read_model_config(message: Any) -> ModelConfig:
    """Read a ModelConfigResponse. Raises MalformedMessageError."""
    config = message.config
    return ModelConfig(config.name, to_plain(config), config.SerializeToString(deterministic=True))


def write_model_config(response: ModelConfig) -> Any:
    """Build a ModelConfigResponse. If `response` has the server's own message, return that message
    with the model name of `response` and the tensor names in its `settings`. Raises ValueError for
    settings that do not fit the message."""
    config = from_plain(ModelConfigMessage, response.settings)
    if response.message:
        names = [[tensor.name for tensor in tensors] for tensors in (config.input, config.output)]
        config = ModelConfigMessage.FromString(response.message)
        for tensors, renamed in zip((config.input, config.output), names, strict=True):
            for tensor, name in zip(tensors, renamed, strict=False):
                tensor.name = name
    config.name = response.name
    return ModelConfigResponse(config=config)


def read_statistics(message: Any) -> ModelStatistics:
    """Read a ModelStatisticsResponse. Raises MalformedMessageError."""
    budget = FieldBudget(MAX_VALUES)
    return ModelStatistics(tuple([to_plain(model, budget) for model in message.model_stats]))


def write_statistics(response: ModelStatistics) -> Any:
    """Build a ModelStatisticsResponse. Raises ValueError for values that do not fit the message."""
    return from_plain(ModelStatisticsResponse, {"model_stats": list(response.models)})


def read_model_metadata(message: Any) -> ModelMetadata:
    """Read a ModelMetadataResponse of any server. Raises BACKEND_GARBAGE."""
    parameters: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for entry in message.parameters:
        text = _decode_text(entry.value)
        if text is not None and text.isprintable():
            properties[entry.key] = text
        elif (parameter := _decode_parameter(entry.value)) is not None:
            parameters[entry.key] = parameter
        elif text is not None:
            properties[entry.key] = text
        else:
            raise backend_garbage(
                f"metadata of model '{message.name}': the value of '{entry.key}' is neither text "
                "nor a parameter"
            )
    return ModelMetadata(
        name=message.name,
        versions=tuple(message.versions),
        platform=message.platform,
        inputs=_read_tensors(message.inputs),
        outputs=_read_tensors(message.outputs),
        parameters=parameters,
        properties=properties,
    )


def _decode_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _decode_parameter(value: bytes) -> Any:
    """Return the parameter that `value` encodes, or None if `value` is not exactly an
    InferParameter."""
    try:
        message = InferParameter.FromString(value)
    except DecodeError:
        return None
    kind = message.WhichOneof("parameter_choice")
    if kind is None or message.SerializeToString() != value:
        return None
    return getattr(message, kind)


def _read_tensors(messages: Any) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(
            tensor.name, tensor.datatype, tuple(tensor.shape), read_parameters(tensor.parameters)
        )
        for tensor in messages
    )


def write_model_metadata(response: ModelMetadata) -> Any:
    """Build a ModelMetadataResponse. Raises ValueError for values that protobuf cannot hold."""
    message = ModelMetadataResponse(
        name=response.name, versions=response.versions, platform=response.platform
    )
    for add, tensors in (
        (message.inputs.add, response.inputs),
        (message.outputs.add, response.outputs),
    ):
        for tensor in tensors:
            description = add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            write_parameters(description.parameters, tensor.parameters)
    for key, value in sorted(response.parameters.items()):
        if value is not None:
            parameter = InferParameter()
            write_parameter(parameter, key, value)
            message.parameters.add(key=key, value=parameter.SerializeToString())
    for key, value in sorted(response.properties.items()):
        message.parameters.add(key=key, value=str(value).encode())
    return message

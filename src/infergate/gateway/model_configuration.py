"""Derives a model configuration from metadata, for servers that report no configuration.

Triton's model configuration extension defines the format: dimensions exclude the batch, datatypes
have the prefix ``TYPE_``, and versions are numbers."""

from __future__ import annotations

from typing import Any, Final

from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.decimals import parse_decimal
from infergate.core.messages import ModelConfig, ModelMetadata, TensorMetadata
from infergate.core.tensor import NO_PARAMETERS, Parameters

_BYTES: Final = "BYTES"
_INT64: Final = 2**63


def config_from_metadata(model: ModelMetadata, reported: Parameters = NO_PARAMETERS) -> ModelConfig:
    """Return the configuration that follows from the metadata of ``model``. Settings that the
    server ``reported`` take precedence, except ``input`` and ``output``."""
    has_batch = bool(reported.get("max_batch_size", model.max_batch_size))
    settings: dict[str, Any] = {
        "name": model.name,
        "platform": model.platform,
        "max_batch_size": min(model.max_batch_size or 0, 2**31 - 1),
        "input": [_tensor_config(item, has_batch) for item in model.inputs],
        "output": [_tensor_config(item, has_batch) for item in model.outputs],
    }
    if model.decoupled:
        settings["model_transaction_policy"] = {"decoupled": True}
    if model.sequence_batching is not None:
        settings["sequence_batching"] = model.sequence_batching
    versions = [int(item) for item in model.versions if is_numeric_version(item)]
    if versions:
        settings["version_policy"] = {"specific": {"versions": versions}}
    tensors = {side: settings[side] for side in ("input", "output")}
    return ModelConfig(model.name, {**settings, **reported, **tensors})


def _tensor_config(tensor: TensorMetadata, has_batch: bool) -> dict[str, Any]:  # noqa: FBT001
    dims = tensor.shape[1:] if has_batch else tensor.shape
    return {"name": tensor.name, "data_type": _config_datatype(tensor.datatype), "dims": list(dims)}


def _config_datatype(datatype: str) -> str:
    if datatype not in DATATYPES_BY_NAME:
        return "TYPE_INVALID"
    return "TYPE_STRING" if datatype == _BYTES else f"TYPE_{datatype}"


def is_numeric_version(version: str) -> bool:
    """Return whether ``version`` is a decimal number in the range of Triton's versions."""
    return parse_decimal(version, _INT64 - 1) is not None

"""The methods of TensorFlow Serving's gRPC API, and the message classes from the gateway's private
descriptor pool."""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.protos import SCHEMA

PREDICTION_SERVICE: Final = "tensorflow.serving.PredictionService"
MODEL_SERVICE: Final = "tensorflow.serving.ModelService"
PREDICT: Final = f"/{PREDICTION_SERVICE}/Predict"
METADATA: Final = f"/{PREDICTION_SERVICE}/GetModelMetadata"
CLASSIFY: Final = f"/{PREDICTION_SERVICE}/Classify"
REGRESS: Final = f"/{PREDICTION_SERVICE}/Regress"
MULTI_INFERENCE: Final = f"/{PREDICTION_SERVICE}/MultiInference"
STATUS: Final = f"/{MODEL_SERVICE}/GetModelStatus"
RELOAD: Final = f"/{MODEL_SERVICE}/HandleReloadConfigRequest"


def _message(name: str) -> Any:
    return SCHEMA.message_class(f"tensorflow.serving.{name}")


ModelSpec: Final = _message("ModelSpec")
GetModelMetadataRequest: Final = _message("GetModelMetadataRequest")
GetModelMetadataResponse: Final = _message("GetModelMetadataResponse")
SignatureDefMap: Final = _message("SignatureDefMap")
GetModelStatusRequest: Final = _message("GetModelStatusRequest")
GetModelStatusResponse: Final = _message("GetModelStatusResponse")
ReloadConfigRequest: Final = _message("ReloadConfigRequest")
ReloadConfigResponse: Final = _message("ReloadConfigResponse")
TensorProto: Final = SCHEMA.message_class("tensorflow.TensorProto")
"""Only ``tensor_writer`` uses this class, for integers and 16-bit floats. ``tensor_reader`` parses
TensorProtos without the protobuf runtime."""

_STATE: Final = _message("ModelVersionStatus").DESCRIPTOR.fields_by_name["state"].enum_type
STATES: Final[dict[str, int]] = {name: v.number for name, v in _STATE.values_by_name.items()}
"""The numbers of the enum ModelVersionStatus.State, by name."""
_DTYPE: Final = TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type
DTYPES: Final[dict[str, int]] = {name: v.number for name, v in _DTYPE.values_by_name.items()}
"""The numbers of the enum DataType, by name."""

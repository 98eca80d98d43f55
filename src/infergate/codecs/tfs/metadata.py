"""Converts signatures to and from canonical metadata, and version states to and from indexes.

A TensorFlow signature has inputs, outputs and a method. The canonical metadata describes the
default signature, and keeps the other signatures for clients of TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from infergate.codecs.protos.bounded_parser import max_fields_on_loop, parse
from infergate.codecs.protos.wire_scanner import MAX_METADATA_FIELDS_ON_LOOP
from infergate.codecs.tfs import messages as pb
from infergate.codecs.tfs.datatypes import DT_INVALID, TYPES, metadata_datatype
from infergate.codecs.tfs.model_spec import DEFAULT_SIGNATURE, RequestedModel, numeric_version
from infergate.core.datatypes import DATATYPES_BY_NAME
from infergate.core.errors import backend_garbage, bad_request
from infergate.core.limits import MIB, Limits
from infergate.core.messages import (
    ModelIndex,
    ModelIndexEntry,
    ModelMetadata,
    ModelSignature,
    TensorMetadata,
)

FIELD: Final = "signature_def"
"""The only metadata field that TensorFlow Serving supports."""
PLATFORM: Final = "tensorflow_serving"
PREDICT_METHOD: Final = "tensorflow/serving/predict"
_TYPE_URL: Final = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
MAX_BYTES: Final = 4 * MIB
MAX_FIELDS: Final = 64 * 1024
"""The maximum size in bytes, and the maximum number of fields, of a response about one model."""
_READY: Final = "READY"
STATES: Final = pb.STATES | {_READY: pb.STATES["AVAILABLE"], "UNAVAILABLE": pb.STATES["END"]}
"""The number of each state of TensorFlow Serving and of the Open Inference Protocol."""
_STATE_NAMES: Final = {number: name for name, number in STATES.items()}
"""The canonical name of each state: the Open Inference Protocol's name or, if the protocol does not
have the state, TensorFlow Serving's name."""
_UNAVAILABLE_CODE: Final = 14
_DEFAULT_VERSION: Final = 1
"""The version in the response for a model without numeric versions."""


def check_fields(fields: Sequence[str]) -> None:
    """Raise BAD_REQUEST if ``fields`` is empty or has an unknown metadata field."""
    if not fields:
        raise bad_request("GetModelMetadataRequest must specify at least one metadata_field")
    for field in fields:
        if field != FIELD:
            raise bad_request(f"Metadata field {field[:80]} is not supported")


# ---- for clients


def signatures_for_client(
    response: ModelMetadata, requested: RequestedModel
) -> dict[str, ModelSignature]:
    """Return the signatures of a model, by the names that the client uses."""
    default = (requested.spec.signature if requested.is_mapped else "") or DEFAULT_SIGNATURE
    signatures = {signature.name: signature for signature in response.signatures}
    signatures[default] = ModelSignature(default, PREDICT_METHOD, response.inputs, response.outputs)
    return signatures


def write_metadata(response: ModelMetadata, requested: RequestedModel) -> Any:
    """Return a GetModelMetadataResponse. Raises ValueError for values that protobuf cannot hold."""
    signatures = pb.SignatureDefMap()
    for name, signature in signatures_for_client(response, requested).items():
        _write_signature(signatures.signature_def[name], signature)
    message = pb.GetModelMetadataResponse()
    message.model_spec.name = requested.spec.name
    message.model_spec.version.value = client_version(response, requested)
    field = message.metadata[FIELD]
    field.type_url = _TYPE_URL
    field.value = signatures.SerializeToString(deterministic=True)
    return message


def client_version(response: ModelMetadata, requested: RequestedModel) -> int:
    """Return the requested version, or the latest numeric version if the client requested no
    version. Return 1 if the requested version is not numeric, or if the model has no numeric
    version."""
    versions = (requested.version,) if requested.version else response.versions
    numbers = [number for text in versions if (number := numeric_version(text)) is not None]
    return max(numbers, default=_DEFAULT_VERSION)


def _write_signature(message: Any, signature: ModelSignature) -> None:
    message.method_name = signature.method
    for infos, tensors in (
        (message.inputs, signature.inputs),
        (message.outputs, signature.outputs),
    ):
        for tensor in tensors:
            info = infos[tensor.name]
            info.name = f"{tensor.name}:0"
            info.dtype = type_number(tensor.datatype)
            info.tensor_shape.SetInParent()
            for size in tensor.shape:
                info.tensor_shape.dim.add(size=size)


def type_number(datatype: str) -> int:
    """Return TensorFlow's number for ``datatype``, the name of a datatype in metadata."""
    canonical = DATATYPES_BY_NAME.get(datatype)
    return pb.DTYPES.get(datatype, DT_INVALID) if canonical is None else TYPES[canonical].number


def version_states(response: ModelIndex) -> list[tuple[int, int, int, str]]:
    """Return the number, state, error code and error message of each numeric version, newest first.
    If no version is numeric, the first version is listed as version 1."""
    by_number = {
        number: entry
        for entry in response.models
        if (number := numeric_version(entry.version)) is not None
    }
    if not by_number and response.models:
        by_number = {_DEFAULT_VERSION: response.models[0]}
    states = []
    for number, entry in sorted(by_number.items(), reverse=True):
        state = STATES.get(entry.state, STATES["UNKNOWN"])
        reason = entry.reason
        if state == STATES["END"]:
            reason = reason or "the version is not ready"
        code = entry.reason_code or (_UNAVAILABLE_CODE if reason else 0)
        states.append((number, state, code, reason))
    return states


def write_status(response: ModelIndex) -> Any:
    """Return a GetModelStatusResponse about the versions in ``response``."""
    message = pb.GetModelStatusResponse()
    for number, state, code, reason in version_states(response):
        added = message.model_version_status.add(version=number, state=state)
        added.status.error_code, added.status.error_message = code, reason
        added.status.SetInParent()
    return message


# ---- from servers


def read_metadata(data: bytes, model: str, limits: Limits) -> ModelMetadata:
    """Return the metadata in a GetModelMetadataResponse about ``model``. Raises
    MalformedMessageError, NeedsOffloadError and BACKEND_GARBAGE."""
    max_on_loop = max_fields_on_loop(limits, MAX_METADATA_FIELDS_ON_LOOP)
    message = parse(pb.GetModelMetadataResponse, data, MAX_FIELDS, MAX_BYTES, max_on_loop)
    value = message.metadata[FIELD].value if FIELD in message.metadata else b""
    signatures = parse(pb.SignatureDefMap, value, MAX_FIELDS, MAX_BYTES, max_on_loop).signature_def
    if not signatures:
        raise backend_garbage(f"the metadata of model '{model}' has no signature")
    default = default_signature(signatures)
    inputs, outputs = _read_tensors(signatures[default])
    spec = message.model_spec
    return ModelMetadata(
        model,
        versions=(str(spec.version.value),) if spec.HasField("version") else (),
        platform=PLATFORM,
        inputs=inputs,
        outputs=outputs,
        signatures=tuple(
            ModelSignature(name, signatures[name].method_name, *_read_tensors(signatures[name]))
            for name in sorted(signatures)
            if name != default
        ),
    )


def default_signature(signatures: Collection[str]) -> str:
    """Return the name of the signature that canonical metadata describes."""
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else min(signatures)


def _read_tensors(
    signature: Any,
) -> tuple[tuple[TensorMetadata, ...], tuple[TensorMetadata, ...]]:
    inputs, outputs = (
        tuple(_read_tensor(alias, infos[alias]) for alias in sorted(infos))
        for infos in (signature.inputs, signature.outputs)
    )
    return inputs, outputs


def _read_tensor(alias: str, info: Any) -> TensorMetadata:
    """Return a tensor's metadata. The canonical form has no unknown rank, so a tensor of unknown
    rank has one variable dimension."""
    shape = info.tensor_shape
    dims = (-1,) if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
    return TensorMetadata(alias, metadata_datatype(info.dtype), dims)


def read_status(data: bytes, model: str, limits: Limits) -> ModelIndex:
    """Return the version states in a GetModelStatusResponse about ``model``. Raises
    MalformedMessageError and NeedsOffloadError."""
    max_on_loop = max_fields_on_loop(limits, MAX_METADATA_FIELDS_ON_LOOP)
    message = parse(pb.GetModelStatusResponse, data, MAX_FIELDS, MAX_BYTES, max_on_loop)
    return ModelIndex(
        tuple(
            ModelIndexEntry(
                model,
                str(entry.version),
                state_name(entry.state),
                entry.status.error_message,
                entry.status.error_code,
            )
            for entry in message.model_version_status
        )
    )


def state_name(state: int) -> str:
    """Return the canonical name of a state of TensorFlow Serving."""
    return _STATE_NAMES.get(state, "UNKNOWN")


def is_available(index: ModelIndex) -> bool:
    """Return whether ``index`` has an available version."""
    return any(entry.state == _READY for entry in index.models)

"""ModelSpec: the model, version or label, and signature that a request names.

A message may contain several ModelSpecs, which protobuf merges. The codec reads the ModelSpecs
before the access check, without the rest of the message.

*Rule 1.* Before the access check, the codec replaces labels with versions, and signatures with
models, if the options map them. All other labels and signatures become parameters for TensorFlow
Serving servers. Backends of other protocols have neither labels nor signatures, so a request with
such parameters is rejected for these backends, with TensorFlow Serving's error text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final

from infergate.codecs.protos.wire_scanner import (
    DELIMITED,
    MAX_NAME_BYTES,
    MAX_VARINT_BYTES,
    VARINT,
    MalformedMessageError,
    field_prefix,
    read_varint,
    scan_fields,
    string_field,
    varint_field,
)
from infergate.codecs.tfs.options import TfsOptions
from infergate.core.decimals import parse_decimal
from infergate.core.errors import Kind, bad_request
from infergate.core.records import record
from infergate.core.tensor import NO_PARAMETERS, Buffer, OpaqueParameters, Parameters

DEFAULT_SIGNATURE: Final = "serving_default"
SIGNATURE: Final = "signature_name"
LABEL: Final = "version_label"
"""The inference parameters that carry a signature and a version label to a server."""
GRPC_PROTOCOL: Final = "tfs-grpc"
REST_PROTOCOL: Final = "tfs-rest"
PROTOCOLS: Final = (GRPC_PROTOCOL, REST_PROTOCOL)
"""The protocols of TensorFlow Serving, which have the same models, versions and signatures."""
REQUEST_SPEC: Final = 1
RESPONSE_SPEC: Final = 2
"""The field number of the ModelSpec in a request and in a response, except in the messages of
MultiInference."""

MAX_TOP_LEVEL_FIELDS: Final = 24 * 1024
"""Maximum number of top-level fields of a message. They are read before the access check."""
_MAX_BYTES: Final = 4 * MAX_NAME_BYTES
_MAX_SPEC_FIELDS: Final = 64
_MAX_CACHED_BYTES: Final = 256
_MAX_CACHED_SPECS: Final = 1024
_NAME, _VERSION, _SIGNATURE, _LABEL = 1, 2, 3, 4
_MAX_VERSION: Final = 2**63 - 1


@record
class ModelSpec:
    """A ModelSpec. ``version`` is None if the message has a ``label`` or no version."""

    name: str
    version: int | None = None
    label: str = ""
    signature: str = ""


@record
class RequestedModel:
    """The model of a request after the options were applied to its ``spec``. ``label`` and
    ``signature`` are the client's values, or empty if the options mapped them."""

    spec: ModelSpec
    model: str
    version: str
    label: str
    signature: str

    @property
    def is_mapped(self) -> bool:
        """Whether the options mapped the signature to a model."""
        return bool(self.spec.signature and not self.signature) or self.model != self.spec.name

    @property
    def parameters(self) -> Parameters:
        """The inference parameters, with the error that is raised for servers without labels and
        signatures (Rule 1)."""
        signature = "" if self.signature == DEFAULT_SIGNATURE else self.signature
        if not (self.label or signature):
            return NO_PARAMETERS
        named = {SIGNATURE: signature, LABEL: self.label}
        text = f'Serving signature key "{signature}" not found.'
        if self.label:
            text = f"Unrecognized servable version label: {self.label}"
        return OpaqueParameters(
            {name: value for name, value in named.items() if value},
            PROTOCOLS,
            b"",
            (Kind.BAD_REQUEST, text),
        )


def find_spec(message: Buffer, number: int) -> bytes | None:
    """Return the merged ModelSpec in field ``number`` of ``message``, or None if the message has no
    ModelSpec. Raises MalformedMessageError."""
    merged: bytearray | None = None
    view = memoryview(message)
    for field in scan_fields(message, MAX_TOP_LEVEL_FIELDS):
        if field.number == number and field.wire_type == DELIMITED:
            merged = bytearray() if merged is None else merged
            merged += view[field.value_start : field.end]
            if len(merged) > _MAX_BYTES:
                raise MalformedMessageError(
                    f"its ModelSpec has over {_MAX_BYTES} bytes (the limit)"
                )
    return None if merged is None else bytes(merged)


def parse_spec(data: bytes) -> ModelSpec:
    """Return the ModelSpec in ``data``. Raises MalformedMessageError."""
    return _parse_cached(data) if len(data) <= _MAX_CACHED_BYTES else _parse(data)


def _parse(data: bytes) -> ModelSpec:
    name = label = signature = ""
    version: int | None = None
    for field in scan_fields(data, _MAX_SPEC_FIELDS):
        if field.wire_type != DELIMITED:
            continue
        value = data[field.value_start : field.end]
        match field.number:
            case 1:
                name = _read_name(value)
            case 2:  # version and label form a oneof: the last value applies
                version, label = _parse_version(value, version or 0), ""
            case 3:
                signature = _read_name(value)
            case 4:
                version, label = None, _read_name(value)
    return ModelSpec(name, version, label, signature)


_parse_cached: Final = functools.lru_cache(_MAX_CACHED_SPECS)(_parse)
"""Parsed ModelSpecs are cached, because requests and responses repeat a few ModelSpecs."""


def _parse_version(value: bytes, default: int) -> int:
    """Return the value in an Int64Value, or ``default`` if the Int64Value is empty."""
    number = default
    for field in scan_fields(value, _MAX_SPEC_FIELDS):
        if field.number == 1 and field.wire_type == VARINT:
            number = read_varint(value, field.value_start, MAX_VARINT_BYTES)[0] % 2**64
    return number - 2**64 if number > _MAX_VERSION else number


def decode_name(label: str, max_bytes: int, value: Buffer) -> str:
    """Return the text of ``value``, a name that error messages call ``label``. Raises
    MalformedMessageError."""
    if len(value) > max_bytes:
        raise MalformedMessageError(f"{label} has over {max_bytes} bytes (the limit)")
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessageError(f"{label} is not UTF-8 text") from None


_read_name: Final = functools.partial(decode_name, "a name in its ModelSpec", MAX_NAME_BYTES)


def apply_options(spec: ModelSpec, options: TfsOptions) -> RequestedModel:
    """Return the model that ``spec`` requests. Raises BAD_REQUEST for an empty name."""
    if not spec.name:
        raise bad_request("ModelSpec has no name specified.")
    version, label = "", spec.label
    if spec.version or (spec.version == 0 and options.version_zero == "literal"):
        version = str(spec.version)
    elif label:
        version = options.labels.get(spec.name, {}).get(label, "")
        label = "" if version else label
    signature = spec.signature or DEFAULT_SIGNATURE
    model = options.signatures.get(spec.name, {}).get(signature, "")
    return RequestedModel(spec, model or spec.name, version, label, "" if model else spec.signature)


def write_spec(model: str, version: str = "", label: str = "", signature: str = "") -> bytes:
    """Return a ModelSpec. If ``version`` is empty, ``label`` or the server selects it. Raises
    BAD_REQUEST for a version that is not a number."""
    parts = [string_field(_NAME, model)]
    if version:
        number = numeric_version(version)
        if number is None:
            raise bad_request(f"version '{version}' of model '{model}' is not a number")
        value = varint_field(1, number) if number else b""
        parts += (field_prefix(_VERSION, len(value)), value)
    if signature:
        parts.append(string_field(_SIGNATURE, signature))
    if label and not version:
        parts.append(string_field(_LABEL, label))
    return b"".join(parts)


def numeric_version(version: str) -> int | None:
    """Return ``version`` as a non-negative int64, or None if it cannot be converted."""
    return parse_decimal(version, _MAX_VERSION)


def spec_field(number: int, spec: bytes) -> bytes:
    """Return ``spec`` encoded as field ``number``."""
    return field_prefix(number, len(spec)) + spec


def spec_parameters(parameters: Parameters) -> tuple[str, str]:
    """Return the signature and the version label in the ``parameters`` of an inference. Raises
    BAD_REQUEST."""
    return _string_parameter(parameters, SIGNATURE), _string_parameter(parameters, LABEL)


def _string_parameter(parameters: Parameters, name: str) -> str:
    value: Any = parameters.get(name, "")
    if not isinstance(value, str):
        raise bad_request(f"parameter '{name}' must be a string")
    return value


def single_spec(specs: Iterable[ModelSpec]) -> ModelSpec:
    """Return the ModelSpec that all tasks of a request share, without the signature. Raises
    BAD_REQUEST if there are no tasks, or if the models, versions or labels differ."""
    different = {ModelSpec(spec.name, spec.version, spec.label) for spec in specs}
    if not different:
        raise bad_request("Inference request requires at least one task")
    if len(different) > 1:
        raise bad_request(
            "All ModelSpecs in a MultiInferenceRequest must access the same model name."
        )
    return different.pop()

"""Converts between the message ServerStatus, which describes a server and all its models, and
canonical responses.

*Rule 1.* A status contains the fields that clients use: ``max_batch_size``, ``input``, ``output``,
the presence of ``sequence_batching``, and the states of the server and of its models' versions. It
also contains the parts of a model's configuration that the API can express.

*Rule 2.* A status lists statistics by the batch size of requests. V2 backends do not report this
size, so their statistics are listed under batch size 1. Statistics without a version are listed
for the highest version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from infergate.codecs.protos import plain_values
from infergate.codecs.protos.bounded_parser import max_fields_on_loop, parse
from infergate.codecs.protos.wire_scanner import MAX_METADATA_FIELDS_ON_LOOP, MalformedMessageError
from infergate.codecs.trtis.datatypes import INVALID_TYPE, NAMES_BY_NUMBER, NUMBERS_BY_NAME
from infergate.codecs.trtis.header_checks import dims_without_batch
from infergate.codecs.trtis.messages import ServerStatus as Message
from infergate.codecs.trtis.statistics import read_statistics, write_statistics
from infergate.core import messages
from infergate.core.decimals import parse_decimal
from infergate.core.errors import GatewayError, Kind, Origin, backend_garbage
from infergate.core.limits import MIB, Limits
from infergate.core.messages import ModelStatus, Operation, Response, ServerStatus
from infergate.core.tensor import Buffer, Parameters

_READY: Final = 2
_INITIALIZING: Final = 1
_STATES: Final = {0: "UNKNOWN", 1: "READY", 2: "UNAVAILABLE", 3: "LOADING", 4: "UNLOADING"}
_STATE_NUMBERS: Final = {name: number for number, name in _STATES.items()}
_ONLY_VERSION: Final = 1
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_FIRST_SCHEDULING_RELEASE: Final = (1, 12)
_MAX_VERSION: Final = 2**63 - 1
_MAX_DECIMAL: Final = 10**19 - 1

# ---- to clients


def write_status(status: ServerStatus, server_id: str) -> Any:
    """Return ``status`` as a message. Raises UNSUPPORTED for values that the message cannot
    represent, for example a dimension of more than 64 bits."""
    try:
        message = Message(
            id=server_id,
            version=status.version,
            uptime_ns=max(status.uptime_ns, 0),
            ready_state=_READY if status.ready else _INITIALIZING,
        )
        for model in status.models:
            _write_model(message.model_status[model.metadata.name], model)
    except ValueError as error:
        raise GatewayError(
            Kind.UNSUPPORTED, f"the legacy API cannot express the status: {error}"
        ) from None
    return message


def _write_model(message: Any, status: ModelStatus) -> None:
    model = status.metadata
    config = message.config
    with suppress(ValueError):  # the message cannot express every configuration of a V2 server
        config.CopyFrom(plain_values.from_plain(type(config), status.config))
    config.name = model.name
    config.platform = model.platform or config.platform
    config.max_batch_size = min(model.max_batch_size or 0, 2**31 - 1)
    for field, tensors in ((config.input, model.inputs), (config.output, model.outputs)):
        config_tensors = {existing.name: existing.SerializeToString() for existing in field}
        del field[:]
        for metadata in tensors:
            tensor = field.add()
            tensor.MergeFromString(config_tensors.get(metadata.name, b""))
            tensor.name = metadata.name
            tensor.data_type = NUMBERS_BY_NAME.get(metadata.datatype, 0)
            tensor.dims[:] = dims_without_batch(metadata, model)
    if model.sequence_batching is not None:
        _write_sequence_batching(config.sequence_batching, model.sequence_batching)
    versions = message.version_status
    for entry in status.versions:
        number = _version_number(entry.version)
        if number is not None:
            version = versions[number]
            version.ready_state = _STATE_NUMBERS.get(entry.state, 0)
            version.ready_state_reason.message = entry.reason
            version.ready_state_reason.SetInParent()
    for statistics in status.statistics:
        name = statistics.get("version")
        number = (
            _version_number(name) if isinstance(name, str) and name else max(versions, default=None)
        )
        if number is not None and number in versions:
            write_statistics(versions[number], statistics)


def _write_sequence_batching(message: Any, settings: Parameters) -> None:
    """Set ``sequence_batching``, because clients check for its presence. Write the settings if the
    message can express them."""
    message.SetInParent()
    with suppress(ValueError):
        message.CopyFrom(plain_values.from_plain(type(message), settings))


def _version_number(version: str) -> int | None:
    """Return ``version`` as a number of at most 2^63-1. An empty version becomes 1; a version that
    is not a number becomes None."""
    if not version:
        return _ONLY_VERSION
    number = parse_decimal(version, _MAX_DECIMAL)
    return None if number is None else min(number, _MAX_VERSION)


# ---- from backends

MAX_BYTES: Final = 8 * MIB
"""Maximum size of a status in bytes. A model with its statistics takes 1 to 4 KiB."""
MAX_FIELDS: Final = 262144
"""Maximum number of fields of a status. A model has about 60 fields, and 20 more for each batch
size with statistics."""


def parse_status(message_class: Any, data: Buffer, limits: Limits) -> Any:
    """Parse a message of type ``message_class``, which contains a status. Raises BACKEND_GARBAGE
    and NeedsOffloadError."""
    if len(data) > MAX_BYTES:
        raise backend_garbage(
            f"the backend's status has {len(data)} bytes; the limit is {MAX_BYTES}"
        )
    try:
        return parse(
            message_class,
            data,
            MAX_FIELDS,
            MAX_BYTES,
            max_fields_on_loop(limits, MAX_METADATA_FIELDS_ON_LOOP),
        )
    except MalformedMessageError as error:
        raise backend_garbage("the backend's status cannot be parsed", str(error)) from None


def read_status(message: Any) -> ServerStatus:
    """Return the status in ``message`` in canonical form."""
    return ServerStatus(
        message.id,
        message.version,
        message.ready_state == _READY,
        tuple(
            _read_model(name, message.model_status[name]) for name in sorted(message.model_status)
        ),
        message.uptime_ns,
    )


def _read_model(name: str, message: Any) -> ModelStatus:
    versions = tuple(
        messages.ModelIndexEntry(
            name,
            str(number),
            _STATES.get(message.version_status[number].ready_state, ""),
            message.version_status[number].ready_state_reason.message,
        )
        for number in sorted(message.version_status)
        if number > 0  # servers list the requests for the latest version under version -1
    )
    config = message.config
    batch = (-1,) if config.max_batch_size > 0 else ()
    return ModelStatus(
        messages.ModelMetadata(
            name=name,
            versions=tuple(entry.version for entry in versions if entry.state == "READY"),
            platform=config.platform,
            inputs=_read_tensors(config.input, batch),
            outputs=_read_tensors(config.output, batch),
            max_batch_size=max(config.max_batch_size, 0),
        ),
        versions,
    )


def _read_tensors(
    tensors: Iterable[Any], batch: tuple[int, ...]
) -> tuple[messages.TensorMetadata, ...]:
    return tuple(
        messages.TensorMetadata(
            tensor.name,
            NAMES_BY_NUMBER.get(tensor.data_type, INVALID_TYPE),
            (*batch, *tensor.dims),
        )
        for tensor in tensors
    )


def response_from_status(message: Any, operation: Operation) -> Response:
    """Return the response to ``operation`` from the status in ``message``. Raises BACKEND_GARBAGE,
    and NOT_FOUND for a version that the model does not have."""
    status = read_status(message)
    match operation:
        case messages.ServerMetadataRequest():
            return messages.ServerMetadata(status.name, status.version)
        case messages.ModelIndexRequest(ready_only):
            return messages.ModelIndex(
                tuple(
                    entry
                    for model_status in status.models
                    for entry in model_status.versions
                    or (messages.ModelIndexEntry(model_status.metadata.name),)
                    if entry.state == "READY" or not ready_only
                )
            )
        case messages.ModelMetadataRequest(model, version):
            metadata = _find_model(status, model, version).metadata
            usable = version in metadata.versions if version else bool(metadata.versions)
            metadata = replace(
                metadata,
                unavailable=not usable,
                supports_scheduling=_supports_scheduling(status.version),
            )
            config = message.model_status[model].config
            if config.HasField("sequence_batching"):
                return replace(
                    metadata, sequence_batching=_config_to_plain(config.sequence_batching, model)
                )
            return metadata
        case messages.ModelConfigRequest(model, version):
            _find_model(status, model, version)
            return messages.ModelConfig(
                model, _config_to_plain(message.model_status[model].config, model)
            )
        case messages.ModelStatisticsRequest(model, version):
            entries = _find_model(status, model, version).versions
            statuses = message.model_status[model].version_status
            versions = [entry.version for entry in entries if version in ("", entry.version)]
            return messages.ModelStatistics(
                tuple(read_statistics(model, name, statuses[int(name)]) for name in versions)
            )
        case messages.ModelReadyRequest(model, version):
            ready = _find_model(status, model, version).metadata.versions
            return messages.HealthStatus(ok=version in ready if version else bool(ready))
    return status


def not_ready_if_unknown(error: GatewayError, operation: Operation) -> messages.HealthStatus:
    """Return "not ready" if ``operation`` is a ModelReadyRequest and ``error`` means that the model
    or the version does not exist. Raise any other ``error``."""
    if error.kind is Kind.NOT_FOUND and isinstance(operation, messages.ModelReadyRequest):
        return messages.HealthStatus(ok=False)
    raise error


def _supports_scheduling(version: str) -> bool:
    """Return whether a server of ``version``, which may be empty, supports priorities and timeouts.
    Servers without this support reject a header with a priority or a timeout."""
    numbers = _RELEASE.match(version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _FIRST_SCHEDULING_RELEASE


def _config_to_plain(config: Any, model: str) -> dict[str, Any]:
    try:
        return plain_values.to_plain(config)
    except MalformedMessageError as error:
        raise backend_garbage(
            f"the backend's configuration of model '{model}' is too long", str(error)
        ) from None


def _find_model(status: ServerStatus, model: str, version: str) -> ModelStatus:
    for entry in status.models:
        if entry.metadata.name == model:
            break
    else:
        raise backend_garbage(f"the backend's status does not contain model '{model}'")
    if version and version not in {version_entry.version for version_entry in entry.versions}:
        raise GatewayError(
            Kind.NOT_FOUND, f"model '{model}' has no version {version}", origin=Origin.BACKEND
        )
    return entry

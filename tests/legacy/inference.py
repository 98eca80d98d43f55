"""Inference as on the real server, for HTTP and gRPC.

``check`` validates a request header against the model's configuration, in the order of the real
server's checks and with its error texts. ``split`` cuts an HTTP body into inputs, ``join`` takes
gRPC's raw inputs, and ``infer`` runs the model and builds the response header and the raw data
of each output.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass
from typing import Any

import numpy as np

from legacy.levels import Behavior
from legacy.messages import Messages
from legacy.models import (
    DTYPES,
    STRING,
    LegacyError,
    Repository,
    Sequence,
    Tensor,
    inference_seconds,
    label_of,
)

_START, _END = 1, 2
_UINT64 = 1 << 64


@dataclass(frozen=True)
class Input:
    """An input that passed the checks. ``size`` is the size of the complete batch in bytes."""

    name: str
    dims: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class CheckedRequest:
    """A request header that passed the checks; ``inputs`` are in the order of the request."""

    config: Any
    version: int
    header: Any
    inputs: tuple[Input, ...]


class Inference:
    """Runs the models of a repository."""

    def __init__(self, messages: Messages, behavior: Behavior, repository: Repository) -> None:
        self._messages = messages
        self._behavior = behavior
        self._repository = repository
        self._type_names = messages.pool.FindEnumTypeByName(
            "nvidia.inferenceserver.DataType"
        ).values_by_number

    def check(self, model: str, version: int, header: Any) -> CheckedRequest:
        """Check the header against the model's configuration. Raises LegacyError."""
        config, selected_version = self._repository.find(model, version)
        _check_batch(config, header.batch_size)
        if len(header.input) != len(config.input):
            raise _invalid_argument(
                f"expected {len(config.input)} inputs but got {len(header.input)} inputs"
                f" for model '{config.name}'"
            )
        inputs = tuple(_checked_input(config, header.batch_size, each) for each in header.input)
        self._check_outputs(config, header)
        for each in [*header.input, *header.output]:
            if each.HasField("shared_memory"):
                reason = f"shared memory block '{each.shared_memory.name}' not found in manager"
                raise LegacyError("NOT_FOUND", reason, late=True)
        return CheckedRequest(config, selected_version, header, inputs)

    def _check_outputs(self, config: Any, header: Any) -> None:
        declared = {each.name for each in config.output}
        seen: set[str] = set()
        for output in header.output:
            if output.name not in declared:
                raise _invalid_argument(
                    f"unexpected inference output '{output.name}' for model '{config.name}'"
                )
            if output.name in seen and self._behavior.refuses_repeated_outputs:
                raise _invalid_argument(f"output '{output.name}' already requested")
            seen.add(output.name)

    def split(self, checked: CheckedRequest, body: bytes) -> dict[str, Tensor]:
        """Return the inputs in an HTTP body. Raises LegacyError."""
        position, inputs = 0, {}
        for each in checked.inputs:
            remaining = len(body) - position
            if remaining < each.size:
                raise _invalid_argument(
                    f"unexpected size for input '{each.name}', expecting"
                    f" {each.size - remaining} bytes for model '{checked.config.name}'",
                    late=True,
                )
            inputs[each.name] = Tensor(each.dims, body[position : position + each.size])
            position += each.size
        if position < len(body):
            reason = f"unexpected additional input data for model '{checked.config.name}'"
            raise _invalid_argument(reason, late=True)
        if len(inputs) < len(checked.inputs):
            raise LegacyError("INVALID_ARG", "duplicate input", unreported=True)
        return inputs

    def join(self, checked: CheckedRequest, raw_inputs: SequenceABC[bytes]) -> dict[str, Tensor]:
        """Return the inputs of a gRPC message. If an input is repeated, its data is concatenated.
        Raises LegacyError."""
        data: dict[str, bytes] = {}
        for index, each in enumerate(checked.inputs):
            if index >= len(raw_inputs):
                raise _invalid_argument(
                    f"expected tensor data for at least {index} inputs but got only"
                    f" {len(raw_inputs)} sets of data for model '{checked.config.name}'"
                )
            data[each.name] = data.get(each.name, b"") + raw_inputs[index]
        for each in checked.inputs:
            if len(data[each.name]) != each.size:
                raise _invalid_argument(
                    f"unexpected size {len(data[each.name])} for input '{each.name}',"
                    f" expecting {each.size} for model '{checked.config.name}'"
                )
        return {each.name: Tensor(each.dims, data[each.name]) for each in checked.inputs}

    async def infer(
        self, checked: CheckedRequest, inputs: dict[str, Tensor]
    ) -> tuple[Any, list[bytes]]:
        """Return the response header and the raw data of each output. Class outputs have no raw
        data. Raises LegacyError."""
        requested = checked.header
        flags = requested.flags
        sequence = Sequence(requested.correlation_id, bool(flags & _START), bool(flags & _END))
        outputs = self._repository.compute(checked.config, inputs, sequence)
        if pause := inference_seconds(checked.config) + self._behavior.delay_ms / 1000:
            await asyncio.sleep(pause)
        header = self._messages.InferResponseHeader(
            id=requested.id,
            model_name=checked.config.name,
            model_version=checked.version,
            batch_size=requested.batch_size,
        )
        raw = [
            self._output(checked, each, outputs[each.name], header.output.add())
            for each in requested.output[:: -1 if self._behavior.reversed_outputs else 1]
        ]
        return header, raw

    def _output(
        self, checked: CheckedRequest, requested: Any, tensor: Tensor, fields: Any
    ) -> bytes:
        fields.name = requested.name
        if requested.cls.count:
            self._classify(checked, requested, tensor, fields)
            return b""
        fields.raw.dims[:] = tensor.dims
        fields.raw.batch_byte_size = len(tensor.data)
        # For a class output of count 0, v1.9.0 returns no bytes but a header that announces some.
        return b"" if requested.HasField("cls") and self._behavior.level == "1.9" else tensor.data

    def _classify(
        self, checked: CheckedRequest, requested: Any, tensor: Tensor, fields: Any
    ) -> None:
        (output,) = (each for each in checked.config.output if each.name == requested.name)
        name = self._type_names[output.data_type].name
        if name in {"TYPE_BOOL", "TYPE_FP16", "TYPE_STRING"}:
            raise _invalid_argument(
                f"class result not available for output '{requested.name}' due to unsupported"
                f" type '{name}'"
            )
        label = label_of(checked.config, output)
        batch = np.frombuffer(tensor.data, DTYPES[output.data_type])
        for scores in batch.reshape(checked.header.batch_size, -1):
            classes = fields.batch_classes.add()
            for index in np.argsort(-scores.astype("f8"), kind="stable")[: requested.cls.count]:
                classes.cls.add(idx=index, value=float(scores[index]), label=label(index))


def _invalid_argument(reason: str, *, late: bool = False) -> LegacyError:
    return LegacyError("INVALID_ARG", reason, late=late)


def _check_batch(config: Any, size: int) -> None:
    message = f"inference request batch-size must be {{}} for '{config.name}'"
    if size < 1:
        raise _invalid_argument(message.format(">= 1"))
    if size > max(1, config.max_batch_size):
        raise _invalid_argument(message.format(f"<= {config.max_batch_size}"))


def _checked_input(config: Any, batch: int, requested: Any) -> Input:
    inputs = {each.name: each for each in config.input}
    for_model = f"for model '{config.name}'"
    if requested.name not in inputs:
        raise _invalid_argument(f"unexpected inference input '{requested.name}' {for_model}")
    declared = inputs[requested.name]
    if not requested.dims and -1 in declared.dims:
        raise _invalid_argument(
            f"model supports variable-size for input '{requested.name}', request must specify"
            f" input shape {for_model}"
        )
    if requested.dims and not _fits(declared.dims, requested.dims):
        raise _invalid_argument(
            f"unexpected shape for input '{requested.name}' {for_model}."
            f" Expected {_format_dims(declared.dims)}, got {_format_dims(requested.dims)}"
        )
    dims = tuple(requested.dims or declared.dims)
    if declared.data_type == STRING:
        return Input(requested.name, dims, requested.batch_byte_size)
    # A wildcard makes the size -1, which the real server then reads as unsigned.
    signed = -1 if -1 in dims else math.prod(dims) * DTYPES[declared.data_type].itemsize * batch
    size = signed % _UINT64
    if requested.batch_byte_size not in {0, size}:
        raise _invalid_argument(
            f"specific batch-byte-size for input '{requested.name}' does not match expected"
            f" byte-size calculated from shape and datatype {for_model}"
        )
    return Input(requested.name, dims, size)


def _fits(expected: SequenceABC[int], actual: SequenceABC[int]) -> bool:
    return len(expected) == len(actual) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(expected, actual, strict=True)
    )


def _format_dims(dims: SequenceABC[int]) -> str:
    return f"[{','.join(map(str, dims))}]"

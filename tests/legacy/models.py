"""The models. ``models.txt`` has the real server's descriptions; this module has the computation.

Tensors are bytes in wire format; dims exclude the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import text_format

from legacy.levels import Behavior
from legacy.messages import Messages

_MODELS_FILE = Path(__file__).with_name("models.txt")
READY, UNAVAILABLE = 1, 2
LATEST = -1
DTYPES = {
    1: np.dtype(bool), 2: np.dtype("u1"), 3: np.dtype("<u2"), 4: np.dtype("<u4"),
    5: np.dtype("<u8"), 6: np.dtype("i1"), 7: np.dtype("<i2"), 8: np.dtype("<i4"),
    9: np.dtype("<i8"), 10: np.dtype("<f2"), 11: np.dtype("<f4"), 12: np.dtype("<f8"),
}  # fmt: skip
_FP32 = 11
STRING = 13
_LABELS = ("cat", "dog", "bird with space", 'fish "q"')
_MANY_CLASSES = 1000
LONG_NAMES = tuple(f"{number}{'x' * 999}" for number in range(5))
"""Long names: a header that lists five inputs and outputs with these names exceeds its limit."""
_SLOW_SECONDS = 1.0


class LegacyError(Exception):
    """An error for the client: the name of a RequestStatusCode and the message.

    ``late`` errors are found after the header check. For ``unreported`` errors, every real server
    closes the HTTP connection without a response.
    """

    def __init__(
        self, code: str, reason: str, *, late: bool = False, unreported: bool = False
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.late = late
        self.unreported = unreported


class Tensor(NamedTuple):
    """A tensor. ``dims`` are the dimensions without the batch, and ``data`` is the data of the
    complete batch.
    """

    dims: tuple[int, ...]
    data: bytes


Tensors = Mapping[str, Tensor]


class Sequence(NamedTuple):
    """The sequence of a request and its flags; ``key`` 0 means no sequence."""

    key: int
    start: bool
    end: bool


class Repository:
    """All models, and which of them are loaded."""

    def __init__(self, messages: Messages, behavior: Behavior) -> None:
        self._behavior = behavior
        self._all = text_format.Parse(
            _MODELS_FILE.read_text(), messages.ServerStatus()
        ).model_status
        if behavior.many_classes:
            self._add_classify_many()
        if behavior.long_names:
            self._add_identity_long()
        self.loaded: dict[str, Any] = {} if behavior.explicit else dict(self._all)
        self._sums: dict[int, Any] = {}

    def _add_classify_many(self) -> None:
        many = self._all["classify_many"]
        many.CopyFrom(self._all["classify"])
        many.config.name = "classify_many"
        for tensor in (many.config.input[0], many.config.output[0]):
            tensor.dims[:] = [_MANY_CLASSES]

    def _add_identity_long(self) -> None:
        long = self._all["identity_long"]
        long.CopyFrom(self._all["identity_fp32"])
        long.config.name = "identity_long"
        for tensors in (long.config.input, long.config.output):
            prefix = tensors[0].name[:-1]
            for name in LONG_NAMES:
                tensors.add().CopyFrom(tensors[0])
                tensors[-1].name = prefix + name
            del tensors[0]

    def names(self) -> list[str]:
        return sorted(self._all)

    def load(self, name: str) -> None:
        """Load a model. Raises LegacyError if the model does not exist or cannot be loaded."""
        self._check_explicit()
        if name not in self._all:
            raise LegacyError("INTERNAL", f"failed to load '{name}', no version is available")
        if name in self.loaded and self._behavior.changes:
            self._change(name)
        self.loaded[name] = self._all[name]
        broken = [
            version
            for version, status in self._all[name].version_status.items()
            if status.ready_state != READY
        ]
        if broken:
            reason = ",".join(map(str, sorted(broken)))
            raise LegacyError(
                "INTERNAL", f"failed to load '{name}', versions that are not available: {reason}"
            )

    def _change(self, name: str) -> None:
        config = self._all[name].config
        for tensor in (*config.input, *config.output):
            tensor.data_type = _FP32
            tensor.dims[0] += 1

    def unload(self, name: str) -> None:
        """Unload a model. An unknown model is not an error."""
        self._check_explicit()
        if name in self.loaded:
            self.loaded[name] = copy.deepcopy(self.loaded[name])
            for status in self.loaded[name].version_status.values():
                status.Clear()
                status.ready_state = UNAVAILABLE
                status.ready_state_reason.message = "unloaded"

    def _check_explicit(self) -> None:
        if not self._behavior.explicit:
            raise LegacyError(
                "UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled"
            )

    def find(self, name: str, version: int) -> tuple[Any, int]:
        """Return the configuration and the selected version. Raises LegacyError."""
        known = self.loaded.get(name)
        versions = known.version_status.items() if known else ()
        ready = [each for each, status in versions if status.ready_state == READY]
        if known is None or not ready or version not in {LATEST, *ready}:
            reason = self._behavior.unknown_model(name, version, known=known is not None)
            raise LegacyError("UNAVAILABLE", reason)
        return known.config, max(ready) if version == LATEST else version

    def compute(self, config: Any, inputs: Tensors, sequence: Sequence) -> Tensors:
        """Return all outputs of the model. Raises LegacyError."""
        if config.name == "failing":
            reason = "payload error for 'failing_0_0_cpu': (7) deliberate failure"
            raise LegacyError("INTERNAL", reason)
        if config.HasField("sequence_batching"):
            return self._accumulate(config.name, inputs["INPUT"], sequence)
        if config.name == "ensemble_simple":
            first = _sum_difference(np.dtype("<i4"), inputs["A"], inputs["B"])
            second = _sum_difference(np.dtype("<i4"), first["OUTPUT0"], first["OUTPUT1"])
            return {"SUM": second["OUTPUT0"]}
        if config.name in {"simple", "simple_nobatch"}:
            dtype = DTYPES[config.input[0].data_type]
            return _sum_difference(dtype, inputs["INPUT0"], inputs["INPUT1"])
        return {f"OUTPUT{name.removeprefix('INPUT')}": each for name, each in inputs.items()}

    def _accumulate(self, name: str, tensor: Tensor, sequence: Sequence) -> Tensors:
        must_specify = f"to model '{name}' must specify"
        if not sequence.key:
            raise LegacyError(
                "INVALID_ARG", f"inference request {must_specify} a non-zero correlation ID"
            )
        if not sequence.start and sequence.key not in self._sums:
            reason = f"inference request for sequence {sequence.key} {must_specify}"
            raise LegacyError(
                "INVALID_ARG", f"{reason} the START flag on the first request of the sequence"
            )
        previous = 0 if sequence.start else self._sums[sequence.key]
        total = previous + np.frombuffer(tensor.data, "<i4")
        if sequence.end:
            self._sums.pop(sequence.key, None)
        else:
            self._sums[sequence.key] = total
        return {"OUTPUT": Tensor(tensor.dims, total.astype("<i4").tobytes())}


def _sum_difference(dtype: np.dtype[Any], left: Tensor, right: Tensor) -> Tensors:
    a, b = np.frombuffer(left.data, dtype), np.frombuffer(right.data, dtype)
    return {
        "OUTPUT0": Tensor(left.dims, (a + b).tobytes()),
        "OUTPUT1": Tensor(left.dims, (a - b).tobytes()),
    }


def label_of(config: Any, output: Any) -> Callable[[int], str]:
    """Return a function from the index of a class to the label of the class, which may be empty."""
    if not output.label_filename:
        return lambda _: ""
    if config.name == "classify_many":
        return lambda index: f"label number {index:04}"
    return lambda index: _LABELS[index]


def inference_seconds(config: Any) -> float:
    return _SLOW_SECONDS if config.name == "slow" else 0.0

"""Conversion between recordings and input files of NVIDIA's perf_analyzer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from infergate.core.errors import GatewayError
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest, ModelMetadata
from infergate.core.request_context import RequestContext
from infergate.migration.replay.entries import DamagedFilePart, Entry, of_model, read_entries
from infergate.migration.replay.target import ReplayTarget
from infergate.recording.encoding import RecordedExchange
from infergate.recording.perf_analyzer import (
    ExportSummary,
    export_perf_analyzer,
    import_perf_analyzer,
)

__all__ = [
    "GatewayError",
    "ModelMetadata",
    "describe_model",
    "export",
    "read_imported",
]
SUFFIX: Final = ".json"
"""The suffix of perf_analyzer's files."""


async def describe_model(target: ReplayTarget, model: str, protocol: str) -> ModelMetadata:
    """Return the metadata that the server of ``target`` reports. Raises GatewayError and
    ReplayTargetError."""
    exchange = Exchange(InferRequest(model), Outcome(), protocol)
    gateway = await target.gateway_for(exchange)
    return await gateway.describe(model, "", RequestContext("replay"))


def read_imported(file: Path, metadata: ModelMetadata) -> Iterator[Entry]:
    """Return the inferences in an input file of perf_analyzer. Raises GatewayError and OSError."""
    return map(RecordedExchange, import_perf_analyzer(file, metadata))


def export(
    files: Sequence[Path],
    model: str | None,
    metadata: ModelMetadata | None,
    to: Path,
    on_damaged: Callable[[DamagedFilePart], object],
) -> ExportSummary:
    """Write the recorded inferences of ``model`` to the input file ``to``. If ``model`` is None,
    the files must contain only one model.

    Raises GatewayError, RecordingError and OSError; ``to`` is then unchanged."""

    def exchanges() -> Iterator[Exchange]:
        for entry in of_model(read_entries(files), model):
            if isinstance(entry, RecordedExchange):
                yield entry.exchange
            else:
                on_damaged(entry)

    return export_perf_analyzer(exchanges(), to, metadata)

"""Models that return the responses in a recording of ``infergate record``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

import orjson

from infergate.core.errors import GatewayError, Kind, backend_failure
from infergate.core.exchange import Exchange
from infergate.core.limits import MIB
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.migration.recorded import recorded_metadata
from infergate.recording.encoding import RecordedExchange
from infergate.recording.format import RecordingError
from infergate.recording.reader import read_recording, recording_files

_by_name: Final = attrgetter("name")
MAX_RECORDING_BYTES: Final = 1024 * MIB
"""The default limit for the memory of the recordings that ``recorded_models`` loads."""


class RecordedModel:
    """Responds to a request with the response, stream or error recorded for an equal request.

    Requests are equal if they have the same inputs, parameters, requested outputs and version. The
    id and the client's protocol are not compared. If equal requests were recorded several times,
    the model returns their responses in the recorded order, and then repeats the last response. The
    metadata is derived from the first recorded request with a response. The first dimension of each
    tensor is variable. The versions are those of all recorded requests, or 1."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        """``exchanges`` contains one or more exchanges, all with the same model."""
        described = next((each for each in exchanges if each.outcome.responses), exchanges[0])
        versions = dict.fromkeys(each.request.version for each in exchanges if each.request.version)
        self.metadata: Final[ModelMetadata] = replace(
            recorded_metadata(described),
            versions=tuple(versions) or ("1",),
            platform="recording",
            decoupled=any(len(each.outcome.responses) != 1 for each in exchanges if each.is_stream),
        )
        self._first: Final = exchanges[0].request
        self._count: Final = len(exchanges)
        self._exchanges: Final[dict[bytes, list[Exchange]]] = {}
        for each in exchanges:
            self._exchanges.setdefault(_key(each.request), []).append(each)

    def infer(self, request: InferRequest) -> InferResponse:
        """Raise NotImplementedError: the backend of recorded models uses ``stream``."""
        raise NotImplementedError

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        exchanges = self._exchanges.get(_key(request))
        if exchanges is None:
            raise self._unknown(request)
        exchange = exchanges.pop(0) if len(exchanges) > 1 else exchanges[0]
        responses = exchange.outcome.responses
        for index, response in enumerate(responses, 1):
            is_last = response.is_last or (index == len(responses) and not exchange.is_stream)
            yield replace(response, id=request.id, is_last=is_last)
        error = exchange.outcome.error
        if error is not None:
            raise error.reworded(error.public)

    def _unknown(self, request: InferRequest) -> GatewayError:
        return backend_failure(
            Kind.NOT_FOUND,
            f"none of the {self._count} recorded requests to model '{request.model}' equals this "
            f"request; the first recorded request differs in {_difference(request, self._first)}",
        )


def recorded_models(
    names: Iterable[str | os.PathLike[str]], max_bytes: int = MAX_RECORDING_BYTES
) -> list[RecordedModel]:
    """Return the models in the recordings ``names``. A folder stands for the recordings in it.

    Raises OSError. Raises RecordingError if part of a recording is damaged or redacted, or if the
    recordings need more than ``max_bytes`` bytes of memory."""
    by_model: dict[str, list[Exchange]] = {}
    size = 0
    for recorded in _records(names):
        size += recorded.size
        if size > max_bytes:
            raise RecordingError(f"the recordings need more than {max_bytes} bytes of memory")
        exchange = recorded.exchange
        by_model.setdefault(exchange.request.model, []).append(exchange)
    return [RecordedModel(exchanges) for exchanges in by_model.values()]


def _records(names: Iterable[str | os.PathLike[str]]) -> Iterator[RecordedExchange]:
    for file in recording_files([os.fspath(name) for name in names]):
        for item in read_recording(file):
            where = f"{file}: byte {item.position}"
            if not isinstance(item, RecordedExchange):
                raise RecordingError(f"{where}: {item.reason}")
            if item.redacted:
                raise RecordingError(
                    f"{where}: {', '.join(item.redacted)} is redacted, so no request can equal "
                    "the recorded request"
                )
            yield item


def _parts(request: InferRequest) -> dict[str, object]:
    """Return the fields that are compared, by their names in error messages."""
    return {
        "the version": request.version,
        "the parameters": dict(request.parameters),
        "the requested outputs": [
            (each.name, dict(each.parameters)) for each in sorted(request.outputs, key=_by_name)
        ],
        **{
            f"input '{each.name}'": (
                each.datatype.value,
                each.shape,
                dict(each.parameters),
                hashlib.sha256(each.data).hexdigest(),
            )
            for each in sorted(request.inputs, key=_by_name)
        },
    }


def _key(request: InferRequest) -> bytes:
    text = orjson.dumps(_parts(request), default=repr, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).digest()


def _difference(request: InferRequest, other: InferRequest) -> str:
    own, others = _parts(request), _parts(other)
    names = [name for name in {**others, **own} if own.get(name) != others.get(name)]
    return ", ".join(names)

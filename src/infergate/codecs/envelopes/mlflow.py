"""MLflow's scoring server: ``POST /invocations`` with lists, tables or CSV.

The JSON body has exactly one of ``instances``, ``inputs``, ``dataframe_split`` and
``dataframe_records``, and optionally ``params``, whose members become parameters of the inference.
``GET /ping`` and ``GET /health`` report readiness, and ``GET /version`` reports infergate's
version.

Source: mlflow's ``pyfunc/scoring_server``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infergate.codecs.envelopes.frames import read_csv, read_records, read_split
from infergate.codecs.envelopes.rows import (
    TEXT_HEADERS,
    BodyReader,
    RowsCodec,
    read_parameters,
)
from infergate.codecs.json_tensors.row_document import JsonValue, parse_document
from infergate.codecs.json_tensors.row_reader import RowReader, input_types
from infergate.core.errors import GatewayError, Kind, bad_request
from infergate.core.limits import Limits
from infergate.core.messages import (
    ModelMetadata,
    Operation,
    ServerMetadataRequest,
    ServerReadyRequest,
)
from infergate.core.tensor import NO_PARAMETERS, Parameters, Tensor
from infergate.core.wire import HttpRequest, HttpResponse

_FORMS: Final = ("instances", "inputs", "dataframe_split", "dataframe_records")
_PARAMS: Final = "params"
_OPERATIONS: Final[Mapping[str, Operation]] = {
    "/ping": ServerReadyRequest(),
    "/health": ServerReadyRequest(),
    "/version": ServerMetadataRequest(),
}
_ERROR_CODES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}


class MlflowCodec(RowsCodec):
    """Serves MLflow's scoring API for ``model``."""

    name: str = "mlflow"

    def __init__(self, v2: Mapping[str, Any], model: str) -> None:
        del v2
        super().__init__(model, "/invocations", _OPERATIONS)

    def body_reader(self, wire: HttpRequest) -> BodyReader:
        content_type = wire.headers.get("content-type", "")
        media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
        for parameter in parameters:
            if parameter.replace('"', "") != "charset=utf-8":
                raise GatewayError(
                    Kind.UNSUPPORTED_ENCODING,
                    f"the content type has '{parameter[:40]}'; only charset=utf-8 is supported",
                )
        if media_type == "text/csv":
            return _read_csv
        if media_type == "application/json":
            return _read_json
        raise GatewayError(
            Kind.UNSUPPORTED_ENCODING,
            f"the content type is '{media_type[:40]}'; expected application/json or text/csv",
        )

    def error_document(self, status: int, message: str) -> dict[str, Any]:
        code = _ERROR_CODES.get(status, "INTERNAL_ERROR" if status >= 500 else "BAD_REQUEST")
        return {"error_code": code, "message": message}

    def build_error(self, error: GatewayError, wire: HttpRequest | None = None) -> HttpResponse:
        """Return the response for ``error``: MLflow's error object, or plain text for an
        unsupported content type or encoding."""
        if error.kind is Kind.UNSUPPORTED_ENCODING:
            return HttpResponse(415, TEXT_HEADERS, [error.public.encode("utf-8", "replace")])
        return super().build_error(error, wire)


def _read_csv(
    body: bytes, metadata: ModelMetadata, limits: Limits
) -> tuple[tuple[Tensor, ...], Parameters]:
    return read_csv(body, metadata, limits), NO_PARAMETERS


def _read_json(
    body: bytes, metadata: ModelMetadata, limits: Limits
) -> tuple[tuple[Tensor, ...], Parameters]:
    members = parse_document(body, (*_FORMS, _PARAMS), limits)
    forms = [name for name in _FORMS if name in members]
    if len(forms) != 1:
        actual = " and ".join(forms) or "none"
        raise bad_request(f"the body must have exactly one of {', '.join(_FORMS)}; it has {actual}")
    parameters = read_parameters(members, _PARAMS)
    return _read_form(forms[0], members[forms[0]], metadata, limits), parameters


def _read_form(
    form: str, value: JsonValue, metadata: ModelMetadata, limits: Limits
) -> tuple[Tensor, ...]:
    if form == "dataframe_split":
        return read_split(value, metadata, limits)
    if form == "dataframe_records":
        return read_records(value, metadata, limits)
    reader = RowReader(input_types(metadata.inputs), limits)
    return reader.read_instances(value) if form == "instances" else reader.read_inputs(value)

"""Derives the kind of an error in a stream from Triton's text, because stream errors have no code.

Only errors that Triton reports before it runs a model are recognized. Any other text counts as a
failure of the server. The texts are from Triton 2.51. The kinds are those of ModelInfer's errors
for the same requests."""

from __future__ import annotations

from typing import Final

from infergate.core.errors import Kind

_NO_ID: Final = "<id_unknown>"
"""The id in Triton's text for a request without an id."""
_NOT_FOUND: Final = (
    "Request for unknown model: '",
    "Unable to find shared memory region: '",
    "failed to get model version from specified version string '",
    "invalid model version specified '",
)
_BAD_REQUEST: Final = (
    # Texts about inputs and outputs.
    ("expected ", " inputs for model '"),
    ("unexpected inference input '", ""),
    ("unexpected inference output '", ""),
    ("unable to find data for input tensor '", ""),
    ("input '", "' already exists in request"),
    # Texts about datatypes, shapes and sizes.
    ("inference input '", "' data-type is '"),
    ("unexpected shape for input '", ""),
    ("All input dimensions should be specified for input '", ""),
    ("input byte size mismatch for input '", ""),
    ("input '", "' has no shape but model requires batch dimension for '"),
    ("input '", "' batch size does not match other inputs for '"),
    ("inference request batch-size must be <= ", ""),
    # Texts about contents.
    ("expected ", " string elements for inference input '"),
    ("unexpected number of string elements ", ""),
    ("incomplete string data for inference input '", ""),
    ("incomplete string length indicator for inference input '", ""),
    ("contents field must not be specified when using raw_input_contents for '", ""),
    ("unexpected explicit tensor data for input tensor '", ""),
    # Texts about parameters and the version.
    ("invalid value type for '", "' parameter, expected "),
    ("invalid value for '", "', expected value "),
    ("parameter keys starting with 'triton_' are reserved ", ""),
    ("'shared_memory_", "' must be specified along with '"),
    # Texts about sequences.
    ("inference request to model '", "' must specify "),
    ("inference request for sequence ", " must specify the START flag "),
)
"""The start of each error text, and a part that the text must also contain."""


def kind_of(text: str, request_id: str) -> Kind:
    """Return the kind of the error with `text`, for the request with the id `request_id`."""
    text = text.removeprefix(f"[request id: {request_id or _NO_ID}] ")
    if text.startswith(_NOT_FOUND):
        return Kind.NOT_FOUND
    if any(text.startswith(start) and part in text for start, part in _BAD_REQUEST):
        return Kind.BAD_REQUEST
    return Kind.BACKEND_ERROR

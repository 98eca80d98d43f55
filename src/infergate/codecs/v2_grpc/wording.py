"""What Triton's words tell of an error in a stream, which has no code there.

Of a model with one answer a unary inference tells the code, so this is for decoupled models, and
where nobody told what the model is.

Source: Triton 2.51, which was asked the same by ModelInfer and by ModelStreamInfer: the texts are
the same, and the former has the code beside them.

*Rule 1.* Only what Triton itself says before a model is run is told from its words, by how a text
begins and what follows in it. Anything else, what models say for one, is the server's failure.
"""

from __future__ import annotations

from typing import Final

from infergate.core.errors import Kind

_NO_ID: Final = "<id_unknown>"
"""How a request without an id is called."""
_ABSENT: Final = (
    "Request for unknown model: '",
    "Unable to find shared memory region: '",
    "failed to get model version from specified version string '",
    "invalid model version specified '",
)
_WRONG: Final = (
    # inputs and outputs
    ("expected ", " inputs for model '"),
    ("unexpected inference input '", ""),
    ("unexpected inference output '", ""),
    ("unable to find data for input tensor '", ""),
    ("input '", "' already exists in request"),
    # datatypes, shapes and sizes
    ("inference input '", "' data-type is '"),
    ("unexpected shape for input '", ""),
    ("All input dimensions should be specified for input '", ""),
    ("input byte size mismatch for input '", ""),
    ("input '", "' has no shape but model requires batch dimension for '"),
    ("input '", "' batch size does not match other inputs for '"),
    ("inference request batch-size must be <= ", ""),
    # contents
    ("expected ", " string elements for inference input '"),
    ("unexpected number of string elements ", ""),
    ("incomplete string data for inference input '", ""),
    ("incomplete string length indicator for inference input '", ""),
    ("contents field must not be specified when using raw_input_contents for '", ""),
    ("unexpected explicit tensor data for input tensor '", ""),
    # parameters, version
    ("invalid value type for '", "' parameter, expected "),
    ("invalid value for '", "', expected value "),
    ("parameter keys starting with 'triton_' are reserved ", ""),
    ("'shared_memory_", "' must be specified along with '"),
    # sequences
    ("inference request to model '", "' must specify "),
    ("inference request for sequence ", " must specify the START flag "),
)
"""How a text begins, and what follows somewhere."""


def kind_of(text: str, number: str) -> Kind:
    """What ``text`` tells of the request with the id ``number``."""
    text = text.removeprefix(f"[request id: {number or _NO_ID}] ")
    if text.startswith(_ABSENT):
        return Kind.NOT_FOUND
    if any(text.startswith(begins) and follows in text for begins, follows in _WRONG):
        return Kind.BAD_REQUEST
    return Kind.BACKEND_ERROR

"""``embed``: returns a vector for each text, computed from hashed character trigrams without
training.

Texts that share many trigrams have similar vectors. This suffices to try out clients for embedding
models: a misspelt word is close to the correct word, although a synonym is not.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from infergate.backends.builtin.model import Signature, UnaryModel, invalid_request
from infergate.core.datatypes import Datatype
from infergate.core.limits import KIB
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import tensor_from_array, unpack_bytes

_DIMENSIONS: Final = 64
_MAX_BATCH: Final = 64
_MAX_TEXT_BYTES: Final = 4 * KIB
"""Maximum size of a text, which limits the time on the event loop. A full batch takes about 5
ms."""
_WEIGHTS: Final = np.array([65_599, 257, 1], np.uint32)
_MULTIPLIER: Final = np.uint32(2_654_435_761)


class Embed(UnaryModel):
    """TEXT BYTES [-1,1] → EMBEDDING FP32 [-1,64] (unit vectors), TOKENS INT32 [-1,1] (words)."""

    signature = Signature(
        "embed",
        (TensorMetadata("TEXT", "BYTES", (-1, 1)),),
        (
            TensorMetadata("EMBEDDING", "FP32", (-1, _DIMENSIONS)),
            TensorMetadata("TOKENS", "INT32", (-1, 1)),
        ),
        _MAX_BATCH,
    )

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the vectors and the numbers of words. Raises BAD_REQUEST for inputs that do not
        match the signature, and for a text that is too long."""
        tensor = self.signature.checked_inputs(request)["TEXT"]
        texts = [bytes(text) for text in unpack_bytes(tensor.data)]
        if any(len(text) > _MAX_TEXT_BYTES for text in texts):
            raise invalid_request(f"input 'TEXT': a text is longer than {_MAX_TEXT_BYTES} bytes")
        vectors = np.array([_embed(text) for text in texts], np.float32)
        tokens = np.array([len(text.split()) for text in texts], np.int32)
        return self.signature.build_response(
            request,
            (
                tensor_from_array("EMBEDDING", Datatype.FP32, vectors.reshape(-1, _DIMENSIONS)),
                tensor_from_array("TOKENS", Datatype.INT32, tokens.reshape(-1, 1)),
            ),
        )


def _embed(text: bytes) -> npt.NDArray[np.float64]:
    """Return a vector of length 1. Each trigram adds 1 or -1 to one dimension before scaling."""
    characters = np.frombuffer(b" " + text.lower() + b"  ", np.uint8).astype(np.uint32)
    trigrams = np.convolve(characters, _WEIGHTS, "valid").astype(np.uint32) * _MULTIPLIER
    signs = np.where(trigrams & 1, 1.0, -1.0)
    vector = np.bincount(trigrams >> 26, signs, _DIMENSIONS)
    length = np.linalg.norm(vector)
    return vector / length if length else np.full(_DIMENSIONS, _DIMENSIONS**-0.5)

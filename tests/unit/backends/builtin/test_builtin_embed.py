import numpy as np
import pytest
from builtin_requests import infer, rejection, strings

from infergate.backends.builtin import BuiltinBackend
from infergate.backends.builtin.embed import Embed
from infergate.core.messages import InferRequest


def request(*texts: bytes) -> InferRequest:
    return InferRequest("embed", inputs=(strings("TEXT", [[text] for text in texts]),))


def test_texts_that_share_trigrams_have_similar_vectors() -> None:
    response = Embed().infer(request(b"a red house", b"A red houes", b"two ships", b""))
    vectors, tokens = (output.numpy() for output in response.outputs)
    assert vectors.shape == (4, 64)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    similarity = vectors @ vectors[0]
    assert similarity[1] > 0.5
    assert similarity[2] < 0.3
    assert tokens.tolist() == [[3], [3], [2], [0]]


@pytest.mark.parametrize("backend", [BuiltinBackend("demo")])
async def test_long_texts_are_refused(backend: BuiltinBackend) -> None:
    response = await infer(backend, request(b"x" * 4096))
    assert response.outputs[0].shape == (1, 64)
    assert "longer than 4096 bytes" in await rejection(backend, request(b"x" * 4097))

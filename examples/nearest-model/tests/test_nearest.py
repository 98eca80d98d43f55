"""The model's results, and its options."""

from pathlib import Path

import numpy as np
import pytest
from infergate_nearest import Nearest, Options

from infergate.plugins import Datatype, InferRequest, tensor_from_array
from infergate.testing import check_model


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.npy"
    np.save(path, np.eye(4, dtype=np.float32))
    return path


def test_the_nearest_vectors_come_first(vectors: Path) -> None:
    query = np.array([[0, 1, 0, 0], [0, 0, 2, 1]], np.float32)
    request = InferRequest("nearest", inputs=(tensor_from_array("query", Datatype.FP32, query),))
    response = check_model(Nearest, Options(str(vectors), count=2), request)
    outputs = {tensor.name: tensor.numpy() for tensor in response.outputs}
    assert outputs["index"].tolist() == [[1, 0], [2, 3]]
    expected = [[0, 2**0.5], [2**0.5, 2]]
    np.testing.assert_allclose(outputs["distance"], expected, atol=1e-6)


def test_options_are_checked(vectors: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Options(str(vectors), count=0)
    with pytest.raises(ValueError, match="there is no file"):
        Options(str(tmp_path / "none.npy"))
    with pytest.raises(ValueError, match="expected at least 5 rows"):
        Nearest(Options(str(vectors), count=5))

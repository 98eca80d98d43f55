"""A model that finds the nearest vectors in a .npy file, for small collections such as the labels
of an embedding model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infergate.plugins import (
    InferRequest,
    ModelMetadata,
    PluginCall,
    PythonModel,
    TensorMetadata,
    input_arrays,
)


@dataclass
class Options:
    """The options in the configuration."""

    vectors: str
    """The path of a .npy file with the vectors, FP32 [N, D]."""
    count: int = 3
    """The number of vectors that are returned for each query."""
    name: str = "nearest"
    """The name of the model."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("count must be at least 1")
        if not Path(self.vectors).is_file():
            raise ValueError(f"there is no file '{self.vectors}'")


class Nearest(PythonModel):
    """Maps query FP32 [-1, D] to index INT64 and distance FP32 [-1, count], the nearest first."""

    options_type = Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        vectors = np.load(options.vectors, allow_pickle=False)
        if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) < options.count:
            raise ValueError(
                f"'{options.vectors}' holds {vectors.dtype} {vectors.shape}; expected at least "
                f"{options.count} rows of float32"
            )
        self._vectors: npt.NDArray[np.float32] = vectors
        self._squares = np.einsum("nd,nd->n", vectors, vectors)

    @property
    def metadata(self) -> ModelMetadata:
        count = self.options.count
        return ModelMetadata(
            self.options.name,
            platform="python",
            inputs=(TensorMetadata("query", "FP32", (-1, self._vectors.shape[1])),),
            outputs=(
                TensorMetadata("index", "INT64", (-1, count)),
                TensorMetadata("distance", "FP32", (-1, count)),
            ),
            max_batch_size=1024,
        )

    def infer(self, request: InferRequest, call: PluginCall) -> dict[str, npt.NDArray[Any]]:
        """Compute the distances with numpy, which releases the interpreter lock, in a thread."""
        del call
        query = input_arrays(request)["query"]
        squares = np.einsum("bd,bd->b", query, query)
        distances = squares[:, None] - 2 * query @ self._vectors.T + self._squares
        index = np.argsort(distances, axis=1, kind="stable")[:, : self.options.count]
        nearest = np.take_along_axis(distances, index, axis=1)
        return {
            "index": index.astype(np.int64),
            "distance": np.sqrt(np.maximum(nearest, 0)).astype(np.float32),
        }

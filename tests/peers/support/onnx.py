"""An ONNX classifier of photos in a running Triton, and its logits without Triton.

The wheel of Triton has no ONNX backend. Triton's Python backend runs the model instead, with the
onnxruntime of an environment that also contains the package ``onnx``, which writes the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from peers import onnx_model

from .installed import Installed, install, run

_SOURCES = Path(onnx_model.__file__).parent

Batches = Mapping[str, npt.NDArray[np.float32]]


def prepare_onnx() -> Installed:
    """Install onnxruntime and onnx if they are missing, with a numpy that Triton supports."""
    return install("onnx", ("numpy<2", "onnx==1.23.2", "onnxruntime==1.32.0"))


def write_classifier(file: Path, batches: Batches) -> Batches:
    """Write the ONNX model to ``file``. Return the logits [N,1000] that onnxruntime computes for
    each of ``batches``, FP32 [N,3,224,224]."""
    inputs, outputs = file.with_suffix(".inputs.npz"), file.with_suffix(".outputs.npz")
    np.savez(inputs, **batches)
    program = (prepare_onnx().python, _SOURCES / "classifier.py")
    run(*map(str, (*program, file, inputs, outputs)))
    with np.load(outputs) as logits:
        return dict(logits)


@contextmanager
def loaded_classifier(client: Any, model: str, file: Path) -> Iterator[None]:
    """Let Triton serve the ONNX ``file`` as ``model`` while the block runs. ``client`` is a
    tritonclient for Triton's HTTP port."""
    config: dict[str, Any] = {
        "backend": "python",
        "max_batch_size": 8,
        "input": [{"name": "data", "data_type": "TYPE_FP32", "dims": [3, 224, 224]}],
        "output": [{"name": "logits", "data_type": "TYPE_FP32", "dims": [1000]}],
        "instance_group": [{"kind": "KIND_CPU"}],
        "parameters": {"packages": {"string_value": str(prepare_onnx().site_packages)}},
    }
    files = {
        "file:1/model.py": (_SOURCES / "model.py").read_bytes(),
        "file:1/model.onnx": file.read_bytes(),
    }
    client.load_model(model, config=json.dumps(config), files=files)
    try:
        yield
    finally:
        client.unload_model(model)

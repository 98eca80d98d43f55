"""Returns INPUT0 + INPUT1 as OUTPUT0, and INPUT0 - INPUT1 as OUTPUT1. BYTES are decimal numbers."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse(_outputs(r)) for r in requests]


def _outputs(request):
    a, b = (pb.get_input_tensor_by_name(request, n).as_numpy() for n in ("INPUT0", "INPUT1"))
    if a.dtype == np.object_:
        x, y = _to_numbers(a), _to_numbers(b)
        results = [_to_text(x + y), _to_text(x - y)]
    else:
        results = [a + b, a - b]
    requested = request.requested_output_names()
    outputs = zip(("OUTPUT0", "OUTPUT1"), results, strict=True)
    return [pb.Tensor(name, result) for name, result in outputs if name in requested]


def _to_numbers(texts):
    return texts.astype(np.int64)


def _to_text(numbers):
    texts = np.array([str(n).encode() for n in numbers.ravel()], dtype=np.object_)
    return texts.reshape(numbers.shape)

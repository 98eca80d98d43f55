"""OUTPUT0 is the sum, OUTPUT1 the difference of INPUT0 and INPUT1; numbers may be strings."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse(_answer(r)) for r in requests]


def _answer(request):
    a, b = (pb.get_input_tensor_by_name(request, n).as_numpy() for n in ("INPUT0", "INPUT1"))
    if a.dtype == np.object_:
        results = [_spelled(r) for r in (_read(a) + _read(b), _read(a) - _read(b))]
    else:
        results = [a + b, a - b]
    wanted = request.requested_output_names()
    named = zip(("OUTPUT0", "OUTPUT1"), results, strict=True)
    return [pb.Tensor(name, result) for name, result in named if name in wanted]


def _read(texts):
    return texts.astype(np.int64)


def _spelled(numbers):
    texts = np.array([str(n).encode() for n in numbers.ravel()], dtype=np.object_)
    return texts.reshape(numbers.shape)

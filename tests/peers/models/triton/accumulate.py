"""Returns the sum of a sequence so far. Its only instance handles one sequence at a time."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.total = 0

    def execute(self, requests):
        return [self._response(r) for r in requests]

    def _response(self, request):
        value = pb.get_input_tensor_by_name(request, "INPUT").as_numpy()
        start = pb.get_input_tensor_by_name(request, "START").as_numpy()
        self.total = int(value[0]) + (0 if start.flat[0] else self.total)
        return pb.InferenceResponse([pb.Tensor("OUTPUT", np.array([self.total], np.int32))])

"""Returns INPUT0 after SECONDS, or an error as soon as the request is cancelled.

CANCELLED is the number of requests cancelled so far.
"""

import time

import numpy as np
import triton_python_backend_utils as pb

POLL_SECONDS = 0.02


class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = 0

    def execute(self, requests):
        return [self._response(r) for r in requests]

    def _response(self, request):
        seconds = float(pb.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0])
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if request.is_cancelled():
                self.cancelled += 1
                error = pb.TritonError("cancelled", pb.TritonError.CANCELLED)
                return pb.InferenceResponse(error=error)
            time.sleep(POLL_SECONDS)
        value = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        cancelled = np.array([self.cancelled], np.int32)
        return pb.InferenceResponse(
            [pb.Tensor("OUTPUT0", value), pb.Tensor("CANCELLED", cancelled)]
        )

"""Sends one response per element of IN, each after the element's DELAY in milliseconds."""

import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            _repeat(request)


def _repeat(request):
    values = pb.get_input_tensor_by_name(request, "IN").as_numpy()
    delays = pb.get_input_tensor_by_name(request, "DELAY").as_numpy()
    sender = request.get_response_sender()
    for index, (value, delay) in enumerate(zip(values, delays, strict=True)):
        time.sleep(int(delay) / 1000)
        out = pb.Tensor("OUT", np.array([value], np.int32))
        idx = pb.Tensor("IDX", np.array([index], np.uint32))
        sender.send(pb.InferenceResponse([out, idx]))
    sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

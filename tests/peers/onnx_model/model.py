"""A model of Triton's Python backend that runs the file ``model.onnx`` beside it with onnxruntime.

It replaces Triton's ONNX backend, which the wheel of Triton lacks. The parameter ``packages`` is
the folder of onnxruntime.
"""

import json
import sys
from pathlib import Path

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        sys.path.append(parameters["packages"]["string_value"])
        import onnxruntime  # noqa: PLC0415 - found in the folder ``packages``

        file = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(file), options)

    def execute(self, requests):
        return [self.response(request) for request in requests]

    def response(self, request):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        names = [each.name for each in self.session.get_outputs()]
        outputs = zip(names, self.session.run(names, inputs), strict=True)
        return pb.InferenceResponse([pb.Tensor(name, array) for name, array in outputs])

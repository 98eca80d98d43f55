"""Returns the version of the model that ran."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.version = np.array([int(args["model_version"])], np.int32)

    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("VERSION", self.version)]) for _ in requests]

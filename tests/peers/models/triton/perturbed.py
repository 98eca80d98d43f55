"""Returns INPUT0 as SCORES, and the position of its maximum as LABEL.

The input CHANGE selects an error, but only in servers with the environment variable PERTURBED:
"1e-6" or "1e-3" is added to the first score, "swapped" exchanges the two largest scores, "nan"
replaces the last score with NaN, "datatype" returns FP64, "missing" omits LABEL, and "broken" adds
0.1 to all scores. All servers add random noise of up to 1e-3 for "noise" and "broken noise".
"""

import os

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.is_perturbed = "PERTURBED" in os.environ
        self.random = np.random.default_rng()

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        scores = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy().copy()
        change = pb.get_input_tensor_by_name(request, "CHANGE").as_numpy()[0].decode()
        label = np.array([scores.argmax()], np.int64)
        if "noise" in change:
            scores += self.random.uniform(0, 1e-3, scores.shape).astype(scores.dtype)
        if self.is_perturbed:
            scores = _perturbed(scores, change)
        outputs = [pb.Tensor("SCORES", scores)]
        if not (self.is_perturbed and change == "missing"):
            outputs.append(pb.Tensor("LABEL", label))
        return pb.InferenceResponse(outputs)


def _perturbed(scores, change):
    if change in {"1e-6", "1e-3"}:
        scores[0] += float(change)
    elif change == "swapped":
        last, first = np.argsort(scores)[-2:]
        scores[[last, first]] = scores[[first, last]]
    elif change == "nan":
        scores[-1] = np.nan
    elif change == "datatype":
        return scores.astype(np.float64)
    elif change.startswith("broken"):
        scores += np.float32(0.1)
    return scores

"""Fails every inference, with the kind of TritonError that INPUT0 names or another exception."""

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [_failure(r) for r in requests]


def _failure(request):
    kind = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy().ravel()[0].decode()
    if not hasattr(pb.TritonError, kind):
        raise RuntimeError(f"the model failed: {kind}")
    error = pb.TritonError(f"the model says {kind}", getattr(pb.TritonError, kind))
    return pb.InferenceResponse(error=error)

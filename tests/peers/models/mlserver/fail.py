"""Raises an exception that the server does not handle."""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse


class Fail(MLModel):
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        raise RuntimeError("the model failed")

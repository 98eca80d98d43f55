"""Returns each input INPUT<n> unchanged as OUTPUT<n>."""

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Identity(MLModel):
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [
            ResponseOutput(
                name=tensor.name.replace("INPUT", "OUTPUT"),
                shape=tensor.shape,
                datatype=tensor.datatype,
                data=tensor.data,
            )
            for tensor in payload.inputs
        ]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)

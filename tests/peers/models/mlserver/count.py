"""Streams INPUT0 responses. If INPUT0 is below -1, fails after the first response."""

from mlserver import MLModel
from mlserver.errors import InferenceError
from mlserver.types import InferenceResponse, ResponseOutput


class Count(MLModel):
    async def predict_stream(self, payloads):
        async for payload in payloads:
            (count,) = payload.inputs[0].data
            for index in range(abs(count)):
                if count < 0 and index:
                    raise InferenceError("counted enough")
                output = ResponseOutput(name="OUT", shape=[1], datatype="INT32", data=[index])
                yield InferenceResponse(model_name=self.name, outputs=[output])

"""Returns INPUT0 + INPUT1 as OUTPUT0, and INPUT0 - INPUT1 as OUTPUT1."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor


class SumDifference(MLModel):
    async def load(self) -> bool:
        self.inputs = [_int32(f"INPUT{i}") for i in range(2)]
        self.outputs = [_int32(f"OUTPUT{i}") for i in range(2)]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        arrays = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        a, b = arrays["INPUT0"], arrays["INPUT1"]
        results = {"OUTPUT0": a + b, "OUTPUT1": a - b}
        requested = [output.name for output in payload.outputs or []] or list(results)
        outputs = [NumpyCodec.encode_output(name, results[name]) for name in requested]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)


def _int32(name: str) -> MetadataTensor:
    return MetadataTensor(name=name, datatype="INT32", shape=[-1, 16])

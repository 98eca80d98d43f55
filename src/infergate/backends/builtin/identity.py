"""``identity``: returns every input unchanged."""

from __future__ import annotations

import re
from typing import Final

from infergate.backends.builtin.model import (
    Signature,
    UnaryModel,
    check_outputs,
    invalid_request,
    tensors_by_name,
)
from infergate.core.messages import InferRequest, InferResponse, TensorMetadata
from infergate.core.tensor import Tensor

_INPUT: Final = re.compile(r"INPUT(0|[1-9][0-9]{0,3})")


class Identity(UnaryModel):
    """INPUT0, INPUT1 … of any datatype and shape → OUTPUT0, OUTPUT1 …. No data is copied.

    Metadata can express neither a variable number of inputs nor an arbitrary datatype. The model
    therefore declares one FP32 input and one FP32 output, each with one variable dimension. A
    property describes the accepted inputs."""

    signature = Signature(
        "identity",
        (TensorMetadata("INPUT0", "FP32", (-1,)),),
        (TensorMetadata("OUTPUT0", "FP32", (-1,)),),
        properties={
            "accepts": "any number of inputs INPUT0, INPUT1 ... of any datatype and shape, each "
            "returned as OUTPUT0, OUTPUT1 ..."
        },
    )

    def infer(self, request: InferRequest) -> InferResponse:
        """Return the inputs as outputs. Raises BAD_REQUEST for a request without inputs, for an
        input with another name, and for invalid requested outputs."""
        inputs = tensors_by_name(request.inputs)
        if not inputs:
            raise invalid_request(
                f"expected at least 1 input but got 0 inputs for model '{self.signature.model}'. "
                "Please provide 'INPUT0'."
            )
        returned = [self._to_output(tensor) for tensor in inputs.values()]
        check_outputs(self.signature.model, request.outputs, (t.name for t in returned))
        return self.signature.build_response(request, returned)

    def _to_output(self, tensor: Tensor) -> Tensor:
        match = _INPUT.fullmatch(tensor.name)
        if match is None:
            raise invalid_request(
                f"unexpected inference input '{tensor.name}' for model '{self.signature.model}', "
                "allowed inputs are: INPUT0, INPUT1 ..."
            )
        return Tensor(f"OUTPUT{match[1]}", tensor.datatype, tensor.shape, tensor.data)

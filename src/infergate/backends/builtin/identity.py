"""``identity``: every input comes back as it went in."""

from __future__ import annotations

import re
from typing import Final

from infergate.backends.builtin.model import (
    Signature,
    UnaryModel,
    by_name,
    check_outputs,
    invalid,
)
from infergate.core.messages import InferRequest, InferResponse, ModelMetadata, TensorMetadata
from infergate.core.tensor import Tensor

_INPUT: Final = re.compile(r"INPUT(0|[1-9][0-9]{0,3})")


class Identity(UnaryModel):
    """INPUT0, INPUT1 … of any datatype and shape → OUTPUT0, OUTPUT1 …, on the same memory.

    Metadata can name neither an open number of inputs nor a free datatype: it declares one FP32
    pair of one free dimension and tells the rest as a property.
    """

    signature: Final = Signature(
        "identity",
        (TensorMetadata("INPUT0", "FP32", (-1,)),),
        (TensorMetadata("OUTPUT0", "FP32", (-1,)),),
        properties={
            "accepts": "any number of inputs INPUT0, INPUT1 ... of any datatype and shape, each "
            "returned as OUTPUT0, OUTPUT1 ..."
        },
    )

    @property
    def metadata(self) -> ModelMetadata:
        """See :class:`Model`."""
        return self.signature.metadata

    def infer(self, request: InferRequest) -> InferResponse:
        """See :class:`Model`."""
        given = by_name(request.inputs)
        if not given:
            raise invalid(
                f"expected at least 1 input but got 0 inputs for model '{self.signature.model}'. "
                "Please provide 'INPUT0'."
            )
        returned = [self._returned(tensor) for tensor in given.values()]
        check_outputs(self.signature.model, request.outputs, (t.name for t in returned))
        return self.signature.answer(request, returned)

    def _returned(self, tensor: Tensor) -> Tensor:
        number = _INPUT.fullmatch(tensor.name)
        if number is None:
            raise invalid(
                f"unexpected inference input '{tensor.name}' for model '{self.signature.model}', "
                "allowed inputs are: INPUT0, INPUT1 ..."
            )
        return Tensor(f"OUTPUT{number[1]}", tensor.datatype, tensor.shape, tensor.data)

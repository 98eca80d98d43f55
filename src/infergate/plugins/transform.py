"""The interface of transforms in plug-ins."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from infergate.core.messages import TensorMetadata
from infergate.core.tensor import Tensor
from infergate.plugins.base import Plugin


class TensorTransform(Plugin, abc.ABC):
    """A step of a route's ``transforms``: it replaces the tensors that it ``reads`` by those that
    it ``writes``, on the way to the backend (``inputs``) or to the client (``outputs``).

    Metadata is transformed in the same way, so that clients see the model as transformed. The
    methods for metadata must return at once. All methods may raise GatewayError; the public text of
    BAD_REQUEST names the tensor at fault.
    """

    @property
    @abc.abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The names of the tensors that the step replaces."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The names of the tensors that replace them. By default, the names stay."""
        return self.reads

    @abc.abstractmethod
    def apply(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the tensors of ``writes`` for those of ``reads``. This method runs in a thread,
        and several threads may run it at the same time."""

    def forward_metadata(self, *tensors: TensorMetadata) -> Sequence[TensorMetadata]:
        """Return the metadata of ``writes`` for the tensors of ``reads``. Steps of outputs need it.
        By default, datatypes and shapes stay."""
        return tensors

    def backward_metadata(self, *tensors: TensorMetadata) -> Sequence[TensorMetadata]:
        """Return the metadata of ``reads`` for the tensors of ``writes``. Steps of inputs need it.
        By default, datatypes and shapes stay."""
        return tensors

"""The interface of transforms in plug-ins."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from infergate.core.messages import TensorMetadata
from infergate.core.tensor import Tensor
from infergate.plugins.base import Plugin


class TensorTransform(Plugin, abc.ABC):
    """A step of a route's ``transforms``. The step replaces the tensors that it ``reads`` with the
    tensors that it ``writes``: inputs on their way to the backend, or outputs on their way to the
    client.

    The model's metadata is transformed too, so that clients see the names, datatypes and shapes
    that the route expects and returns. The methods for metadata must return immediately. All
    methods may raise GatewayError. For an error from ``apply``, the kind selects the status, and
    clients see the public text. For an error from a method for metadata, the kind is ignored, and
    the message is the name of a tensor and the public text.
    """

    @property
    @abc.abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The names of the tensors that the step replaces."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The names of the new tensors. By default, the names do not change."""
        return self.reads

    @abc.abstractmethod
    def apply(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the tensors of ``writes``, made from the tensors of ``reads``. This method runs in
        a thread, and several threads may run it at the same time."""

    def forward_metadata(self, *tensors: TensorMetadata) -> Sequence[TensorMetadata]:
        """Return the metadata of ``writes`` for the tensors of ``reads``. The gateway calls this
        method for steps of outputs. By default, datatypes and shapes do not change."""
        return tensors

    def backward_metadata(self, *tensors: TensorMetadata) -> Sequence[TensorMetadata]:
        """Return the metadata of ``reads`` for the tensors of ``writes``. The gateway calls this
        method for steps of inputs. By default, datatypes and shapes do not change."""
        return tensors

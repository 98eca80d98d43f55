"""The interface of transforms in plug-ins."""

from __future__ import annotations

import abc

from infergate.core.messages import InferRequest, InferResponse, ModelMetadata
from infergate.plugins.base import Plugin


class TensorTransform(Plugin, abc.ABC):
    """A transform between the tensors of clients and those of the model.

    The methods are pure: they use no I/O and keep no state, so that they may run in any process.
    ``describe`` must agree with the other methods: a request that fits the described metadata
    becomes a request that fits the model's metadata, and responses likewise. They may raise
    GatewayError; BAD_REQUEST names the tensor at fault.
    """

    @abc.abstractmethod
    def describe(self, metadata: ModelMetadata) -> ModelMetadata:
        """Return the metadata that clients see of a model with ``metadata``."""

    def transform_request(self, request: InferRequest) -> InferRequest:
        """Return the request that the model receives."""
        return request

    def transform_response(self, request: InferRequest, response: InferResponse) -> InferResponse:
        """Return the response that the client receives. ``request`` is the client's request."""
        del request
        return response

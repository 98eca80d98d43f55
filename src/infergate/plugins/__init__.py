"""The interfaces of plug-ins, and the types that they use. Plug-ins import nothing else.

- ``PythonModel``: a model that runs in the gateway's process (entry point ``infergate.backends``)
- ``RequestHook``: code before and after the inferences of a route (``infergate.hooks``)
- ``TensorTransform``: a transform of tensors and metadata (``infergate.transforms``)
- ``CodecPlugin``: a protocol (``infergate.codecs``); ``infergate.codecs.base`` has its interfaces

The names in ``__all__`` follow semantic versioning under ``API_VERSION``: a change that breaks
plug-ins raises the first number, and an addition raises the second number. docs/plugins.md
describes how plug-ins are configured, limited and reported.
"""

from infergate.codecs.base import (
    Capabilities,
    Codec,
    CodecPlugin,
    ParsedRequest,
    PartialInferRequest,
    Profile,
    RequestSummary,
    SupportsPassThrough,
    SupportsStreaming,
    TransportKind,
)
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind
from infergate.core.limits import Limits
from infergate.core.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from infergate.core.tensor import Tensor, tensor_from_array
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from infergate.plugins.base import API_VERSION, Plugin, PluginCall
from infergate.plugins.hook import RequestHook
from infergate.plugins.model import PythonModel, input_arrays
from infergate.plugins.transform import TensorTransform

__all__ = [
    "API_VERSION",
    "Capabilities",
    "Codec",
    "CodecPlugin",
    "Datatype",
    "GatewayError",
    "HttpRequest",
    "HttpResponse",
    "InferRequest",
    "InferResponse",
    "Kind",
    "Limits",
    "ModelMetadata",
    "ParsedRequest",
    "PartialInferRequest",
    "Plugin",
    "PluginCall",
    "Profile",
    "PythonModel",
    "RequestHook",
    "RequestSummary",
    "RequestedOutput",
    "RpcRequest",
    "RpcResponse",
    "SupportsPassThrough",
    "SupportsStreaming",
    "Tensor",
    "TensorMetadata",
    "TensorTransform",
    "TransportKind",
    "input_arrays",
    "tensor_from_array",
]

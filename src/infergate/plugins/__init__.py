"""The interfaces of plug-ins, and the types that the interfaces use. A plug-in imports no other
module of infergate. Each kind of plug-in has a group of entry points:

- ``PythonModel``: a model that runs in the gateway's process (``infergate.backends``)
- ``RequestHook``: code before and after the inferences of a route (``infergate.hooks``)
- ``TensorTransform``: a transform of tensors and metadata (``infergate.transforms``)
- ``CodecPlugin``: a protocol (``infergate.codecs``)

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
from infergate.codecs.http_status import STATUS_BY_KIND, kind_of_status
from infergate.core.datatypes import Datatype
from infergate.core.errors import GatewayError, Kind, backend_failure, bad_request, error_headers
from infergate.core.limits import DEFAULT_LIMITS, Limits
from infergate.core.messages import (
    HealthStatus,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelMetadataRequest,
    ModelReadyRequest,
    Operation,
    RequestedOutput,
    Response,
    TensorMetadata,
)
from infergate.core.tensor import (
    Buffer,
    Tensor,
    check_data,
    check_shape,
    pack_bytes,
    tensor_from_array,
    unpack_bytes,
)
from infergate.core.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse, join_parts
from infergate.plugins.base import API_VERSION, Plugin, PluginCall
from infergate.plugins.hook import RequestHook
from infergate.plugins.model import PythonModel, input_arrays
from infergate.plugins.transform import TensorTransform

__all__ = [
    "API_VERSION",
    "DEFAULT_LIMITS",
    "STATUS_BY_KIND",
    "Buffer",
    "Capabilities",
    "Codec",
    "CodecPlugin",
    "Datatype",
    "GatewayError",
    "HealthStatus",
    "HttpRequest",
    "HttpResponse",
    "InferRequest",
    "InferResponse",
    "Kind",
    "Limits",
    "ModelMetadata",
    "ModelMetadataRequest",
    "ModelReadyRequest",
    "Operation",
    "ParsedRequest",
    "PartialInferRequest",
    "Plugin",
    "PluginCall",
    "Profile",
    "PythonModel",
    "RequestHook",
    "RequestSummary",
    "RequestedOutput",
    "Response",
    "RpcRequest",
    "RpcResponse",
    "SupportsPassThrough",
    "SupportsStreaming",
    "Tensor",
    "TensorMetadata",
    "TensorTransform",
    "TransportKind",
    "backend_failure",
    "bad_request",
    "check_data",
    "check_shape",
    "error_headers",
    "input_arrays",
    "join_parts",
    "kind_of_status",
    "pack_bytes",
    "tensor_from_array",
    "unpack_bytes",
]

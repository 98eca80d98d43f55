"""The code that the HTTP and gRPC codecs of the legacy API share."""

from __future__ import annotations

from typing import Any, Final

from infergate.codecs.base import Capabilities, ParsedRequest, Profile
from infergate.codecs.binary_estimates import BinaryEstimates
from infergate.codecs.trtis.datatypes import DATATYPE_NUMBERS
from infergate.codecs.trtis.infer_response import header_cost
from infergate.codecs.trtis.options import TrtisOptions
from infergate.codecs.trtis.request_status import RequestStatusFactory
from infergate.codecs.trtis.validated_headers import ValidatedHeaderCache
from infergate.core.messages import InferRequest, InferResponse, Response


class TrtisCodec(BinaryEstimates):
    """Capabilities, options and cost estimates of the legacy API."""

    capabilities: Capabilities = Capabilities(
        datatypes=frozenset(DATATYPE_NUMBERS),
        supports_classification=True,
        reports_config=True,
        reports_statistics=True,
    )
    needs_profile: bool = False
    needs_metadata: bool = True

    def __init__(self, options: TrtisOptions) -> None:
        self._options: Final = options
        self._status_factory: Final = RequestStatusFactory(options)
        self._header_cache: Final = ValidatedHeaderCache()
        # Legacy servers do not report the datatypes of outputs, so only translation can add them.
        self.can_pass_through: bool = not options.data_type

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options,)  # the header cache is not pickled

    def response_text_bytes(self, response: Response, parsed: ParsedRequest) -> int:
        """Return the cost of writing the classes and shapes of the outputs."""
        if not isinstance(response, InferResponse):
            return 0
        return header_cost(response.outputs, parsed.response_options.outputs)

    def backend_text_bytes(self, operation: InferRequest, profile: Profile) -> int:
        """Return the cost of writing the shapes of the inputs."""
        del profile
        return header_cost(operation.inputs, ())

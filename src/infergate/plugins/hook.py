"""The interface of request hooks."""

from __future__ import annotations

from infergate.core.messages import InferRequest, InferResponse
from infergate.plugins.base import Plugin, PluginCall


class RequestHook(Plugin):
    """Code that runs before and after each inference of the routes that name the hook.

    For all protocols, inferences are in canonical form with the client's names. Both methods may
    raise GatewayError to reject the inference; the client receives the error's kind and its public
    text. All other exceptions are failures of the hook. Both methods must end within the hook's
    ``timeout``, and must not change their arguments.
    """

    async def before(
        self, request: InferRequest, call: PluginCall
    ) -> InferRequest | InferResponse | None:
        """Return None to leave ``request`` unchanged, another request for the same model to replace
        it, or a response to send without calling the model."""
        del request, call
        return None

    async def after(
        self, request: InferRequest, response: InferResponse, call: PluginCall
    ) -> InferResponse | None:
        """Return None to leave ``response`` unchanged, or another response to replace it.

        ``request`` is the request that ``before`` of this hook received. In a stream, the method is
        called for each response. It is not called after an error."""
        del request, response, call
        return None

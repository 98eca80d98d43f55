"""Creates the ``PluginCall`` of an inference."""

from __future__ import annotations

from infergate.core.credential_names import may_hold_credentials
from infergate.core.request_context import RequestContext
from infergate.plugins.base import PluginCall


def plugin_call(context: RequestContext, *, is_stream: bool) -> PluginCall:
    """Return the facts about the request with ``context`` that plug-ins may see."""
    return PluginCall(
        route=context.record.route,
        identity=context.identity,
        request_id=context.request_id,
        headers={
            name: value for name, value in context.headers.items() if not may_hold_credentials(name)
        },
        deadline=context.deadline,
        is_stream=is_stream,
    )

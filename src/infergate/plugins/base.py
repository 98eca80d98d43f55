"""The base class of plug-ins, and the facts that they get about each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

API_VERSION: Final = "1.0"
"""The version of the interfaces in ``infergate.plugins``."""


class Plugin:
    """The base class of plug-ins. The gateway creates one instance for each use in the
    configuration, in a thread, with the options from there.

    Asynchronous methods run on an event loop of the instance's own, in a thread of its own, so that
    a blocked plug-in does not block the gateway. The loop is started before ``start``. The
    constructor runs outside of it.
    """

    options_type: ClassVar[type | None] = None
    """A pydantic model or a dataclass, which validates the options. None: there are no options."""
    plugin_api: ClassVar[str] = API_VERSION
    """The version of the interface that the plug-in needs. A plug-in that may be installed with
    older versions of infergate sets it to a literal such as ``"1.0"``."""

    def __init__(self, options: Any = None) -> None:
        """Keep the ``options``: an instance of ``options_type``, or None."""
        self.options = options

    async def start(self) -> None:
        """Open what the plug-in uses, such as connections. Any exception rejects the
        configuration."""

    async def close(self) -> None:
        """Close what the plug-in uses. The gateway calls it once, after the last call."""


@dataclass(slots=True, kw_only=True)
class PluginCall:
    """The facts about one inference that a plug-in may use besides its tensors."""

    route: str = ""
    """The label of the route in logs and metrics."""
    identity: str = ""
    """The authenticated client. It is empty without access control."""
    request_id: str = ""
    """The id in the header ``x-request-id``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The client's headers or gRPC metadata with lower-case names, without those that may hold
    credentials."""
    deadline: float | None = None
    """When the client stops waiting, in seconds on the clock of ``time.monotonic``."""
    is_stream: bool = False
    """Whether the client may receive several responses."""
    state: dict[str, Any] = field(default_factory=dict)
    """Values that a hook keeps from ``before`` to ``after``. Each hook has its own."""

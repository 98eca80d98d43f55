"""The base class of plug-ins, and the facts that they receive about each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

API_VERSION: Final = "1.0"
"""The version of the interfaces in ``infergate.plugins``."""


class Plugin:
    """The base class of plug-ins. For each use of a plug-in in the configuration, the gateway
    creates one instance, in a thread, with the options of that use.

    Asynchronous methods run on an event loop that belongs to the instance and has its own thread,
    so that a blocked plug-in does not block the gateway. The loop is running when ``start`` is
    called, but the constructor does not run on it.
    """

    options_type: ClassVar[type | None] = None
    """A pydantic model or a dataclass that validates the options, or None if there are no
    options."""
    plugin_api: ClassVar[str] = API_VERSION
    """The version of the interface that the plug-in needs. A plug-in that may be installed with
    older versions of infergate sets it to a literal such as ``"1.0"``."""

    def __init__(self, options: Any = None) -> None:
        """Keep the ``options``: an instance of ``options_type``, or None."""
        self.options = options

    async def start(self) -> None:
        """Open the resources of the plug-in, such as connections. Any exception rejects the
        configuration."""

    async def close(self) -> None:
        """Close the resources of the plug-in. The gateway calls this method once, after the last
        inference."""


@dataclass(slots=True, kw_only=True)
class PluginCall:
    """The facts about one inference, other than its tensors, that a plug-in may use."""

    route: str = ""
    """The label of the route in logs and metrics."""
    identity: str = ""
    """The authenticated client, or an empty string without access control."""
    request_id: str = ""
    """The id in the header ``x-request-id``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The client's headers or gRPC metadata with lower-case names. Headers that may hold
    credentials are removed."""
    deadline: float | None = None
    """The deadline of the client, in seconds on the clock of ``time.monotonic``."""
    is_stream: bool = False
    """Whether the client may receive several responses."""
    state: dict[str, Any] = field(default_factory=dict)
    """Values that a hook keeps from ``before`` to ``after``. Each hook has its own dictionary."""

"""The sections of routes.yaml on configuration reload and graceful shutdown."""

from __future__ import annotations

from pydantic import Field

from infergate.config.fields import Duration, PositiveDuration
from infergate.config.section import Section


class ReloadConfig(Section):
    """Configuration reload at run time. SIGHUP always triggers a reload. An invalid configuration
    is rejected, and the current configuration stays active."""

    watch: bool = Field(
        default=True,
        description="Reload when the configuration file or a file named in it changes. Kubernetes "
        "ConfigMap mounts are supported.",
    )
    quiet: PositiveDuration = Field(
        default=0.5,
        description="Time for which the watched files must be unchanged before a reload, so that "
        "no half-written file is read. Example: `2s`.",
    )
    post: bool = Field(
        default=False,
        description="Reload on POST /reload on the admin listener. Anyone who can connect to the "
        "listener can reload; with `listeners.admin.keys`, only holders of a key can reload. Each "
        "such request is written to the audit log.",
    )


class DrainConfig(Section):
    """Graceful shutdown (draining) on SIGTERM and SIGINT."""

    delay: Duration = Field(
        default=5.0,
        description="Time for which /readyz fails while requests are still accepted, so that load "
        "balancers stop sending requests before the gateway stops accepting them.",
    )
    timeout: Duration = Field(
        default=30.0,
        description="Time that requests in progress then have to finish before they are "
        "cancelled. Example: `2m`.",
    )

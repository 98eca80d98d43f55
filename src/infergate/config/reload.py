"""How a configuration is replaced, and how the process ends: a part of the schema."""

from __future__ import annotations

from pydantic import Field

from infergate.config.fields import Duration, PositiveDuration
from infergate.config.section import Section


class ReloadConfig(Section):
    """When the configuration is read again while infergate runs. SIGHUP always does it."""

    watch: bool = Field(
        default=True,
        description="Whether it is when its file, or a file that it names, changes. A Kubernetes "
        "ConfigMap's are watched as well.",
    )
    quiet: PositiveDuration = Field(
        default=0.5,
        description="How long those files have to be left alone first, so that what is half "
        "written is not read.",
    )
    post: bool = Field(
        default=False,
        description="Whether it is on POST /reload on the admin listener, by whoever reaches that "
        "(`listeners.admin.keys`: and has a key). Each is told to the audit log.",
    )


class DrainConfig(Section):
    """How SIGTERM and SIGINT end the process."""

    delay: Duration = Field(
        default=5.0,
        description="How long /readyz already fails while requests are still accepted, so that "
        "load balancers look elsewhere first.",
    )
    timeout: Duration = Field(
        default=30.0,
        description="How long requests may then take to finish before they are cancelled.",
    )

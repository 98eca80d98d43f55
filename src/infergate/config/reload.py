"""When another configuration is taken while infergate runs: a part of the schema."""

from __future__ import annotations

from pydantic import Field

from infergate.config.fields import PositiveDuration
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

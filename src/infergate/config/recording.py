"""The sections of routes.yaml on recording inferences."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from infergate.config.fields import FilePath, HeaderGlob, Name, PositivePercent, PositiveSize
from infergate.config.section import Section
from infergate.core.credential_names import may_hold_credentials
from infergate.core.limits import MIB


def _without_credentials(glob: str) -> str:
    if may_hold_credentials(glob):
        raise ValueError(f"'{glob}' may hold credentials, which are never recorded")
    return glob


RecordedHeader = Annotated[HeaderGlob, AfterValidator(_without_credentials)]


class RedactConfig(Section):
    """Tensors to remove or zero before an inference is written or sent, by the names that clients
    use or by globs. If any tensor is listed, bodies that the gateway cannot decode, such as those
    of explanation requests, are also removed (docs/recording.md).

    Example: `redact: {remove: [comment], zero: [patient_*]}`."""

    remove: tuple[Name, ...] = Field(
        default=(), description="Inputs and outputs to remove. Example: `[comment]`."
    )
    zero: tuple[Name, ...] = Field(
        default=(),
        description="Inputs and outputs whose data is replaced with zeros of the same size. The "
        "elements of BYTES tensors become empty. Example: `[patient_*]`.",
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if both := set(self.remove) & set(self.zero):
            raise ValueError(f"'{min(both)}' is in both remove and zero")
        return self


class RecordConfig(Section):
    """Recording of a route's inferences. This requires the top-level `recording`.

    Example: `record: {percent: 5}`."""

    percent: PositivePercent = Field(
        default=100.0,
        description="Percentage of the inferences to record. The inferences of a sequence are "
        "either all recorded or all skipped. Example: `5`.",
    )


class RecordingConfig(Section):
    """The files in which inferences of routes with `record` are stored (docs/recording.md)."""

    path: FilePath = Field(
        description="The folder of the files, relative to routes.yaml. It is created if it does "
        "not exist. Each gateway needs its own folder. Example: `/var/lib/infergate/recordings`."
    )
    active: bool = Field(
        default=True,
        description="Start recording when the gateway starts. With `false`, `infergate record "
        "start` starts recording.",
    )
    post: bool = Field(
        default=False,
        description="Let POST /recording/start and POST /recording/stop on the admin listener "
        "start and stop recording. `listeners.admin.actions` also enables these requests, and "
        "`listeners.admin.keys` restricts them to holders of a key.",
    )
    file_bytes: PositiveSize = Field(
        default=256 * MIB,
        description="Size at which a file is complete and a new file is started. A larger record "
        "gets its own file.",
    )
    total_bytes: PositiveSize = Field(
        default=10 * 1024 * MIB,
        description="Maximum total size of the files. With several workers, each worker may use "
        "an equal share. Example: `100GiB`.",
    )
    when_full: Literal["stop", "remove_oldest"] = Field(
        default="stop",
        description="The reaction when the files reach `total_bytes`: `stop` stops recording, and "
        "`remove_oldest` removes the oldest files.",
    )
    headers: tuple[RecordedHeader, ...] = Field(
        default=(),
        description="Client request headers (gRPC: metadata) to record, by name or glob. Headers "
        "that may hold credentials are never recorded. Example: `[x-tenant, traceparent]`.",
    )
    redact: RedactConfig = Field(
        default=RedactConfig(), description="Tensors to remove or zero before recording."
    )

"""Starts and stops recording in a process."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infergate.recording.recorder import Recorder  # imported only if recording is configured


class RecordingAction(enum.Enum):
    """An action on the recorder of every process."""

    START = enum.auto()
    STOP = enum.auto()
    """Stop recording, and complete the files."""
    GET_STATUS = enum.auto()


ControlRecording = Callable[[RecordingAction], Awaitable[Sequence[dict[str, Any]]]]
"""Performs an action in all processes, and returns JSON data with the status of each process that
has a recorder."""


async def control_recorder(
    recorder: Recorder | None, action: RecordingAction, worker: int
) -> list[dict[str, Any]]:
    """Perform ``action`` in this process, whose number is ``worker``. Return a list with the status
    of the recorder, or an empty list without a recorder."""
    if recorder is None:
        return []
    if action is RecordingAction.START:
        recorder.start()
    elif action is RecordingAction.STOP:
        await recorder.stop()
    return [{"worker": worker, **recorder.status()}]

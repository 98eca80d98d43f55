"""``infergate record``: controls recording in a running gateway, and prints recording files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

from infergate.cli.admin_client import Json, get_json
from infergate.cli.command import Arguments
from infergate.recording.format import RecordingError
from infergate.recording.listing import as_json, as_text
from infergate.recording.reader import DamagedPart, read_recording, recording_files
from infergate.terminal import Table, print_tables

SHOW: Final = "show"
STATUS: Final = "status"
ACTIONS: Final = ("start", "stop", STATUS)
_NO_RECORDING: Final = (
    "the gateway's configuration has no section 'recording', or the gateway is older than this "
    "command"
)


def run(arguments: Arguments) -> int:
    """Run the action that the first operand names; the other operands are files for SHOW. Return
    the exit code: 1 if a file is damaged or cannot be read or if recording has stopped because of a
    problem, and 2 for invalid operands. Raises AdminQueryError."""
    action, *files = arguments.operands
    if action == SHOW and files:
        try:
            paths = recording_files(files)
        except RecordingError as error:
            print(f"infergate: {error}", file=sys.stderr)
            return 1
        return max([_show(str(file), lines=arguments.json) for file in paths])
    if action in ACTIONS and not files:
        return _control(action, arguments.admin, as_json=arguments.json)
    usage = f"record {'|'.join(ACTIONS)}, or: infergate record {SHOW} FILE…"
    print(f"usage: infergate {usage}", file=sys.stderr)
    return 2


def _control(action: str, admin: str, *, as_json: bool) -> int:
    path = "/recording" if action == STATUS else f"/recording/{action}"
    method = "GET" if action == STATUS else "POST"
    data = get_json(admin, path, method, _NO_RECORDING)
    processes = data["processes"]
    if as_json:
        print(json.dumps(data, indent=2))
    else:
        _print_processes(processes)
    return int(any(process["problem"] for process in processes))


def _print_processes(processes: Sequence[Json]) -> None:
    rows = []
    for process in processes:
        exchanges = dict(process["exchanges"])
        recorded = exchanges.pop("recorded")
        state = "recording" if process["active"] else "stopped"
        rows.append(
            (
                str(process["worker"]),
                state,
                str(recorded),
                str(sum(exchanges.values())),
                str(process["bytes"]),
                process["file"] or "-",
                process["problem"] or "-",
            )
        )
    headings = ("WORKER", "STATE", "RECORDED", "DROPPED", "BYTES", "FILE", "PROBLEM")
    title = f"recording in {processes[0]['path']}"
    print_tables([Table(title, headings, rows, frozenset({2, 3, 4}))])


def _show(file: str, *, lines: bool) -> int:
    """Print the contents of ``file``, as JSON lines if ``lines`` is set. Return the exit code."""
    records = damaged = 0
    try:
        for part in read_recording(file):
            damaged += isinstance(part, DamagedPart)
            records += not isinstance(part, DamagedPart)
            print(
                json.dumps({"file": file} | as_json(part)) if lines else _printable(as_text(part))
            )
    except BrokenPipeError:  # an error of standard output, not of the file
        raise
    except (RecordingError, OSError) as error:
        print(f"infergate: {error}", file=sys.stderr)
        return 1
    if not lines:
        print(f"{file}: {_count(records, 'record')}, {_count(damaged, 'damaged part')}")
    return int(damaged > 0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

"""Processes that write to one pipe, and a slow reader."""

from __future__ import annotations

import array
import fcntl
import os
import subprocess
import sys
import termios
import time
from pathlib import Path

import infergate
from infergate.runtime.workers.log_lock import LogLock

WRITER = """
import sys
sys.path[:0] = [sys.argv[3]]
from infergate.observe.access_log import AccessLog
from infergate.runtime.workers.log_lock import LogLock
from infergate.core.request_context import RequestContext
line = sys.argv[1].encode() * 9000 + b"\\n"
log = AccessLog(lambda entry: line, lambda: None, lock=LogLock(int(sys.argv[2])))
for _ in range(60):
    log.record(RequestContext(""), 0.0, 0.0)
sys.stderr.write("!")
sys.stderr.flush()
log._closing.set()
log._writer.join()
"""
PIPE = 65536


def waiting(pipe: int) -> int:
    """Return the number of unread bytes."""
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def sleeps(pid: int) -> bool:
    """Return whether all threads of the process are waiting."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(each.read_text().rpartition(")")[2].split()[0] == "S" for each in tasks)


def test_lines_over_the_atomic_pipe_size_are_not_interleaved() -> None:
    turn = LogLock.create_file()
    source = str(Path(infergate.__file__).parents[1])
    out, theirs = os.pipe()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, letter, str(turn), source],
            stdout=theirs, stderr=subprocess.PIPE, pass_fds=(turn,),
        )
        for letter in "ab"
    ]  # fmt: skip
    os.close(theirs)
    for each in writers:
        assert each.stderr is not None
        assert each.stderr.read(1) == b"!"
        each.stderr.close()
    asleep = 0
    while asleep < 5:  # both wait for the reader
        time.sleep(0.001)
        full = waiting(out) > PIPE - 4096
        asleep = asleep + 1 if full and all(sleeps(each.pid) for each in writers) else 0
    read = bytearray()
    while part := os.read(out, 4096):
        read += part
    assert [each.wait() for each in writers] == [0, 0]
    os.close(out)
    os.close(turn)
    lines = bytes(read).split(b"\n")
    assert lines.pop() == b""
    assert sorted(lines) == [b"a" * 9000] * 60 + [b"b" * 9000] * 60
